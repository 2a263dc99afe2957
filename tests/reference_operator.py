"""An operator in plain Python, one row at a time: what the kernel should keep and emit, written to be read.

Tests put it under a cut plan in the kernel's place.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from millpond.semantics.operator import Aggregate, OperatorSpec, Panes

Row = list[Any]


def emit(spec: OperatorSpec, rows: list[Row]) -> pa.Table:
    """All groups, with panes all windows, that the rows make."""
    groups: dict[str, tuple[Row, list[Row]]] = {}
    for row in rows:
        for window in _windows(spec, row):
            key = [*row[: len(spec.keys)], *window]
            groups.setdefault(repr(key), (key, []))[1].append(row)
    if not spec.keys and spec.time is None:
        groups = groups or {"": ([], [])}
    emitted: list[Row] = []
    for key, members in groups.values():
        buffers = [value for aggregate in spec.aggregates for value in _buffers(aggregate, spec, members)]
        emitted.append([*key[: len(spec.keys)], *buffers, *key[len(spec.keys) :]])
    columns = [
        pa.array([row[i] for row in emitted], field.type) for i, field in enumerate(spec.output_schema)
    ]
    return pa.Table.from_arrays(columns, schema=spec.output_schema)


def _windows(spec: OperatorSpec, row: Row) -> list[Row]:
    if not isinstance(spec.time, Panes):
        return [[]]
    time = row[spec.time.column]
    if time is None:
        return []
    last = time - (time - spec.time.offset_us) % spec.time.slide_us
    starts = range(last, time - spec.time.size_us, -spec.time.slide_us)
    return [[start, start + spec.time.size_us] for start in starts]


def _buffers(aggregate: Aggregate, spec: OperatorSpec, rows: list[Row]) -> Row:
    if aggregate.filter is not None:
        rows = [row for row in rows if row[aggregate.filter] is True]
    picked = [[row[i] for i in aggregate.inputs] for row in rows]
    if aggregate.op == "count":
        return [sum(None not in values for values in picked)]
    if aggregate.op in ("min_by", "max_by"):
        ordered = [values for values in picked if values[1] is not None]
        best = min if aggregate.op == "min_by" else max
        return best(ordered, key=lambda values: values[1]) if ordered else [None, None]
    values = [value for (value,) in picked]
    present = [value for value in values if value is not None]
    if aggregate.op == "sum_decimal":
        scale = Decimal(1).scaleb(-spec.input_schema.field(aggregate.inputs[0]).type.scale)
        return [sum(present, Decimal(0)).quantize(scale), not present]
    return _UNARY[aggregate.op](values, present)


def _fold(step: Callable[[int, int], int]) -> Callable[[Row, Row], Row]:
    def fold(_: Row, present: Row) -> Row:
        if not present:
            return [None]
        folded = present[0]
        for value in present[1:]:
            folded = step(folded, value)
        return [folded]

    return fold


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _try_sum(_: Row, present: Row) -> Row:
    total = sum(present)
    return [total if -(2**63) <= total < 2**63 else None, not present]


def _moments(_: Row, present: Row) -> Row:
    n = len(present)
    mean = sum(present) / n if n else 0.0
    return [float(n), mean, sum((value - mean) ** 2 for value in present)]


_UNARY: dict[str, Callable[[Row, Row], Row]] = {
    "sum_int": lambda _, present: [sum(present) if present else None],
    "sum_int_wrapping": lambda _, present: [_wrapped(sum(present)) if present else None],
    "sum_int_try": _try_sum,
    "sum_float": lambda _, present: [float(sum(present)) if present else None],
    "min": lambda _, present: [min(present, default=None)],
    "max": lambda _, present: [max(present, default=None)],
    "first": lambda values, _: [values[0] if values else None, bool(values)],
    "last": lambda values, _: [values[-1] if values else None, bool(values)],
    "first_non_null": lambda _, present: [present[0] if present else None, bool(present)],
    "last_non_null": lambda _, present: [present[-1] if present else None, bool(present)],
    "bit_and": _fold(lambda a, b: a & b),
    "bit_or": _fold(lambda a, b: a | b),
    "bit_xor": _fold(lambda a, b: a ^ b),
    "moments": _moments,
}
