"""Cuts a streaming query at its aggregates: what Spark reads before the first, what Millpond keeps, and what
Spark does with the emitted rows after each.

The parts are Spark's own plan nodes with their own expression ids, so columns bound to the user's frames keep
their meaning on both sides of a cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from millpond.errors import InternalError, InvalidQuery
from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.semantics.precombine import Precombined, precombined
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.operators import Operator, build_operator
from millpond.spark.schemas import ArrowSettings
from millpond.spark.stateful import stages

__all__ = ["CutPlan", "cut"]

_WATERMARK_NODES = {"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"}


def cut(df: DataFrame, output_mode: OutputMode) -> CutPlan:
    """Raises InvalidQuery for what Millpond can't keep, and Spark's AnalysisException for what Spark would
    not run as a stream either."""
    if not isinstance(df, ClassicDataFrame):
        raise InvalidQuery(
            "Spark Connect gives no access to the query's plan, so Millpond can't cut it; use a classic "
            "session (SparkSession.builder.master(...), without remote(...))"
        )
    if not df.isStreaming:
        raise InvalidQuery(
            "the frame is not streaming; read it with spark.readStream, or write it with df.write"
        )
    session = df.sparkSession
    catalyst = Catalyst(session)
    analyzed = df._jdf.queryExecution().analyzed()
    catalyst.check_streaming(analyzed, output_mode)
    found = stages(catalyst.flattened(analyzed), output_mode)
    arrow = ArrowSettings.of(session)
    operators = [
        build_operator(catalyst, stage.aggregate, f"aggregate-{i}", output_mode, arrow)
        for i, stage in enumerate(found)
    ]
    ansi = session.conf.get("spark.sql.ansi.enabled") == "true"
    first = operators[0]
    source = catalyst.frame(catalyst.project(first.inputs, first.below), session)
    window_nodes = [*(operator.window_nodes for operator in operators[1:]), 0]
    return CutPlan(
        source=source,
        operators=tuple(operator.spec for operator in operators),
        emitted_types=tuple(operator.emitted for operator in operators),
        precombined=tuple(precombined(operator.spec, ansi=ansi) for operator in operators),
        catalyst=catalyst,
        _uppers=tuple(
            _Upper.over(catalyst, operator, stage.above[: len(stage.above) - replaced])
            for operator, stage, replaced in zip(operators, found, window_nodes, strict=True)
        ),
        _inputs=tuple(operator.inputs for operator in operators),
    )


@dataclass(frozen=True)
class CutPlan:
    source: DataFrame
    """The stream that the carrier query reads: the input columns of the first operator, keys first."""
    operators: tuple[OperatorSpec, ...]
    """Bottom up, at least one."""
    emitted_types: tuple[StructType, ...]
    """What each operator emits, as Spark's schema."""
    precombined: tuple[Precombined | None, ...]
    """The operators over rows that Spark combined first, where it can."""
    catalyst: Catalyst
    _uppers: tuple[_Upper, ...]
    _inputs: tuple[JavaObject, ...]

    def above(self, i: int, emitted: DataFrame) -> DataFrame:
        """The plan above operator `i` over rows that it emitted, a batch frame with `emitted_types[i]`: the
        input columns of the next operator, or for the last one the rows for the sink."""
        plan = self._uppers[i].over_rows(self.catalyst, emitted._jdf.queryExecution().analyzed())
        if i + 1 < len(self.operators):
            plan = self.catalyst.project(self._inputs[i + 1], plan)
        return self.catalyst.frame(plan, emitted.sparkSession)


@dataclass(frozen=True)
class _Upper:
    """What stands above one operator, ready to be put over a batch's rows."""

    operator: str
    slots: tuple[_FilledSlot, ...]
    window: JavaObject | None
    results: JavaObject
    nodes: tuple[tuple[JavaObject, tuple[JavaObject, ...], int], ...]
    """Nodes from the bottom up, their children, and the position of the one to exchange."""

    @staticmethod
    def over(catalyst: Catalyst, operator: Operator, above: tuple[tuple[JavaObject, int], ...]) -> _Upper:
        return _Upper(
            operator=operator.spec.name,
            slots=tuple(_FilledSlot.of(catalyst, slot.attribute, slot.not_null) for slot in operator.slots),
            window=operator.window,
            results=operator.results,
            nodes=tuple(
                (node, tuple(items(node.children())), position)
                for node, position in above
                if kind(node) not in _WATERMARK_NODES
            ),
        )

    def over_rows(self, catalyst: Catalyst, rows: JavaObject) -> JavaObject:
        columns = items(rows.output())
        if len(columns) != len(self.slots):
            raise InternalError(
                f"{self.operator} emits {len(self.slots)} columns, the rows given for it have {len(columns)}"
            )
        filled = [slot.filled(catalyst, column) for slot, column in zip(self.slots, columns, strict=True)]
        plan = catalyst.project(catalyst.seq(filled), rows)
        if self.window is not None:
            plan = catalyst.project(self.window, plan)
        plan = catalyst.project(self.results, plan)
        for node, children, position in self.nodes:
            exchanged = (*children[:position], plan, *children[position + 1 :])
            plan = node.withNewChildren(catalyst.seq(exchanged))
        return plan


@dataclass(frozen=True)
class _FilledSlot:
    """A slot's attribute taken apart once, so that a batch asks the gateway for the alias alone."""

    name: str
    expr_id: JavaObject
    qualifier: JavaObject
    metadata: JavaObject
    not_null: bool

    @staticmethod
    def of(catalyst: Catalyst, attribute: JavaObject, not_null: bool) -> _FilledSlot:
        return _FilledSlot(
            attribute.name(),
            attribute.exprId(),
            attribute.qualifier(),
            catalyst.some(attribute.metadata()),
            not_null,
        )

    def filled(self, catalyst: Catalyst, column: JavaObject) -> JavaObject:
        child = catalyst.known_not_null(column) if self.not_null and column.nullable() else column
        return catalyst.exact_alias(child, self.name, self.expr_id, self.qualifier, self.metadata)
