"""Combining rows inside Spark's tasks before they leave the JVM, and when that pays."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.semantics.operator import Panes
from millpond.semantics.precombine import Partial, Precombined
from millpond.spark.jvm import Catalyst

__all__ = ["PrecombineSwitch", "combined"]

_BEGIN_BELOW = 0.1
"""Groups for each row: Spark's own hash table then costs less than handing the rows over."""
_END_ABOVE = 0.3
_LEAST_ROWS = 50_000


class PrecombineSwitch:
    """Judges by the batch before."""

    def __init__(self) -> None:
        self.on = False

    def note(self, input_rows: int, staged_rows: int) -> None:
        groups = staged_rows / max(input_rows, 1)
        if input_rows < _LEAST_ROWS:
            self.on = False
        elif self.on:
            self.on = groups <= _END_ABOVE
        else:
            self.on = groups < _BEGIN_BELOW


def combined(catalyst: Catalyst, frame: DataFrame, form: Precombined) -> DataFrame:
    """One row per group and task of the operator's input rows, as `form.spec` reads them."""
    names = frame.columns
    keys = names[: len(form.spec.keys)]
    if form.time is not None:
        time = _representative(F.col(names[form.time]), form)
        frame = frame.withColumn("time", time)
        keys = [*keys, "time"]
    parts = [_partial(names, partial).alias(f"p{i}") for i, partial in enumerate(form.partials)]
    rows = F.count(F.lit(1)).alias("rows")
    return catalyst.clustered(frame, keys).groupBy(*keys).agg(*parts, rows)


def _representative(time: Column, form: Precombined) -> Column:
    """One time for all rows of a pane: its start. The kernel cuts panes the same way."""
    match form.spec.time:
        case Panes(size_us=size, slide_us=slide, offset_us=offset):
            past = F.pmod(time - offset, F.lit(slide))
            rest = size % slide
            return time - past + (F.when(past >= rest, rest).otherwise(0) if rest else 0)
        case _:
            return time


def _partial(names: list[str], partial: Partial) -> Column:
    inputs = [F.col(names[i]) for i in partial.inputs]
    condition = (
        F.lit(True) if partial.filter is None else F.coalesce(F.col(names[partial.filter]), F.lit(False))
    )
    if partial.function == "count":
        for column in inputs:
            condition = condition & column.isNotNull()
        return F.count(F.when(condition, F.lit(1)))
    value = inputs[0] if partial.filter is None else F.when(condition, inputs[0])
    function = getattr(F, partial.function)
    return function(value)
