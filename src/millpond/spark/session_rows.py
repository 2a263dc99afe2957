"""Operators that keep rows until their session ends, for aggregates that can't be merged.

The aggregate stays where it is and runs as a batch operator over the rows of the sessions that ended.
"""

from __future__ import annotations

from millpond.errors import InvalidQuery
from millpond.semantics.operator import Column, SessionRowsSpec, Sessions
from millpond.semantics.windows import timer_interval_us
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql, rebuild
from millpond.spark.operators import (
    Inputs,
    Operator,
    Slot,
    aggregate_expressions,
    check_key,
    emitted_columns,
    positions_of,
    type_text,
    with_window,
)
from millpond.spark.schemas import ArrowSettings
from millpond.spark.windows import session_form, watermarked_key

__all__ = ["SessionRowsDraft"]


class SessionRowsDraft:
    noun = "rows"
    keeps_node = True

    def __init__(self, catalyst: Catalyst, aggregate: JavaObject, purpose: str) -> None:
        self._catalyst = catalyst
        self._purpose = purpose
        self._grouping = items(aggregate.groupingExpressions())
        child = aggregate.child()
        form = session_form(catalyst, self._grouping, child)
        if form is None:
            raise InvalidQuery(
                f"{purpose} is grouped by a session window that is part of another value; group by "
                "session_window(...) itself"
            )
        self._form = form
        self.below = (form.below,)
        self._check_uses(aggregate)
        used = [*self._grouping, *items(aggregate.aggregateExpressions())]
        self._kept = [
            attribute
            for attribute in items(child.output())
            if any(e.references().contains(attribute) for e in used)
            and not attribute.exprId().equals(form.window.exprId())
        ]
        self._window = _unmarked(catalyst, form.window)
        self.node = self._over_ended_sessions(aggregate)
        """The aggregate as it stays in the plan."""

    def _check_uses(self, aggregate: JavaObject) -> None:
        """To a function each row's window is its own, and to the plan above it is that of the whole session."""
        others = [key for key in self._grouping if not key.semanticEquals(self._form.window)]
        for expression in items(aggregate.aggregateExpressions()):
            others += aggregate_expressions(expression)
        for expression in others:
            if expression.references().contains(self._form.window):
                raise InvalidQuery(
                    f"{plain_sql(expression)} looks at the session window of each row, which is not kept where an "
                    f"aggregate can't be merged ({self._purpose}); use the column that the window is made of"
                )

    def _over_ended_sessions(self, aggregate: JavaObject) -> JavaObject:
        """Spark would merge sessions under an aggregate by a column with the mark of a session window. Those that are
        given out are merged already, so that it is a column like others."""

        def plain(node: JavaObject) -> JavaObject | None:
            is_window = kind(node) == "AttributeReference" and node.exprId().equals(self._window.exprId())
            return self._window if is_window else None

        grouping, results = (
            self._catalyst.seq(
                rebuild(self._catalyst, expression, plain) for expression in items(expressions)
            )
            for expressions in (aggregate.groupingExpressions(), aggregate.aggregateExpressions())
        )
        return self._catalyst.aggregate(grouping, results, aggregate.child())

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        keys = [key for key in self._grouping if not key.semanticEquals(self._form.window)]
        for key in self._grouping:
            check_key(self._catalyst, key, name)
        inputs = Inputs()
        for attribute in self._kept:
            inputs.append(attribute, f"the column {attribute.name()}")
        positions = [
            inputs.position(self._catalyst.normalized_key(key), f"the key {plain_sql(key)}") for key in keys
        ]
        time = self._time(name, inputs, keys)
        slots = [Slot(attribute, not attribute.nullable()) for attribute in self._kept]
        slots, window = with_window(self._catalyst, slots, self._window)
        emitted, output_ipc = emitted_columns(slots, name, arrow)
        spec = SessionRowsSpec(
            name=name,
            keys=tuple(Column(plain_sql(key), type_text(key)) for key in keys),
            time=time,
            input_ipc=inputs.schema_bytes(name, arrow),
            output_ipc=output_ipc,
            key_columns=tuple(positions),
            kept_columns=tuple(range(len(self._kept))),
            kept=tuple(Column(str(attribute.name()), type_text(attribute)) for attribute in self._kept),
            purpose=self._purpose,
        )
        return Operator(
            spec=spec,
            emitted=emitted,
            inputs=(inputs.columns(self._catalyst),),
            slots=tuple(slots),
            window=window,
            results=None,
            clustered_by=positions_of(keys, self._kept),
        )

    def _time(self, name: str, inputs: Inputs, keys: list[JavaObject]) -> Sessions:
        form = self._form
        window = Column(str(form.window.name()), type_text(form.window))
        if watermarked_key([form.window]) is None or watermarked_key(keys) is not None:
            raise InvalidQuery(
                f"{name}: {self._purpose} needs the rows of whole sessions, so the watermark has to follow "
                f"{window.name} and no other key"
            )
        # Otherwise the end is no sum: the gap is another for each row, or goes by the calendar.
        if form.gap_us is None or kind(form.end) != "Add":
            raise InvalidQuery(
                f"{name}: {self._purpose} can't be merged, so the rows of {window.name} are kept, and for that its "
                "gap has to be a constant in seconds, minutes or hours"
            )
        return Sessions(
            start=inputs.append(form.start, f"the start of {window.name}"),
            end=inputs.append(form.end, f"the end of {window.name}"),
            gap_us=form.gap_us,
            timer_us=timer_interval_us(form.gap_us),
            window=window,
        )


def _unmarked(catalyst: Catalyst, window: JavaObject) -> JavaObject:
    """The same column without what Spark's analyser noted on it."""
    return window.withMetadata(catalyst.no_metadata)
