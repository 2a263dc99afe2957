"""From an operator's description to the kernel's layout. The same description gives the same bytes everywhere."""

from __future__ import annotations

from millpond._kernel import Layout
from millpond.semantics.operator import KeyedTime, OperatorSpec, Panes

__all__ = ["layout_of"]


def layout_of(spec: OperatorSpec) -> Layout:
    panes = keyed = None
    match spec.time:
        case Panes(column=column, size_us=size, slide_us=slide, offset_us=offset):
            panes = (column, size, slide, offset)
        case KeyedTime(column=column, slice_us=slice_us):
            keyed = (column, slice_us)
    return Layout(
        spec.input_schema,
        len(spec.keys),
        [(aggregate.op, list(aggregate.inputs), aggregate.filter) for aggregate in spec.aggregates],
        panes,
        keyed,
    )
