"""One streaming aggregate of Spark's plan as an operator: what it reads, keeps and emits, and how its results
are made again from what it emits.

What can be built before the first batch is built here, so that a batch only puts its rows under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import DataType, StructType

from millpond.errors import InternalError, InvalidQuery
from millpond.semantics.operator import (
    Aggregate,
    AggregateOp,
    AggregateSpec,
    Column,
    CountWindows,
    KeyedTime,
    OperatorSpec,
    OutputMode,
    Panes,
    Sessions,
    TimeSpec,
    Top,
)
from millpond.semantics.windows import timer_interval_us
from millpond.spark.aggregates import BUFFER_COUNTS, Kept, keep
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql, rebuild, to_python_type
from millpond.spark.panes import panes_below
from millpond.spark.reshaping import Reshaping, Unnesting, Widths
from millpond.spark.schemas import ArrowSettings, arrow_schema, nullable_everywhere, struct_of
from millpond.spark.top import marked_top, top_text
from millpond.spark.windows import (
    CountForm,
    SessionForm,
    WindowForm,
    count_form,
    expiry_of,
    is_session_window,
    session_form,
    watermarked_key,
)

__all__ = [
    "AggregateBuilder",
    "AggregateDraft",
    "Form",
    "Inputs",
    "Operator",
    "aggregate_expressions",
    "check_key",
    "count_time",
    "emitted_columns",
    "number_slot",
    "numbered",
    "positions_of",
    "python_type",
    "session_time",
    "time_of",
    "type_text",
    "window_bounds",
    "with_window",
]


@dataclass(frozen=True)
class Operator:
    spec: OperatorSpec
    emitted: StructType
    inputs: tuple[JavaObject, ...]
    """For each input the columns it travels as, over the plan that gives its rows, as a Scala sequence."""
    slots: tuple[JavaObject, ...]
    """The attributes of the plan above that the emitted columns fill, one each."""
    columns: JavaObject | None
    """The columns of the operator, where some are made of slots: a window of its start and end, or of its number, a
    struct of its fields. A Scala sequence; None: the slots themselves."""
    results: JavaObject | None
    """The result columns over them, as a Scala sequence; None: they themselves."""
    clustered_by: tuple[int, ...] = ()
    """Positions of the slots by which rows that belong together are emitted by one shard."""
    reshaping: Reshaping | None = None
    """What is made of the rows that the operator emits before they fill the slots."""
    widths: tuple[Widths, ...] = ()
    """For each input, how many columns each of its columns travels as; empty: all travel as they are."""


class AggregateDraft:
    """A streaming aggregate of functions that can be merged."""

    noun = "aggregate"
    keeps_node = False

    def __init__(
        self,
        catalyst: Catalyst,
        aggregate: JavaObject,
        output_mode: OutputMode,
        exploded: JavaObject | None = None,
    ) -> None:
        """`exploded`: the node above, which makes a row of each of a group's first rows."""
        self._catalyst = catalyst
        self._aggregate = aggregate
        self._exploded = exploded
        grouping = items(aggregate.groupingExpressions())
        self._timed_key = None if output_mode == "complete" else watermarked_key(grouping)
        self._form = (
            count_form(grouping, aggregate.child())
            or session_form(catalyst, grouping, aggregate.child())
            or _pane_form(catalyst, aggregate, grouping, self._timed_key)
        )
        self.below = (aggregate.child() if self._form is None else self._form.below,)

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        builder = AggregateBuilder(self._catalyst, self._aggregate, name, arrow, self._exploded)
        return builder.build(self._timed_key, self._form)


def _pane_form(
    catalyst: Catalyst, aggregate: JavaObject, grouping: list[JavaObject], timed_key: JavaObject | None
) -> WindowForm | None:
    """Windows are cut into panes only when nothing but the grouping looks at the window column."""
    if timed_key is None or kind(timed_key) != "AttributeReference":
        return None
    form = panes_below(catalyst, aggregate.child(), timed_key)
    if form is None:
        return None
    others = [key for key in grouping if not key.semanticEquals(timed_key)]
    for expression in items(aggregate.aggregateExpressions()):
        others += aggregate_expressions(expression)
    return None if any(e.references().contains(timed_key) for e in others) else form


def check_key(catalyst: Catalyst, key: JavaObject, operator: str) -> None:
    if is_session_window(key) and kind(key) != "AttributeReference":
        raise InvalidQuery(
            f"{operator}: the session window {plain_sql(key)} is part of another value; group by "
            "session_window(...) itself"
        )
    if not catalyst.is_binary_stable(key.dataType()):
        raise InvalidQuery(
            f"{operator}: the key {plain_sql(key)} holds strings with a collation under which "
            "different bytes are equal, and Millpond compares keys by their bytes; group by lower(...) "
            "or use `collate UTF8_BINARY`"
        )


class Inputs:
    """The operator's input columns; equal expressions share one."""

    def __init__(self) -> None:
        self.expressions: list[JavaObject] = []
        self.meanings: list[str] = []

    def position(self, expression: JavaObject, meaning: str) -> int:
        for i, known in enumerate(self.expressions):
            if known.semanticEquals(expression):
                return i
        return self.append(expression, meaning)

    def append(self, expression: JavaObject, meaning: str) -> int:
        self.expressions.append(expression)
        self.meanings.append(meaning)
        return len(self.expressions) - 1

    def fill(self, catalyst: Catalyst) -> None:
        """Rows without columns could not be counted on their way: Arrow batches lose their number."""
        if not self.expressions:
            self.append(catalyst.literal(1), "a row")

    def columns(self, catalyst: Catalyst) -> JavaObject:
        """The columns by their numbers, as a Scala sequence."""
        return catalyst.seq(catalyst.alias(e, f"c{i}") for i, e in enumerate(self.expressions))

    def schema_bytes(self, operator: str, arrow: ArrowSettings) -> bytes:
        """The Arrow schema of `columns`."""
        read = numbered(self.expressions)
        return _schema_bytes(read, operator=operator, meanings=self.meanings, settings=arrow)


def emitted_columns(
    slots: Sequence[JavaObject], operator: str, arrow: ArrowSettings
) -> tuple[StructType, bytes]:
    """The columns that fill the slots, by their numbers, and their Arrow schema."""
    emitted = numbered(slots)
    meanings = [str(slot.name()) for slot in slots]
    return emitted, _schema_bytes(emitted, operator=operator, meanings=meanings, settings=arrow)


def positions_of(keys: list[JavaObject], columns: list[JavaObject]) -> tuple[int, ...]:
    """Where the keys stand among the columns, if all of them are plain columns; else nothing."""
    found = [
        position
        for key in keys
        for position, column in enumerate(columns)
        if kind(key) == "AttributeReference" and column.exprId().equals(key.exprId())
    ]
    return tuple(found) if len(found) == len(keys) else ()


def numbered(expressions: Sequence[JavaObject]) -> StructType:
    """Columns of the expressions' types, by their numbers."""
    return struct_of([(f"c{i}", python_type(expression)) for i, expression in enumerate(expressions)])


def _schema_bytes(
    columns: StructType, *, operator: str, meanings: Sequence[str], settings: ArrowSettings
) -> bytes:
    return bytes(arrow_schema(columns, operator=operator, meanings=meanings, settings=settings).serialize())


class _Buffers:
    """The merged aggregates of the operator and the attributes their emitted buffers fill; equal aggregates
    are kept once."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._known: dict[tuple[AggregateOp, tuple[int, ...], int | None, Top | None], list[JavaObject]] = {}
        self.aggregates: list[Aggregate] = []
        self.slots: list[JavaObject] = []

    @property
    def of_aggregates(self) -> Iterable[list[JavaObject]]:
        """The slots of each aggregate."""
        return self._known.values()

    def attributes(self, wanted: Aggregate, types: list[JavaObject]) -> list[JavaObject]:
        identity = (wanted.op, wanted.inputs, wanted.filter, wanted.top)
        if identity not in self._known:
            number = len(self.aggregates)
            made = []
            for i, data_type in enumerate(types):
                not_null = wanted.op in ("count", "moments") or (
                    i == 1 and wanted.op not in ("min_by", "max_by")
                )
                attribute = self._catalyst.attribute(f"a{number}_{i}", data_type, not not_null)
                self.slots.append(attribute)
                made.append(attribute)
            self.aggregates.append(wanted)
            self._known[identity] = made
        return self._known[identity]


Form = WindowForm | SessionForm | CountForm


class AggregateBuilder:
    def __init__(
        self,
        catalyst: Catalyst,
        aggregate: JavaObject,
        name: str,
        arrow: ArrowSettings,
        exploded: JavaObject | None = None,
    ) -> None:
        self._catalyst = catalyst
        self._aggregate = aggregate
        self._name = name
        self._arrow = arrow
        self._exploded = exploded
        self._grouping = items(aggregate.groupingExpressions())
        self._inputs = Inputs()
        self._buffers = _Buffers(catalyst)
        self._key_slots: list[JavaObject] = []
        self._group_values: list[tuple[JavaObject, JavaObject]] = []
        """Grouping expressions that are no attributes, and the attributes that hold them above."""

    def build(self, timed_key: JavaObject | None, form: Form | None) -> Operator:
        for key in self._grouping:
            check_key(self._catalyst, key, self._name)
        keys = self._add_keys(form)
        results = []
        for expression in items(self._aggregate.aggregateExpressions()):
            result = self._result(expression)
            if self._exploded is None or marked_top(expression) is None:
                results.append(result)
        if self._exploded is not None:
            results += items(self._exploded.generatorOutput())
        if isinstance(form, SessionForm):
            time: TimeSpec | None = self._session_time(form, timed_key)
        elif isinstance(form, CountForm):
            time = count_time(form)
        else:
            time = time_of(self._catalyst, self._inputs, timed_key, form)
        return self._finish(keys, results, time, form)

    def _session_time(self, form: SessionForm, timed_key: JavaObject | None) -> Sessions:
        others = [key for key in self._grouping if not key.semanticEquals(form.window)]
        if timed_key is not None and watermarked_key(others) is not None:
            raise InvalidQuery(
                f"{self._name}: the query groups by {form.window.name()} and by another time that a watermark "
                "follows, so that it is open which of them ends a group; group by the session window alone"
            )
        return session_time(self._inputs, form, ends=timed_key is not None)

    def _add_keys(self, form: Form | None) -> list[Column]:
        columns: list[Column] = []
        for key in self._grouping:
            if form is not None and key.semanticEquals(form.window):
                continue
            is_attribute = kind(key) == "AttributeReference"
            key_name = str(key.name()) if is_attribute else plain_sql(key)
            self._inputs.append(self._catalyst.normalized_key(key), f"the key {key_name}")
            columns.append(Column(key_name, type_text(key)))
            if is_attribute and not any(slot.exprId().equals(key.exprId()) for slot in self._key_slots):
                attribute = key
            else:
                attribute = self._catalyst.attribute(key_name, key.dataType(), key.nullable())
                self._group_values.append((key, attribute))
            self._key_slots.append(attribute)
        return columns

    def _result(self, expression: JavaObject) -> JavaObject:
        mark = marked_top(expression)
        if mark is not None:
            return self._catalyst.alias_as(self._top_rows(expression.child(), mark), expression.toAttribute())
        rebuilt = rebuild(self._catalyst, expression, self._replacement)
        if kind(rebuilt) in ("Alias", "AttributeReference") and rebuilt.exprId().equals(expression.exprId()):
            return rebuilt
        return self._catalyst.alias_as(rebuilt, expression.toAttribute())

    def _top_rows(self, gathered: JavaObject, mark: Top) -> JavaObject:
        """The group's first rows as an array, in the place of all that Spark would gather."""
        struct = gathered.aggregateFunction().child()
        text = top_text(mark, struct)
        position = self._inputs.position(struct, f"the rows of {text}")
        aggregate = Aggregate("top", (position,), None, text, mark)
        (rows,) = self._buffers.attributes(aggregate, [gathered.dataType()])
        return rows

    def _replacement(self, expression: JavaObject) -> JavaObject | None:
        name = kind(expression)
        if name == "AggregateExpression":
            return self._value_of(expression)
        if name in ("AttributeReference", "Literal"):
            return None
        for key, attribute in self._group_values:
            if key.semanticEquals(expression):
                return attribute
        return None

    def _value_of(self, expression: JavaObject) -> JavaObject:
        """Spark's final rule for an aggregate, over the emitted buffers."""
        kept = keep(self._catalyst, expression.aggregateFunction(), self._name)
        own_filter = expression.filter().get() if expression.filter().isDefined() else None
        emitted = self._emitted_buffers(kept, own_filter)
        wanted = items(kept.function.aggBufferAttributes())
        if len(emitted) != len(wanted) or not all(
            self._catalyst.same_type(have.dataType(), want.dataType())
            for have, want in zip(emitted, wanted, strict=True)
        ):
            theirs, ours = ([type_text(buffer) for buffer in side] for side in (wanted, emitted))
            raise InternalError(
                f"{self._name}: Spark keeps {plain_sql(kept.function)} as {theirs}, Millpond as {ours}"
            )

        def buffer(node: JavaObject) -> JavaObject | None:
            if kind(node) == "AttributeReference":
                for have, want in zip(emitted, wanted, strict=True):
                    if node.exprId().equals(want.exprId()):
                        return have
            return None

        return rebuild(self._catalyst, kept.function.evaluateExpression(), buffer)

    def _emitted_buffers(self, kept: Kept, own_filter: JavaObject | None) -> list[JavaObject]:
        """The attributes, in Spark's order, that the buffers of the function fill."""
        per_part: list[list[JavaObject]] = []
        for part in kept.parts:
            inputs = tuple(self._inputs.position(e, f"the input {plain_sql(e)}") for e in part.inputs)
            condition = part.when
            if own_filter is not None:
                condition = own_filter if condition is None else self._catalyst.both(own_filter, condition)
            position = None
            text = part.text
            if condition is not None:
                position = self._inputs.position(condition, f"the condition {plain_sql(condition)}")
            if own_filter is not None:
                text += f" where {plain_sql(own_filter)}"
            aggregate = Aggregate(part.op, inputs, position, text)
            per_part.append(self._buffers.attributes(aggregate, self._buffer_types(part.op, part.inputs)))
        return [per_part[part][buffer] for part, buffer in kept.buffers]

    def _buffer_types(self, op: AggregateOp, inputs: tuple[JavaObject, ...]) -> list[JavaObject]:
        """The Spark types of what the kernel emits for an operation."""
        match op:
            case "count":
                types = [self._catalyst.long_type]
            case "moments":
                types = [inputs[0].dataType()] * 3
            case "min_by" | "max_by":
                types = [inputs[0].dataType(), inputs[1].dataType()]
            case _:
                types = [inputs[0].dataType(), self._catalyst.boolean_type]
        return types[: BUFFER_COUNTS[op]]

    def _finish(
        self,
        keys: list[Column],
        results: list[JavaObject],
        time: TimeSpec | None,
        form: Form | None,
    ) -> Operator:
        slots = self._key_slots + self._buffers.slots
        made = []
        if isinstance(form, CountForm):
            number, window = number_slot(self._catalyst, form.window)
            made = [window]
            slots.insert(len(keys), number)
        elif form is not None:
            bounds, window = window_bounds(self._catalyst, form.window)
            made = [window]
            slots += bounds
        self._inputs.fill(self._catalyst)
        names = [f"k{i}" for i in range(len(keys))]
        input_names = names + [f"c{i}" for i in range(len(keys), len(self._inputs.expressions))]
        read = struct_of(list(zip(input_names, map(python_type, self._inputs.expressions), strict=True)))
        emitted_names = names + [str(slot.name()) for slot in slots[len(keys) :]]
        emitted = struct_of(list(zip(emitted_names, (python_type(slot) for slot in slots), strict=True)))
        spec = AggregateSpec(
            name=self._name,
            keys=tuple(keys),
            aggregates=tuple(self._buffers.aggregates),
            time=time,
            input_ipc=self._schema_bytes(read, self._inputs.meanings),
            output_ipc=self._schema_bytes(emitted, emitted_names),
        )
        travelling = [_fields(expression) for expression in self._inputs.expressions]
        inputs: list[JavaObject] = []
        for name, whole, fields in zip(input_names, self._inputs.expressions, travelling, strict=True):
            inputs += [self._catalyst.alias(field, f"{name}_{i}") for i, field in enumerate(fields)]
            if not fields:
                inputs.append(self._catalyst.alias(whole, name))
        operator = Operator(
            spec=spec,
            emitted=emitted,
            inputs=(self._catalyst.seq(inputs),),
            slots=tuple(slots),
            columns=self._catalyst.seq([*slots, *made]) if made else None,
            results=self._catalyst.seq(results),
            widths=(tuple(map(len, travelling)),),
        )
        return self._unnested(operator, emitted_names, made)

    def _unnested(self, operator: Operator, names: list[str], made: list[JavaObject]) -> Operator:
        """The operator with the structs that it emits as their fields."""
        slots: list[JavaObject] = []
        columns = list(made)
        widths: list[int] = []
        exploded = None
        for number, slot in enumerate(operator.slots):
            if not self._is_taken_apart(slot):
                widths.append(0)
                slots.append(slot)
                columns.append(slot)
                continue
            struct = slot
            if self._exploded is not None:
                exploded = number
                place, struct = items(self._exploded.generatorOutput())
                slots.append(place)
                columns.append(place)
            types = struct.dataType().fields()
            fields = [
                self._catalyst.attribute(f"{slot.name()}_{i}", each.dataType(), True)
                for i, each in enumerate(types)
            ]
            widths.append(len(fields))
            slots += fields
            given = zip((str(each.name()) for each in types), fields, strict=True)
            columns.append(self._catalyst.alias_as(self._catalyst.struct_of(given), struct))
        if not any(widths):
            return operator
        emitted_names = names[: len(self._key_slots)] + [
            str(slot.name()) for slot in slots[len(self._key_slots) :]
        ]
        emitted = struct_of(list(zip(emitted_names, map(python_type, slots), strict=True)))
        return replace(
            operator,
            emitted=emitted,
            slots=tuple(slots),
            columns=self._catalyst.seq(columns),
            reshaping=Unnesting(tuple(widths), exploded, self._schema_bytes(emitted, emitted_names)),
        )

    def _is_taken_apart(self, slot: JavaObject) -> bool:
        """Whether what fills it is a struct that is never null, or a list of them that is exploded."""
        for aggregate, (first, *_) in zip(self._buffers.aggregates, self._buffers.of_aggregates, strict=True):
            if first.exprId().equals(slot.exprId()):
                if aggregate.op == "top":
                    return self._exploded is not None
                # Without keys there is a result without a row, and under a condition perhaps none that counts.
                is_whole = aggregate.op in ("min", "max") and aggregate.filter is None and self._key_slots
                return bool(is_whole and _fields(self._inputs.expressions[aggregate.inputs[0]]))
        return False

    def _schema_bytes(self, columns: StructType, meanings: list[str]) -> bytes:
        return _schema_bytes(columns, operator=self._name, meanings=meanings, settings=self._arrow)


def _fields(expression: JavaObject) -> list[JavaObject]:
    """The columns that a struct is made of, if the query makes it of columns."""
    return items(expression.children())[1::2] if kind(expression) == "CreateNamedStruct" else []


def time_of(
    catalyst: Catalyst, inputs: Inputs, timed_key: JavaObject | None, form: WindowForm | None
) -> TimeSpec | None:
    """The time of an operator; its column becomes one of the inputs."""
    if timed_key is None:
        return None
    column = Column(
        str(timed_key.name()) if kind(timed_key) == "AttributeReference" else plain_sql(timed_key),
        type_text(timed_key),
    )
    if form is not None:
        position = inputs.append(form.time, f"the time of {column.name}")
        return Panes(position, form.size_us, form.slide_us, form.offset_us, column)
    expiry, slice_us = expiry_of(catalyst, timed_key)
    return KeyedTime(inputs.append(expiry, f"the expiry of {column.name}"), slice_us, column)


def session_time(inputs: Inputs, form: SessionForm, *, ends: bool) -> Sessions:
    """Its columns become inputs. `ends`: whether sessions are ever over."""
    window = Column(str(form.window.name()), type_text(form.window))
    return Sessions(
        start=inputs.append(form.start, f"the start of {window.name}"),
        end=inputs.append(form.end, f"the end of {window.name}"),
        gap_us=form.gap_us,
        timer_us=timer_interval_us(form.gap_us) if ends else 0,
        window=window,
        followed=watermarked_key([form.window]) is not None,
        by_calendar=form.by_calendar,
    )


def count_time(form: CountForm) -> CountWindows:
    return CountWindows(form.rows, Column(str(form.window.name()), type_text(form.window)))


def number_slot(catalyst: Catalyst, window: JavaObject) -> tuple[JavaObject, JavaObject]:
    """What the number of a count window fills, and the window column made of it."""
    number = catalyst.attribute("window_number", catalyst.long_type, False)
    return number, catalyst.alias_as(catalyst.struct_of([("number", number)]), window)


def with_window(
    catalyst: Catalyst, slots: list[JavaObject], window: JavaObject
) -> tuple[list[JavaObject], JavaObject]:
    """The slots with the window's start and end, and all columns with the window column made from them."""
    bounds, made = window_bounds(catalyst, window)
    columns: Iterable[JavaObject] = [*slots, made]
    return [*slots, *bounds], catalyst.seq(columns)


def window_bounds(catalyst: Catalyst, window: JavaObject) -> tuple[list[JavaObject], JavaObject]:
    """What the window's start and end fill, and the window column made of them."""
    start_type = window.dataType().fields()[0].dataType()
    start, end = (catalyst.attribute(name, start_type, True) for name in ("window_start", "window_end"))
    struct = catalyst.struct_of([("start", start), ("end", end)])
    return [start, end], catalyst.alias_as(struct, window)


def aggregate_expressions(expression: JavaObject) -> list[JavaObject]:
    if kind(expression) == "AggregateExpression":
        return [expression]
    return [found for child in items(expression.children()) for found in aggregate_expressions(child)]


def python_type(expression: JavaObject) -> DataType:
    return to_python_type(expression.dataType())


def type_text(expression: JavaObject) -> str:
    return str(nullable_everywhere(python_type(expression)).simpleString())
