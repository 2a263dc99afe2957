"""Combining rows inside Spark's tasks before they leave the JVM, and when that pays."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.semantics.operator import Panes
from millpond.semantics.precombine import Partial, Precombined
from millpond.spark.jvm import Catalyst, JavaObject
from millpond.spark.reshaping import Widths, nested_frame

__all__ = ["PrecombineSwitch", "Precombiner"]

_BEGIN_BELOW = 0.33
"""Groups for each row: Spark's own hash table then costs less than handing the rows over."""
_END_ABOVE = 0.5
_LEAST_ROWS = 20_000
"""Fewer go through the driver as they are."""


class PrecombineSwitch:
    """Judges by the batch before."""

    def __init__(self) -> None:
        self.on = False
        self.groups = 0
        """Of the batch before, each counted once for each task."""

    def note(self, input_rows: int, staged_rows: int) -> None:
        self.groups = staged_rows
        groups = staged_rows / max(input_rows, 1)
        if input_rows < _LEAST_ROWS:
            self.on = False
        elif self.on:
            self.on = groups <= _END_ABOVE
        else:
            self.on = groups < _BEGIN_BELOW


class Precombiner:
    """One operator's aggregate over a task's rows. Building and analysing it takes a while, so that is done once; a
    batch only puts its own rows below it."""

    def __init__(self, catalyst: Catalyst, form: Precombined, schema: pa.Schema, widths: Widths) -> None:
        """`schema`: the operator's input; `widths`: how its columns travel."""
        self._catalyst = catalyst
        self.form = form
        self._schema = schema
        self._widths = widths
        self._columns: JavaObject = None
        """Of the rows, as a Scala sequence."""
        self._above: list[JavaObject] = []
        """The plan's nodes over the rows, bottom up."""

    def combined(self, frame: DataFrame) -> DataFrame:
        """One row per group and task of the operator's input rows, as `form.spec` reads them."""
        if not self._above:
            self._build(frame)
        plan = self._catalyst.leaf_per_task(frame, self._columns)
        for node in self._above:
            plan = node.withNewChildren(self._catalyst.seq([plan]))
        return self._catalyst.frame(plan, frame.sparkSession)

    def _build(self, frame: DataFrame) -> None:
        self._columns = frame._jdf.queryExecution().analyzed().output()
        leaf = self._catalyst.leaf_per_task(frame, self._columns)
        rows: DataFrame = self._catalyst.frame(leaf, frame.sparkSession)
        if any(self._widths):
            rows = nested_frame(rows, self._widths, self._schema)
        names = rows.columns
        grouped = names[: len(self.form.spec.keys)]
        if self.form.time is not None:
            rows = rows.withColumn("time", _representative(F.col(names[self.form.time]), self.form))
            grouped = [*grouped, "time"]
        parts = [_partial(names, partial).alias(f"p{i}") for i, partial in enumerate(self.form.partials)]
        combined = rows.groupBy(*grouped).agg(*parts, F.count(F.lit(1)).alias("rows"))
        node = combined._jdf.queryExecution().analyzed()
        while not node.children().isEmpty():
            self._above.insert(0, node)
            node = node.children().head()


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
