"""Cuts a streaming query at its stateful nodes: what Spark reads before the first, what Millpond keeps, and what
Spark does with the emitted rows after each.

The parts are Spark's own plan nodes with their own expression ids, so columns bound to the user's frames keep
their meaning on both sides of a cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from millpond.errors import InvalidQuery
from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.semantics.precombine import Precombined, precombined
from millpond.semantics.times import OperatorTimes, Watermarks, operator_times
from millpond.spark.carrier import Carrier, carry
from millpond.spark.distinct import without_distinct
from millpond.spark.drafts import Draft
from millpond.spark.jvm import Catalyst, JavaObject
from millpond.spark.operators import Operator
from millpond.spark.parts import Part, Whole, filled, leaves
from millpond.spark.reshaping import Reshaping, Widths
from millpond.spark.schemas import ArrowSettings
from millpond.spark.stateful import Stage, take_apart
from millpond.spark.top import has_top
from millpond.spark.windows import has_unfollowed_window

__all__ = ["CutPlan", "cut"]


def cut(df: DataFrame, output_mode: OutputMode) -> CutPlan:
    """Raises InvalidQuery for what Millpond can't keep, and, from Spark's own error and in its words, for what Spark
    would not run as a stream either."""
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
    _check_streaming(catalyst, analyzed, output_mode)
    arrow = ArrowSettings.of(session)

    def finish(draft: Draft, number: int) -> Operator:
        return draft.finish(f"{draft.noun}-{number}", arrow)

    taken = take_apart(catalyst, catalyst.flattened(analyzed), output_mode, finish)
    ansi = session.conf.get("spark.sql.ansi.enabled") == "true"
    operators = [stage.operator for stage in taken.stages]
    return CutPlan(
        carrier=carry(catalyst, session, taken.stages),
        operators=tuple(operator.spec for operator in operators),
        emitted_types=tuple(operator.emitted for operator in operators),
        reshapings=tuple(operator.reshaping for operator in operators),
        precombined=tuple(precombined(operator.spec, ansi=ansi) for operator in operators),
        lags_us=_lags_us(taken.stages),
        delayed=_delayed(taken.stages),
        catalyst=catalyst,
        _stages=taken.stages,
        _emissions=tuple(_Emission.of(catalyst, operator) for operator in operators),
        _top=taken.top,
    )


def _check_streaming(catalyst: Catalyst, analyzed: JavaObject, output_mode: OutputMode) -> None:
    try:
        catalyst.check_streaming(without_distinct(catalyst, analyzed), output_mode)
    except AnalysisException as error:
        if output_mode == "append" and has_unfollowed_window(analyzed):
            raise InvalidQuery(
                "a custom window ends when a watermark has passed its end, and none follows the time that it is made "
                "of: call withWatermark(...) on the stream before groupBy, or use outputMode('update')"
            ) from error
        if output_mode == "append" and has_top(analyzed):
            raise InvalidQuery(
                "the rows of top(...) change as long as rows of their group come, so they can't be appended: use "
                "outputMode('update') or outputMode('complete'), or group by a window of a column with a watermark"
            ) from error
        words = str(error.getMessage())
        advice = next((advice for phrase, advice in _ADVICE.items() if phrase in words), None)
        raise InvalidQuery(
            f"Spark does not run this query as a stream: {words}" + (f" To do: {advice}" if advice else "")
        ) from error


_ADVICE = {
    "watermark in the join keys": (
        "call withWatermark(...) on both streams before the join, and let its condition say how far apart in time "
        "their rows may be, as in b.ts BETWEEN a.ts - INTERVAL 1 HOUR AND a.ts, or join by a window of both times"
    ),
    "aggregations without watermark": (
        "call withWatermark(...) on the stream before groupBy, and group by that time or a window of it; or use "
        "outputMode('update')"
    ),
    "dropDuplicatesWithinWatermark": "call withWatermark(...) on the stream before it",
}
"""By what Spark says."""


def _lags_us(stages: tuple[Stage, ...]) -> tuple[int, ...]:
    """As in Spark: an operator's time is that of what comes latest to it."""
    lags: list[int] = []
    for stage in stages:
        below = set().union(*(leaves(part) for part in stage.inputs))
        lag = max((lags[i] + stages[i].operator.spec.output_lag_us for i in below), default=0)
        # What stands above one partner stands above both, so that nothing was made of the earlier one's lag yet.
        if stage.partner is not None:
            lag = lags[stage.partner] = max(lag, lags[stage.partner])
        lags.append(lag)
    return tuple(lags)


def _delayed(stages: tuple[Stage, ...]) -> tuple[bool, ...]:
    delayed: list[bool] = []
    for stage in stages:
        below = set().union(*(leaves(part) for part in stage.inputs))
        late = any(delayed[i] or stages[i].operator.spec.emits_deferred for i in below)
        if stage.partner is not None:
            late = delayed[stage.partner] = late or delayed[stage.partner]
        delayed.append(late)
    return tuple(delayed)


@dataclass(frozen=True)
class CutPlan:
    carrier: Carrier
    """The stream that Spark reads: the rows of all inputs that no other operator gives."""
    operators: tuple[OperatorSpec, ...]
    """Bottom up, at least one."""
    emitted_types: tuple[StructType, ...]
    """What reaches Spark of each operator, as Spark's schema."""
    reshapings: tuple[Reshaping | None, ...]
    """What is made of the rows that each operator emits before that."""
    precombined: tuple[Precombined | None, ...]
    """The operators over rows that Spark combined first, where it can."""
    lags_us: tuple[int, ...]
    """How far what each operator reads may be behind the watermark."""
    delayed: tuple[bool, ...]
    """Operators that get rows which came a batch after they were due, and so run a batch behind."""
    catalyst: Catalyst
    _stages: tuple[Stage, ...]
    _emissions: tuple[_Emission, ...]
    _top: Part

    def emitted_schema(self, i: int) -> pa.Schema:
        """`emitted_types[i]` as Arrow's schema."""
        reshaping = self.reshapings[i]
        return self.operators[i].output_schema if reshaping is None else reshaping.output_schema

    def widths(self, i: int, side: int) -> Widths:
        """How the columns of an input of operator `i` travel."""
        of_inputs = self._stages[i].operator.widths
        return of_inputs[side] if of_inputs else ()

    @property
    def defers(self) -> bool:
        """Whether the watermark of the last batch may leave something to do."""
        return any(spec.defers for spec in self.operators)

    def times(self, watermarks: Watermarks) -> tuple[OperatorTimes, ...]:
        """What each operator goes by in a batch."""
        return tuple(
            operator_times(spec, watermarks, lag_us=lag_us, delayed=delayed)
            for spec, lag_us, delayed in zip(self.operators, self.lags_us, self.delayed, strict=True)
        )

    def rows(self, i: int, emitted: DataFrame, *, spread: bool) -> JavaObject:
        """What stands for operator `i` in the plan above it, over rows that it emitted, a batch frame with
        `emitted_types[i]`. `spread`: each of its tasks has the rows of one shard."""
        return self._emissions[i].over_rows(self.catalyst, emitted, spread=spread)

    def inputs(
        self, i: int, rows: Mapping[int, JavaObject], session: SparkSession
    ) -> list[tuple[int, DataFrame]]:
        """The inputs of operator `i` that come from other operators: (number of the input, its rows)."""
        stage = self._stages[i]
        frames = []
        for side, part in enumerate(stage.inputs):
            if not isinstance(part, Whole):
                below = filled(self.catalyst, part, rows)
                plan = self.catalyst.project(stage.operator.inputs[side], below)
                frames.append((side, self.catalyst.frame(plan, session)))
        return frames

    def result(self, rows: Mapping[int, JavaObject], session: SparkSession) -> DataFrame:
        """The rows for the sink."""
        return self.catalyst.frame(filled(self.catalyst, self._top, rows), session)


@dataclass(frozen=True)
class _Emission:
    """How emitted rows become what stands in the plan above an operator."""

    slots: JavaObject
    """The attributes that they fill, as a Scala sequence."""
    columns: JavaObject | None
    results: JavaObject | None
    clustered_by: JavaObject | None
    """The slots that say which rows belong together."""

    @staticmethod
    def of(catalyst: Catalyst, operator: Operator) -> _Emission:
        together = [operator.slots[position] for position in operator.clustered_by]
        return _Emission(
            slots=catalyst.seq(operator.slots),
            columns=operator.columns,
            results=operator.results,
            clustered_by=catalyst.seq(together) if together else None,
        )

    def over_rows(self, catalyst: Catalyst, emitted: DataFrame, *, spread: bool) -> JavaObject:
        plan = catalyst.leaf(emitted, self.slots, self.clustered_by if spread else None)
        if self.columns is not None:
            plan = catalyst.project(self.columns, plan)
        return plan if self.results is None else catalyst.project(self.results, plan)
