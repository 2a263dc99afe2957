"""What rows look like that were combined before they reached an ingest task: one row per group and task.

With few groups most of a batch's time goes into handing rows from the JVM to Python. Then Spark combines them
first, inside its tasks, and hands over partial results. They are merged into the same state as rows are.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import pyarrow as pa

from millpond.semantics.operator import (
    Aggregate,
    AggregateOp,
    AggregateSpec,
    CountWindows,
    KeyedTime,
    OperatorSpec,
    Panes,
    Sessions,
)

__all__ = ["Partial", "Precombined", "precombined"]

PartialFunction = Literal["count", "sum", "min", "max", "bit_and", "bit_or", "bit_xor"]

_FUNCTIONS: dict[AggregateOp, tuple[PartialFunction, AggregateOp]] = {
    "count": ("count", "count_of"),
    "sum_int": ("sum", "sum_int"),
    "sum_int_wrapping": ("sum", "sum_int_wrapping"),
    "sum_float": ("sum", "sum_float"),
    "min": ("min", "min"),
    "max": ("max", "max"),
    "bit_and": ("bit_and", "bit_and"),
    "bit_or": ("bit_or", "bit_or"),
    "bit_xor": ("bit_xor", "bit_xor"),
}
"""Each operation's function over rows, and the operation that merges its results. What depends on the order of
rows, or has parts that Spark does not show, is not here."""


class Partial(msgspec.Struct, frozen=True):
    """One aggregate of a task's rows of a group; `inputs` and `filter` are positions in the operator's schema."""

    function: PartialFunction
    inputs: tuple[int, ...]
    filter: int | None


class Precombined(msgspec.Struct, frozen=True):
    """Columns of a combined row: keys, the time (if any), the partial results, and how many rows it stands for."""

    spec: AggregateSpec
    """The operator over combined rows: other inputs, the same state."""
    partials: tuple[Partial, ...]
    time: int | None
    """Position of the time in the operator's own schema."""
    weight: int
    """Position of the number of rows."""


def precombined(spec: OperatorSpec, *, ansi: bool) -> Precombined | None:
    """The operator over combined rows; None where an aggregate can't be computed in parts by Spark's functions.

    `ansi`: whether Spark's own sums fail on an overflow in this session, as `sum_int` does.
    """
    # Rows of one session seldom begin at the same moment, so that Spark would find nothing to combine, and a window
    # that ends with a row has to see each.
    if not isinstance(spec, AggregateSpec) or isinstance(spec.time, Sessions | CountWindows):
        return None
    other_overflow = "sum_int_wrapping" if ansi else "sum_int"
    if any(aggregate.op not in _FUNCTIONS or aggregate.op == other_overflow for aggregate in spec.aggregates):
        return None
    schema = spec.input_schema
    fields = [schema.field(i) for i in range(len(spec.keys))]
    time = spec.time
    time_column = None
    if isinstance(time, Panes | KeyedTime):
        time_column = time.column
        fields.append(schema.field(time.column).with_name("time"))
        time = msgspec.structs.replace(time, column=len(spec.keys))
    partials, aggregates = [], []
    for number, aggregate in enumerate(spec.aggregates):
        function, merge = _FUNCTIONS[aggregate.op]
        partials.append(Partial(function, aggregate.inputs, aggregate.filter))
        aggregates.append(Aggregate(merge, (len(fields),), None, aggregate.text))
        value_type = pa.int64() if function == "count" else schema.field(aggregate.inputs[0]).type
        fields.append(pa.field(f"p{number}", value_type))
    weight = len(fields)
    fields.append(pa.field("rows", pa.int64()))
    return Precombined(
        spec=msgspec.structs.replace(
            spec,
            aggregates=tuple(aggregates),
            time=time,
            input_ipc=bytes(pa.schema(fields).serialize()),
        ),
        partials=tuple(partials),
        time=time_column,
        weight=weight,
    )
