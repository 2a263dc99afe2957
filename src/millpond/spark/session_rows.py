"""Operators that keep rows until their session ends, for aggregates that can't be merged and functions of groups."""

from __future__ import annotations

from millpond.errors import InvalidQuery
from millpond.semantics.operator import Sessions
from millpond.spark.grouped import GroupedRows
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql, rebuild
from millpond.spark.operators import Inputs, aggregate_expressions, session_time, window_bounds
from millpond.spark.unaligned_rows import UnalignedRowsDraft
from millpond.spark.windows import SessionForm, session_form, watermarked_key

__all__ = ["SessionRowsDraft"]


class SessionRowsDraft(UnalignedRowsDraft):
    def __init__(self, catalyst: Catalyst, rows: GroupedRows) -> None:
        form = session_form(catalyst, rows.keys, rows.node.child())
        if form is None:
            raise InvalidQuery(
                f"{rows.purpose} is grouped by a session window that is part of another value; group by "
                "session_window(...) itself"
            )
        super().__init__(catalyst, rows, form.window, bounds=form.window)
        self._form = form
        self._unmarked = form.window.withMetadata(catalyst.no_metadata)
        if kind(rows.node) == "Aggregate":
            self._check_uses(rows.node)
            self.node = self._over_ended_sessions(rows.node)

    @staticmethod
    def would_do(catalyst: Catalyst, aggregate: JavaObject) -> bool:
        """Whether rows can be kept for the aggregate, which could also be merged."""
        grouping = items(aggregate.groupingExpressions())
        form = session_form(catalyst, grouping, aggregate.child())
        if form is None or watermarked_key([form.window]) is None:
            return False
        others = [key for key in grouping if not key.semanticEquals(form.window)]
        return watermarked_key(others) is None and not _uses(form, aggregate)

    def _check_uses(self, aggregate: JavaObject) -> None:
        """To a function each row's window is its own, and to the plan above it is that of the whole session."""
        for expression in _uses(self._form, aggregate):
            raise InvalidQuery(
                f"{plain_sql(expression)} looks at the session window of each row, which is not kept where an "
                f"aggregate can't be merged ({self._purpose}); use the column that the window is made of"
            )

    def _over_ended_sessions(self, aggregate: JavaObject) -> JavaObject:
        """Spark would merge sessions under an aggregate by a column with the mark of a session window. Those that are
        given out are merged already, so that it is a column like others."""

        def plain(node: JavaObject) -> JavaObject | None:
            return self._unmarked if kind(node) == "AttributeReference" and self._is_window(node) else None

        grouping, results = (
            self._catalyst.seq(
                rebuild(self._catalyst, expression, plain) for expression in items(expressions)
            )
            for expressions in (aggregate.groupingExpressions(), aggregate.aggregateExpressions())
        )
        return self._catalyst.aggregate(grouping, results, aggregate.child())

    def _window_slots(self) -> tuple[list[JavaObject], JavaObject]:
        return window_bounds(self._catalyst, self._unmarked)

    def _time(self, name: str, inputs: Inputs, keys: list[JavaObject]) -> Sessions:
        window = self._form.window
        if watermarked_key([window]) is None or watermarked_key(keys) is not None:
            raise InvalidQuery(
                f"{name}: {self._purpose} needs the rows of whole sessions, so the watermark has to follow "
                f"{window.name()} and no other key"
            )
        return session_time(inputs, self._form, ends=True)


def _uses(form: SessionForm, aggregate: JavaObject) -> list[JavaObject]:
    """The keys and functions that look at the window."""
    others = [key for key in items(aggregate.groupingExpressions()) if not key.semanticEquals(form.window)]
    for expression in items(aggregate.aggregateExpressions()):
        others += aggregate_expressions(expression)
    return [expression for expression in others if expression.references().contains(form.window)]
