"""Random batches with a column of every type, for comparing Millpond with Spark's own result.

Hypothesis draws the shape of the data; the values come from a generator that the shape seeds, so that a failure
shrinks to few batches, rows and groups and can be repeated.

Where Spark leaves an answer open, the data leaves no choice: sums of floats are exact (multiples of a power of
two), `u` and `us` are unique, and `once_*` are the same in all rows that a group has in a batch.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

START = datetime(2024, 1, 1, tzinfo=UTC)
FAR_FUTURE_S = 1_000_000

OWN_GAPS = (
    "case when u % 7 = 0 then '-1 seconds' when u % 5 = 0 then null "
    "when u % 2 = 0 then '1500 milliseconds' else '6 seconds' end"
)
"""How long a row's session waits for the next, in SQL. Spark leaves rows out whose gap is negative or null."""

_OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
_ZONED = pa.timestamp("us", "UTC")
_PLAIN = pa.timestamp("us")


@dataclass(frozen=True)
class Shape:
    seed: int
    rows: tuple[int, ...]
    """Of each batch; 0 is a batch without rows."""
    groups: int
    nulls: float
    """The share of nulls in each column that may have them."""
    disorder_s: float
    """How far event time may lie behind the batch's own stretch of time."""


def shapes(*, batches: int = 4, rows: int = 60, in_order: bool = False) -> st.SearchStrategy[Shape]:
    """`in_order`: event time never goes back, not even within a batch."""
    return st.builds(
        Shape,
        seed=st.integers(0, 2**32),
        rows=st.lists(st.integers(0, rows), min_size=batches, max_size=batches).map(tuple),
        groups=st.integers(1, 12),
        nulls=st.sampled_from([0.0, 0.1, 0.4]),
        disorder_s=st.just(0.0) if in_order else st.sampled_from([3.0, 12.0, 40.0]),
    )


_Make = Callable[[random.Random], Any]
Columns = dict[str, tuple[pa.DataType, str, _Make]]
"""By name: the type in Arrow and in SQL, and how a value is made."""


def _pool(*values: Any) -> _Make:
    return lambda dice: dice.choice(values)


def _text(dice: random.Random) -> str:
    return "".join(dice.choice("abzÄ日\0 ") for _ in range(dice.choice((0, 1, 2, 3, 40))))


def _eighths(dice: random.Random) -> float:
    return dice.choice((dice.randrange(-4096, 4096) / 8,) * 40 + (math.nan, math.inf))


def _fractions(dice: random.Random) -> float:
    return dice.choice((dice.randrange(-(2**30), 2**30) / 1024,) * 40 + (math.nan, -math.inf))


def _day(dice: random.Random) -> date:
    return date(1950, 1, 1) + timedelta(days=dice.randrange(40_000))


def _moment(dice: random.Random) -> datetime:
    return datetime(1950, 1, 1, tzinfo=UTC) + timedelta(microseconds=dice.randrange(4 * 10**15))


def _plain_moment(dice: random.Random) -> datetime:
    return _moment(dice).replace(tzinfo=None)


def _decimal(digits: int, scale: int) -> _Make:
    return lambda dice: Decimal(dice.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale)


_PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
_NEST = pa.struct([("x", pa.float64()), ("y", pa.struct([("z", pa.string()), ("w", pa.list_(pa.int16()))]))])

VALUES: Columns = {
    "i8": (pa.int8(), "tinyint", lambda d: d.randrange(-128, 128)),
    "i16": (pa.int16(), "smallint", lambda d: d.randrange(-(2**15), 2**15)),
    "i32": (pa.int32(), "int", lambda d: d.randrange(-(2**31), 2**31)),
    "i64": (pa.int64(), "bigint", lambda d: d.randrange(-(2**40), 2**40)),
    "f32": (pa.float32(), "float", _eighths),
    "f64": (pa.float64(), "double", _fractions),
    "d9": (pa.decimal128(9, 2), "decimal(9,2)", _decimal(9, 2)),
    "d18": (pa.decimal128(18, 6), "decimal(18,6)", _decimal(18, 6)),
    "d38": (pa.decimal128(38, 10), "decimal(38,10)", _decimal(30, 10)),
    "t": (pa.string(), "string", _text),
    "bin": (pa.binary(), "binary", lambda d: d.randbytes(d.choice((0, 1, 2, 30)))),
    "b": (pa.bool_(), "boolean", lambda d: d.random() < 0.7),
    "day": (pa.date32(), "date", _day),
    "at": (_ZONED, "timestamp", _moment),
    "nat": (_PLAIN, "timestamp_ntz", _plain_moment),
    "pair": (
        _PAIR,
        "struct<a:int,b:string>",
        lambda d: {"a": d.choice((None, 1, 2, -3)), "b": d.choice((None, "", "x", "y"))},
    ),
    "list": (
        pa.list_(pa.int32()),
        "array<int>",
        lambda d: [d.choice((None, 0, 1, -1)) for _ in range(d.randrange(4))],
    ),
}
"""Values to aggregate, each drawn alone."""

KEYS: Columns = {
    "k_i8": (pa.int8(), "tinyint", _pool(-128, -1, 0, 127)),
    "k_i16": (pa.int16(), "smallint", _pool(-(2**15), -1, 0, 2**15 - 1)),
    "k_i32": (pa.int32(), "int", _pool(-(2**31), -1, 0, 2**31 - 1)),
    "k_i64": (pa.int64(), "bigint", _pool(-(2**63), -1, 0, 2**63 - 1)),
    "k_f32": (pa.float32(), "float", _pool(0.0, -0.0, math.nan, _OTHER_NAN, math.inf, -math.inf, 1.5)),
    "k_f64": (pa.float64(), "double", _pool(0.0, -0.0, math.nan, _OTHER_NAN, math.inf, -math.inf, 0.1)),
    "k_d9": (pa.decimal128(9, 2), "decimal(9,2)", _pool(*map(Decimal, ("0.00", "-0.01", "9999999.99")))),
    "k_d38": (
        pa.decimal128(38, 10),
        "decimal(38,10)",
        _pool(Decimal(0), Decimal("1e-10"), Decimal("-1e-10"), Decimal(10**28 - 1), Decimal(1 - 10**28)),
    ),
    "k_t": (pa.string(), "string", _pool("", "a", "A", "a\0", "a\0b", "ä", "日本", "long " * 300)),
    "k_bin": (pa.binary(), "binary", _pool(b"", b"\0", b"\0\0", b"\xff", b"a")),
    "k_b": (pa.bool_(), "boolean", _pool(True, False)),
    "k_day": (pa.date32(), "date", _pool(date(1900, 2, 28), date(1970, 1, 1), date(2199, 12, 31))),
    "k_at": (
        _ZONED,
        "timestamp",
        _pool(START, START + timedelta(microseconds=1), datetime(1903, 1, 1, tzinfo=UTC)),
    ),
    "k_nat": (
        _PLAIN,
        "timestamp_ntz",
        _pool(datetime(2024, 3, 31, 2, 30), datetime(1903, 1, 1, 0, 0, 0, 1)),
    ),
    "k_pair": (
        _PAIR,
        "struct<a:int,b:string>",
        lambda d: {"a": d.choice((None, 1)), "b": d.choice((None, ""))},
    ),
    "k_nest": (
        _NEST,
        "struct<x:double,y:struct<z:string,w:array<smallint>>>",
        lambda d: {
            "x": d.choice((0.0, -0.0, math.nan, _OTHER_NAN)),
            "y": d.choice(
                (None, {"z": None, "w": []}, {"z": "q", "w": [None, 1]}, {"z": "q", "w": [1, None]})
            ),
        },
    ),
    # Not [None] alone: over a file with no number at all, Spark's compiled code looks into an empty dictionary.
    "k_list": (
        pa.list_(pa.float64()),
        "array<double>",
        _pool([], [None, 1.0], [0.0], [-0.0], [0.0, 0.0], [math.nan], [_OTHER_NAN]),
    ),
    "k_pairs": (
        pa.list_(_PAIR),
        "array<struct<a:int,b:string>>",
        _pool([], [None], [{"a": 1, "b": "x"}], [{"a": 1, "b": "x"}, None]),
    ),
    # Not of numbers: Spark's compiled code for sorting a map's entries takes a null among them for a zero.
    "k_map": (
        pa.map_(pa.string(), pa.string()),
        "map<string,string>",
        _pool(
            [], [("a", "1")], [("a", "1"), ("b", None)], [("b", None), ("a", "1")], [("a", "1"), ("b", "")]
        ),
    ),
}
"""Keys with few values, those that are easily confused among them."""

_ALWAYS = (
    "g int, u bigint, us string, once_i int, once_t string, once_pair struct<a:int,b:string>, n int, "
    "ts timestamp, nts timestamp_ntz"
)


def schema_of(columns: Columns) -> str:
    return ", ".join([_ALWAYS, *(f"{name} {sql}" for name, (_, sql, _) in columns.items())])


def tables(shape: Shape, columns: Columns, *, batch_s: float = 8.0, closing: bool = True) -> list[pa.Table]:
    """One table per batch. `closing`: a last one, of a single row, that lies behind all windows of the others."""
    dice = random.Random(shape.seed)
    unique = list(range(sum(shape.rows) + 1))
    dice.shuffle(unique)
    numbers = iter(unique)
    made = []
    for n, rows in enumerate([*shape.rows, *([1] if closing else [])]):
        seconds = [_event_time(dice, shape, n, batch_s) for _ in range(rows)]
        if n == len(shape.rows):
            seconds = [float(FAR_FUTURE_S)]
        if shape.disorder_s == 0:
            seconds.sort()
        groups = [dice.randrange(shape.groups) for _ in range(rows)]
        once = {g: _once(dice, shape) for g in range(shape.groups)}
        at = [START + timedelta(microseconds=round(s * 1e6)) for s in seconds]
        ids = [next(numbers) for _ in range(rows)]
        arrays = {
            "g": pa.array(groups, pa.int32()),
            "u": pa.array(ids, pa.int64()),
            "us": pa.array([f"{i * 7919 % 1009}-{i}" for i in ids], pa.string()),
            "once_i": pa.array([once[g][0] for g in groups], pa.int32()),
            "once_t": pa.array([once[g][1] for g in groups], pa.string()),
            "once_pair": pa.array([once[g][2] for g in groups], _PAIR),
            "n": pa.array([n] * rows, pa.int32()),
            "ts": pa.array(at, _ZONED),
            "nts": pa.array([t.replace(tzinfo=None) for t in at], _PLAIN),
        }
        for name, (kind, _, make) in columns.items():
            values = [None if dice.random() < shape.nulls else make(dice) for _ in range(rows)]
            arrays[name] = pa.array(values, kind)
        made.append(pa.table(arrays))
    return made


def _event_time(dice: random.Random, shape: Shape, batch: int, batch_s: float) -> float:
    """Seconds after START, on a coarse grid, so that times fall on the borders of windows."""
    at = batch * batch_s + dice.random() * batch_s
    if dice.random() < 0.3:
        at -= dice.random() * shape.disorder_s
    return at if dice.random() < 0.5 else float(math.floor(at))


def _once(dice: random.Random, shape: Shape) -> tuple[Any, ...]:
    values = dice.randrange(1000), _text(dice), {"a": dice.randrange(5), "b": None}
    return tuple(None if dice.random() < shape.nulls else value for value in values)
