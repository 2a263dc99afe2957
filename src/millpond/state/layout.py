"""From an operator's description to the kernel's layout. The same description gives the same bytes everywhere."""

from __future__ import annotations

import pyarrow as pa

from millpond._kernel import JoinLayout, Layout
from millpond.semantics.operator import (
    Aggregate,
    AggregateSpec,
    CountWindows,
    DedupSpec,
    GroupRowsSpec,
    JoinSpec,
    JoinTime,
    KeyedTime,
    ObservedRowsSpec,
    Panes,
    Sessions,
    TimeSpec,
    WindowRowsSpec,
)

__all__ = ["dedup_layout", "join_layout", "key_layout", "layout_of", "routing_layout"]


def layout_of(spec: AggregateSpec) -> Layout:
    aggregates: list[tuple[str, list[int], int | None]] = [
        (_op(aggregate), list(aggregate.inputs), aggregate.filter) for aggregate in spec.aggregates
    ]
    if isinstance(spec.time, CountWindows):
        # The rows of all the key's windows: tells which one it is, and how full.
        aggregates.insert(0, ("count", [], None))
    return Layout(spec.input_schema, len(spec.keys), aggregates, *_time(spec.time, *_time_columns(spec.time)))


def _op(aggregate: Aggregate) -> str:
    match aggregate.top:
        case None:
            return aggregate.op
        case top:
            return " ".join([aggregate.op, str(top.count), str(top.by), *top.orders])


def dedup_layout(spec: DedupSpec) -> Layout:
    """Of the columns keys, then the expiry (int64), where keys have one, then the time by which rows are late."""
    input_schema = spec.input_schema
    keys = len(spec.key_columns)
    fields = [input_schema.field(i).with_name(f"k{n}") for n, i in enumerate(spec.key_columns)]
    if spec.time is not None or spec.forgetting is not None:
        fields.append(pa.field("expiry", pa.int64()))
    if spec.late_column is not None:
        fields.append(pa.field("time", pa.int64()))
    # What a key is noted with is the time at which it is forgotten.
    value: list[tuple[str, list[int], int | None]] = [("min", [keys], None)] if spec.forgetting else []
    return Layout(pa.schema(fields), keys, value, *_time(spec.time, keys))


def routing_layout(spec: WindowRowsSpec | GroupRowsSpec) -> tuple[Layout, list[int]]:
    """A layout of keys and time alone, and the positions of its columns in the operator's input schema."""
    columns = list(spec.key_columns)
    looked_at = _time_columns(spec.time)
    time = _time(spec.time, *range(len(columns), len(columns) + len(looked_at)))
    columns += looked_at
    schema = spec.input_schema
    return Layout(pa.schema([schema.field(i) for i in columns]), len(spec.key_columns), [], *time), columns


def key_layout(spec: ObservedRowsSpec) -> Layout:
    """A layout of the keys alone."""
    schema = spec.input_schema
    fields = [schema.field(i).with_name(f"k{n}") for n, i in enumerate(spec.key_columns)]
    return Layout(pa.schema(fields), len(fields), [], None, None, None)


def join_layout(spec: JoinSpec) -> JoinLayout:
    left, right = (
        dict(  # noqa: C408
            input=spec.input_of(number),
            keys=list(side.key_columns),
            matchable=side.matchable,
            late=side.late,
            expiry=side.expiry,
            comparands=list(side.comparands),
            times=list(side.times),
            expires_after_us=side.expires_after_us,
            kept=list(side.kept_columns),
            null_keys=side.null_keys,
            outer=side.outer,
            once=side.once,
        )
        for number, side in enumerate(spec.sides)
    )
    slice_us = spec.time.slice_us if isinstance(spec.time, JoinTime) else 1
    return JoinLayout(left, right, list(spec.comparisons), slice_us)


def _time_columns(time: TimeSpec | None) -> tuple[int, ...]:
    """Positions of the columns that hold the time."""
    match time:
        case Panes() | KeyedTime():
            return (time.column,)
        case Sessions():
            return time.start, time.end
        case CountWindows() | JoinTime() | None:
            return ()


def _time(
    time: TimeSpec | None, *columns: int
) -> tuple[tuple[int, int, int, int] | None, tuple[int, int] | None, tuple[int, int, int] | None]:
    """Panes, keyed time and sessions as `Layout` takes them, with their columns at these positions."""
    match time:
        case Panes():
            return (columns[0], time.size_us, time.slide_us, time.offset_us), None, None
        case KeyedTime():
            return None, (columns[0], time.slice_us), None
        case Sessions():
            return None, None, (columns[0], columns[1], time.timer_us)
        case CountWindows() | JoinTime() | None:
            return None, None, None
