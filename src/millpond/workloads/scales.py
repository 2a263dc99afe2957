"""How large the papers' streams are: as their sources say, or widened so that the state outgrows memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa

from millpond.workloads.cluster_monitoring import ClusterMonitoring
from millpond.workloads.linear_road import LinearRoad
from millpond.workloads.lines import Form, key_lines, line
from millpond.workloads.logistics import Logistics
from millpond.workloads.nexmark import FIRST_ID, Nexmark
from millpond.workloads.readwrite import ReadWrite
from millpond.workloads.ysb import Ysb

__all__ = [
    "CLOSED_BY",
    "STREAMS",
    "Shape",
    "Size",
    "batches",
    "check_shape",
    "closing_rows",
    "crowding",
    "filling",
    "stream_schema",
]

Size = Literal["small", "large"]

STREAMS = {
    "bids": "bid",
    "auctions": "auction",
    "persons": "person",
    "positions": None,
    "tasks": None,
    "records": None,
    "ads": None,
    "orders": "order",
    "shipments": "shipment",
}
"""Each stream, and the part of its generator's events that it is."""

EVENTS_PER_SECOND = 100_000
"""Event time in runs at full speed: a batch of half a million events is five seconds long."""
_FILLING_ROWS = 2_000_000
"""Of a batch that fills the state."""
_PEOPLE = 40_000_000
"""What makes a gigabyte of the smallest state, a count for each."""
_NEXMARK = ("bids", "auctions", "persons")
CLOSED_BY = datetime(2035, 1, 1, tzinfo=UTC)
"""Rows of this time close every window that ends before it."""
_KEYS = {"auction", "bidder", "id", "seller", "vehicle", "job", "order_id"}
_PASSING: dict[str, dict[str, Any]] = {"tasks": {"event_type": 1}, "ads": {"event_type": "view"}}
"""Spark filters before it looks at the time: a row that a query's filter drops moves no watermark."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark may vary of any stream; 0 is what the size says."""

    keys: int = 0
    """Active keys: people and auctions, vehicles, jobs, ids or open orders."""
    hot_ratio: int = 0
    """One event in so many is about a key that is not hot. Only NEXMark has hot keys."""
    rate_stddev: float = 0.0
    """Of the events a second. NEXMark's and the orders' event times are evenly spread all the same."""


AS_SIZED = Shape()


def check_shape(streams: Sequence[str], shape: Shape) -> None:
    """Raises ValueError where one of the streams has not got what the shape varies."""
    if shape.keys and "ads" in streams:
        raise ValueError("the ads are those of the campaigns' table: their keys can't be varied")
    other = [stream for stream in streams if stream not in _NEXMARK]
    if shape.hot_ratio and other:
        raise ValueError(f"only NEXMark's streams have hot keys, {', '.join(other)} has none")


class _Generator(Protocol):
    def batch(self, first: int, count: int) -> pa.RecordBatch: ...


def _generator(
    stream: str, size: Size, seed: int, rate: int, shape: Shape = AS_SIZED, form: Form = "columns"
) -> tuple[_Generator, int]:
    """The generator of a stream's events, and the number of the event it begins with."""
    if stream in _NEXMARK:
        nexmark = _nexmark(STREAMS[stream] or "", size, rate, shape, form)
        # Neighbouring seeds of Java's random numbers begin alike, so the very first events are not typical. A large
        # stream begins when there are forty million people and three times as many auctions.
        return nexmark, {"small": 1_000_000, "large": 50 * _PEOPLE}[size]
    large = size == "large"
    keys, stddev = shape.keys, shape.rate_stddev
    open_orders = keys or (5_000_000 if large else 100_000)
    made: dict[str, Callable[[], _Generator]] = {
        "positions": lambda: LinearRoad(
            rate=rate,
            rate_stddev=stddev,
            seed=seed,
            vehicles=keys or (3_000_000 if large else 45_000),
            highways=2_000 if large else 10,
        ),
        "tasks": lambda: ClusterMonitoring(
            rate=rate, rate_stddev=stddev, seed=seed, jobs=keys or (2_000_000 if large else 10_000)
        ),
        "records": lambda: ReadWrite(
            rate=rate, rate_stddev=stddev, seed=seed, ids=keys or (10_000_000 if large else 1_000)
        ),
        "ads": lambda: Ysb(rate=rate, rate_stddev=stddev, seed=seed, format=form),
        "orders": lambda: Logistics(rate=rate, seed=seed, open_orders=open_orders),
        "shipments": lambda: Logistics(rate=rate, seed=seed, open_orders=open_orders),
    }
    return made[stream](), 0


def crowding(streams: Sequence[str], size: Size) -> int:
    """How many times as many events, in the same time, a large run has: of NEXMark's events all but one in twelve are
    bids, and without them a batch would be a small one. Event times can't be closer."""
    return 10 if size == "large" and set(streams) <= {"auctions", "persons"} else 1


def _nexmark(kind: str, size: Size, rate: int, shape: Shape, form: Form) -> Nexmark:
    changes: dict[str, int] = {}
    if size == "large":
        # All people and the newest five million auctions are active; the hot ones change every second.
        people, auctions = max(1, rate // 50), max(1, 3 * rate // 50)
        changes |= {"active_people": _PEOPLE, "in_flight_auctions": 5_000_000}
        changes |= {"hot_bidder_interval": people, "hot_seller_interval": people}
        changes |= {"hot_auction_interval": auctions}
    if shape.keys:
        changes |= dict.fromkeys(("active_people", "in_flight_auctions"), shape.keys)
    if shape.hot_ratio:
        ratios = ("hot_auction_ratio", "hot_seller_ratio", "hot_bidder_ratio")
        changes |= dict.fromkeys(ratios, shape.hot_ratio)
    as_it_is = Nexmark(rate=rate, kinds=(kind,), columns=(kind,), format=form)
    return msgspec.structs.replace(as_it_is, **changes)


def batches(
    columns: Mapping[str, tuple[str, ...]],
    *,
    size: Size,
    seed: int,
    events: int,
    batch_events: int,
    rate: int = EVENTS_PER_SECOND,
    shape: Shape = AS_SIZED,
    counts: Sequence[int] | None = None,
    form: Form = "columns",
) -> Iterator[dict[str, pa.Table]]:
    """The named streams, batch after batch, with these columns; no columns: all. JSON lines have all of them. A batch
    is `batch_events` of the generator's events, or as many as `counts` says, of which a stream may be a part."""
    generators = {stream: _generator(stream, size, seed, rate, shape, form) for stream in columns}
    if counts is None:
        counts = [min(batch_events, events - start) for start in range(0, events, batch_events)]
    start = 0
    for count in counts:
        made = {
            stream: generator.batch(first + start, count) for stream, (generator, first) in generators.items()
        }
        yield {
            stream: pa.Table.from_batches([events])
            if form == "json"
            else _rows(events, STREAMS[stream], columns[stream])
            for stream, events in made.items()
        }
        start += count


def filling(
    stream: str,
    column: str,
    columns: tuple[str, ...],
    *,
    size: Size,
    seed: int,
    shape: Shape = AS_SIZED,
    form: Form = "columns",
) -> Iterator[pa.Table]:
    """Rows in which each active key of a stream stands once, in order; JSON lines say nothing else."""
    generator, _ = _generator(stream, size, seed, EVENTS_PER_SECOND, shape)
    if isinstance(generator, Nexmark):
        first, end = FIRST_ID + max(0, _PEOPLE - generator.active_people), FIRST_ID + _PEOPLE
    else:
        assert isinstance(generator, ReadWrite)
        first, end = 0, generator.ids
    for start in range(first, end, _FILLING_ROWS):
        keys = pa.array(range(start, min(start + _FILLING_ROWS, end)), pa.int64())
        if form == "json":
            yield pa.table({"value": key_lines(stream, column, keys)})
            continue
        if columns == (column,):
            yield pa.table({column: keys})
            continue
        rows = _rows(generator.batch(start, len(keys)), STREAMS[stream], columns)
        yield rows.set_column(rows.schema.get_field_index(column), column, keys)


def _rows(events: pa.RecordBatch, part: str | None, columns: tuple[str, ...]) -> pa.Table:
    rows = pa.Table.from_batches([events])
    if part is not None:
        column = rows[part].combine_chunks()
        rows = pa.Table.from_struct_array(column.filter(column.is_valid()))
    return rows.select(list(columns)) if columns else rows


def stream_schema(stream: str) -> pa.Schema:
    generator, first = _generator(stream, "small", 1, EVENTS_PER_SECOND)
    return _rows(generator.batch(first, 0), STREAMS[stream], ()).schema


def closing_rows(
    columns: Mapping[str, tuple[str, ...]], seed: int, form: Form = "columns"
) -> dict[str, pa.Table]:
    """One row for each stream that closes every window before it, about things that no other row is about. Its own
    windows are never closed, however often it is repeated."""
    closing = {}
    for place, stream in enumerate(columns):
        generator, first = _generator(stream, "small", seed, EVENTS_PER_SECOND)
        rows = _rows(generator.batch(first, 200), STREAMS[stream], ())
        row = rows.slice(0, 1).to_pylist()[0] | _PASSING.get(stream, {})
        for name, value in row.items():
            if isinstance(value, datetime):
                row[name] = CLOSED_BY + timedelta(seconds=1) if name == "expires" else CLOSED_BY
            elif name in _KEYS:
                row[name] = -1 - place
        if form == "json":
            closing[stream] = pa.table({"value": [line(stream, row)]})
            continue
        table = pa.Table.from_pylist([row], schema=rows.schema)
        closing[stream] = table.select(list(columns[stream])) if columns[stream] else table
    return closing
