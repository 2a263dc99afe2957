"""Operators that keep rows for aggregates which only gather a group's values: lists of them, and percentiles, for
which they have to be ordered.

Unlike other aggregates that can't be merged, these are not left to Spark: the values are brought together on their
way out of the store, and a group reaches Spark as one row.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from millpond.semantics.operator import (
    Column,
    Sessions,
    TimeSpec,
    UnalignedRowsSpec,
    WindowRowsSpec,
    kept_time,
)
from millpond.spark.gathering import Gathered, Gathering
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql
from millpond.spark.operators import (
    AggregateBuilder,
    AggregateDraft,
    Form,
    Operator,
    aggregate_expressions,
    emitted_columns,
    numbered,
    python_type,
    type_text,
    with_window,
)
from millpond.spark.schemas import ArrowSettings
from millpond.spark.session_rows import SessionRowsDraft
from millpond.spark.windows import CountForm, SessionForm, WindowForm, session_form, watermarked_key

__all__ = ["GatheredRowsDraft", "is_gathered"]

_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)
_KEYS = (
    *(T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.BooleanType),
    *(T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""Types whose values are equal where their bytes are, and by which Arrow can group."""


def is_gathered(catalyst: Catalyst, aggregate: JavaObject) -> bool:
    """Whether all functions of an aggregate in append mode only gather. Its groups end by a window."""
    grouping = items(aggregate.groupingExpressions())
    functions = [
        function
        for expression in items(aggregate.aggregateExpressions())
        for function in aggregate_expressions(expression)
    ]
    if not all(_groups_as_arrow(python_type(key)) for key in grouping):
        return False
    if not functions or any(_gathered_of(function, 0) is None for function in functions):
        return False
    in_sessions = session_form(catalyst, grouping, aggregate.child()) is not None
    return not in_sessions or SessionRowsDraft.would_do(catalyst, aggregate)


def _groups_as_arrow(data_type: T.DataType) -> bool:
    if isinstance(data_type, T.StructType):
        return all(_groups_as_arrow(field.dataType) for field in data_type.fields)
    return isinstance(data_type, _KEYS)


def _gathered_of(expression: JavaObject, column: int) -> Gathered | None:
    """What is made of the function's argument, once that is a column."""
    function = expression.aggregateFunction()
    if expression.isDistinct() or expression.filter().isDefined():
        return None
    match kind(function):
        case "CollectList" if function.ignoreNulls():
            return Gathered("list", column)
        case "Median" if isinstance(python_type(function.child()), _NUMBERS):
            return Gathered("percentile", column, 0.5)
        case "Percentile" if isinstance(python_type(function.child()), _NUMBERS):
            fraction, frequency = function.percentageExpression(), function.frequencyExpression()
            plain = fraction.foldable() and isinstance(python_type(fraction), T.DoubleType)
            if plain and not function.reverse() and kind(frequency) == "Literal" and frequency.value() == 1:
                return Gathered("percentile", column, float(fraction.eval(None)))
    return None


class GatheredRowsDraft(AggregateDraft):
    noun = "rows"

    def __init__(self, catalyst: Catalyst, aggregate: JavaObject, purpose: str) -> None:
        super().__init__(catalyst, aggregate, "append")
        self._purpose = purpose

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        builder = _Builder(self._catalyst, self._aggregate, name, arrow, self._purpose)
        return builder.build(self._timed_key, self._form)


class _Builder(AggregateBuilder):
    def __init__(
        self, catalyst: Catalyst, aggregate: JavaObject, name: str, arrow: ArrowSettings, purpose: str
    ) -> None:
        super().__init__(catalyst, aggregate, name, arrow)
        self._purpose = purpose
        self._gathered: list[Gathered] = []
        self._value_slots: list[JavaObject] = []

    def _value_of(self, expression: JavaObject) -> JavaObject:
        argument = expression.aggregateFunction().child()
        column = self._inputs.position(argument, f"the input {plain_sql(argument)}")
        gathered = _gathered_of(expression, column)
        assert gathered is not None
        if gathered not in self._gathered:
            name = f"a{len(self._gathered)}"
            attribute = self._catalyst.attribute(name, expression.dataType(), expression.nullable())
            self._gathered.append(gathered)
            self._value_slots.append(attribute)
        return self._value_slots[self._gathered.index(gathered)]

    def _finish(
        self,
        keys: list[Column],
        results: list[JavaObject],
        time: TimeSpec | None,
        form: Form | None,
    ) -> Operator:
        assert time is not None and not isinstance(form, CountForm)
        values = sorted({gathered.column for gathered in self._gathered} - set(range(len(keys))))
        kept = [*range(len(keys)), *values]
        slots, window = self._key_slots + self._value_slots, None
        bounds: list[JavaObject] = []
        if form is not None:
            slots, window = with_window(self._catalyst, slots, form.window)
            bounds = slots[-2:]
        rows = [*(self._inputs.expressions[i] for i in kept), *bounds]
        emitted, output_ipc = emitted_columns(slots, self._name, self._arrow)
        rows_schema = numbered(rows)
        gathering = Gathering(
            keys=len(keys),
            bounds=form is not None,
            values=tuple(
                Gathered(each.op, kept.index(each.column), each.fraction) for each in self._gathered
            ),
            output_ipc=output_ipc,
        )
        common: dict[str, Any] = {
            "name": self._name,
            "keys": tuple(keys),
            "input_ipc": self._inputs.schema_bytes(self._name, self._arrow),
            "output_ipc": self._schema_bytes(rows_schema, rows_schema.names),
            "key_columns": self._placing(len(keys), form),
            "kept": tuple(
                Column(plain_sql(self._inputs.expressions[i]), type_text(self._inputs.expressions[i]))
                for i in kept
            ),
            "purpose": self._purpose,
        }
        spec: UnalignedRowsSpec | WindowRowsSpec
        if isinstance(time, Sessions):
            spec = UnalignedRowsSpec(time=time, kept_columns=tuple(kept), **common)
        else:
            spec = WindowRowsSpec(time=time, kept_columns=(*kept, *kept_time(time)), **common)
        return Operator(
            spec=spec,
            emitted=emitted,
            inputs=(self._inputs.columns(self._catalyst),),
            slots=tuple(slots),
            columns=window,
            results=self._catalyst.seq(results),
            reshaping=gathering,
        )

    def _placing(self, keys: int, form: WindowForm | SessionForm | None) -> tuple[int, ...]:
        """A window's rows are spread over the shards by the other keys; where there are none, by the window."""
        if form is not None:
            return tuple(range(keys))
        timed = watermarked_key(self._grouping)
        others = [i for i, key in enumerate(self._grouping) if not key.semanticEquals(timed)]
        return tuple(others) or tuple(range(keys))
