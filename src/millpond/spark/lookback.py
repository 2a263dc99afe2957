"""`lookback`: each row of a stream beside the rows of the same key that lie a while back.

It is a join within bounds of time, written so that the bounds are those of the other stream's event time alone; what
Spark gives for the same condition is what it gives. The join's store then knows which range of the past is read next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from py4j.java_gateway import get_field
from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.errors import InvalidQuery
from millpond.spark.jvm import items, java_class, scala_object
from millpond.spark.windows import watermarked_key

__all__ = ["How", "lookback"]

How: TypeAlias = Literal["inner", "left"]

_MICROS_PER_DAY = 86_400_000_000


def lookback(
    rows: DataFrame, past: DataFrame, on: str | Sequence[str], between: tuple[str, str], how: How, prefix: str
) -> DataFrame:
    keys = [on] if isinstance(on, str) else list(on)
    _check_names(rows, past, keys, prefix)
    if how not in get_args(How):
        raise InvalidQuery(f"lookback(..., how={how!r}): it is 'inner' or 'left'")
    furthest, nearest = _bounds(rows, between)
    now, then = _event_time(rows, "the stream itself"), _event_time(past, "the stream to look back into")
    # The names of the other stream's columns must differ from all others until the end.
    keys_then = {name: f"{prefix}{name} (then)" for name in keys}
    others = {name: f"{prefix}{name}" for name in past.columns if name not in keys}
    renamed = past.select(
        *(_named(name).alias(keys_then[name]) for name in keys),
        *(_named(name).alias(new) for name, new in others.items()),
    )
    time = _named(others[then])
    condition = time.between(_named(now) - furthest, _named(now) - nearest)
    for name in keys:
        condition = (_named(name) == _named(keys_then[name])) & condition
    joined = rows.join(renamed, condition, "left_outer" if how == "left" else how)
    return joined.select(*map(_named, (*rows.columns, *others.values())))


def _check_names(rows: DataFrame, past: DataFrame, keys: list[str], prefix: str) -> None:
    if not keys:
        raise InvalidQuery("lookback(..., on=...): name at least one column that both streams have")
    for name in keys:
        for frame, which in ((rows, "the stream itself"), (past, "the stream to look back into")):
            if not isinstance(name, str) or frame.columns.count(name) != 1:
                raise InvalidQuery(
                    f"lookback(..., on={name!r}): it is the name of one column of both streams, and "
                    f"{which} has the columns {', '.join(frame.columns)}"
                )
    found = {name.lower() for name in rows.columns}
    for name in past.columns:
        if name not in keys and f"{prefix}{name}".lower() in found:
            raise InvalidQuery(
                f"lookback(..., prefix={prefix!r}): the past's column {name} would be named as another, "
                f"{prefix}{name}; give another prefix or rename it before"
            )
        found.add(f"{prefix}{name}".lower())


def _event_time(frame: DataFrame, which: str) -> str:
    time = watermarked_key(items(frame._jdf.queryExecution().analyzed().output()))
    if time is None:
        raise InvalidQuery(
            f"lookback(...): {which} has no event time: call withWatermark(column, delay) before, which also says "
            "when the past can be forgotten"
        )
    if time.dataType().typeName() not in ("timestamp", "timestamp_ntz"):
        raise InvalidQuery(f"lookback(...): the event time {time.name()} of {which} is no timestamp")
    return str(time.name())


def _bounds(frame: DataFrame, between: tuple[str, str]) -> tuple[Column, Column]:
    if not isinstance(between, (tuple, list)) or len(between) != 2:
        raise InvalidQuery(
            f"lookback(..., between={between!r}): two lengths of time, how far back it begins and how far back it "
            "ends, such as ('30 days', '29 days')"
        )
    furthest, nearest = (_micros(frame, length) for length in between)
    if nearest > furthest:
        raise InvalidQuery(
            f"lookback(..., between={between!r}): it ends before it begins; the length that is further back comes "
            "first"
        )
    return _interval(furthest), _interval(nearest)


def _micros(frame: DataFrame, length: str) -> int:
    jvm = frame.sparkSession._jvm
    text = java_class(jvm, "org.apache.spark.unsafe.types.UTF8String").fromString(str(length))
    try:
        parsed = scala_object(jvm, "org.apache.spark.sql.catalyst.util.IntervalUtils").stringToInterval(text)
    except IllegalArgumentException as error:
        raise InvalidQuery(
            f"lookback(..., between=...): {length!r} is no length of time, such as '30 days'"
        ) from error
    months, days, micros = (int(get_field(parsed, name)) for name in ("months", "days", "microseconds"))
    if months:
        raise InvalidQuery(
            f"lookback(..., between=...): months and years differ in length, so {length!r} does not say when the "
            "past can be forgotten; give it in days"
        )
    total = days * _MICROS_PER_DAY + micros
    if total < 0:
        raise InvalidQuery(f"lookback(..., between=...): {length!r} lies ahead; lookback looks back only")
    return total


def _interval(micros: int) -> Column:
    return F.expr(f"INTERVAL '{micros // 1_000_000}.{micros % 1_000_000:06d}' SECOND")


def _named(name: str) -> Column:
    """The column with exactly this name."""
    return F.col(f"`{name.replace('`', '``')}`")
