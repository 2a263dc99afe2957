"""From an operator's description to the kernel's layout. The same description gives the same bytes everywhere."""

from __future__ import annotations

import pyarrow as pa

from millpond._kernel import Layout
from millpond.semantics.operator import AggregateSpec, KeyedTime, Panes, TimeSpec, WindowRowsSpec

__all__ = ["layout_of", "routing_layout"]


def layout_of(spec: AggregateSpec) -> Layout:
    aggregates: list[tuple[str, list[int], int | None]] = [
        (aggregate.op, list(aggregate.inputs), aggregate.filter) for aggregate in spec.aggregates
    ]
    column = 0 if spec.time is None else spec.time.column
    return Layout(spec.input_schema, len(spec.keys), aggregates, *_time(spec.time, column))


def routing_layout(spec: WindowRowsSpec) -> tuple[Layout, list[int]]:
    """A layout of keys and time alone, and the positions of its columns in the operator's input schema."""
    columns = list(spec.key_columns)
    time = _time(spec.time, len(columns))
    if spec.time is not None:
        columns.append(spec.time.column)
    schema = spec.input_schema
    return Layout(pa.schema([schema.field(i) for i in columns]), len(spec.key_columns), [], *time), columns


def _time(
    time: TimeSpec | None, column: int
) -> tuple[tuple[int, int, int, int] | None, tuple[int, int] | None]:
    """Panes and keyed time as `Layout` takes them."""
    match time:
        case Panes():
            return (column, time.size_us, time.slide_us, time.offset_us), None
        case KeyedTime():
            return None, (column, time.slice_us)
        case None:
            return None, None
