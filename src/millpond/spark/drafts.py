"""Which operator keeps the state of a node of Spark's plan.

A draft is made on the way down, because only it knows where the plan is cut; it becomes an operator on the way up,
when its place among the stages is known.
"""

from __future__ import annotations

from typing import Protocol

from millpond.errors import InvalidQuery
from millpond.hints import Hint
from millpond.semantics.operator import OutputMode
from millpond.spark.aggregates import is_mergeable
from millpond.spark.count_windows import CountRowsDraft
from millpond.spark.custom_windows import CustomRowsDraft, ObservedRowsDraft
from millpond.spark.dedup import DEDUPLICATING, DedupDraft
from millpond.spark.gathered_rows import GatheredRowsDraft, is_gathered
from millpond.spark.grouped import GroupedRows
from millpond.spark.hinted import hint_of
from millpond.spark.join_types import check_key_types
from millpond.spark.joins import JoinDraft
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.needed import Needed
from millpond.spark.operators import AggregateDraft, Operator, aggregate_expressions
from millpond.spark.schemas import ArrowSettings
from millpond.spark.session_rows import SessionRowsDraft
from millpond.spark.top import is_exploded_top, marked_top
from millpond.spark.window_joins import window_join
from millpond.spark.window_rows import GroupRowsDraft, WindowRowsDraft
from millpond.spark.windows import (
    CountForm,
    count_form,
    is_custom_window,
    is_session_window,
    is_time_window,
    watermarked_key,
)

__all__ = ["Draft", "draft_of", "drafts_of_join"]

_GROUP_FUNCTIONS = {"FlatMapGroupsInPandas": "applyInPandas", "FlatMapGroupsInArrow": "applyInArrow"}


class Draft(Protocol):
    @property
    def noun(self) -> str:
        """What an operator of this kind is called in messages."""

    @property
    def keeps_node(self) -> bool:
        """Whether the node itself stays in the plan, over the rows that the operator emits."""

    @property
    def below(self) -> tuple[JavaObject, ...]:
        """The plans that give the operator's rows, one for each of its inputs."""

    def finish(self, name: str, arrow: ArrowSettings) -> Operator: ...


def draft_of(catalyst: Catalyst, node: JavaObject, output_mode: OutputMode) -> Draft | None:
    """The operator for a node with one stream below it; None: Spark keeps no state for it."""
    name = kind(node)
    if name == "Aggregate":
        return _aggregate_draft(catalyst, node, output_mode)
    if name == "Generate" and is_exploded_top(node):
        return AggregateDraft(catalyst, node.child(), output_mode, exploded=node)
    if name in DEDUPLICATING:
        return DedupDraft(catalyst, node)
    if name in _GROUP_FUNCTIONS:
        return _function_draft(catalyst, node, output_mode)
    return None


def _aggregate_draft(catalyst: Catalyst, node: JavaObject, output_mode: OutputMode) -> Draft:
    grouping = items(node.groupingExpressions())
    counted = count_form(grouping, node.child())
    if counted is not None and output_mode == "complete":
        raise InvalidQuery(
            f"{counted.window.name()}: full windows are not kept, so that they can't be given out again with "
            "every batch: use outputMode('append') or outputMode('update')"
        )
    hint = hint_of(node)
    can_merge = _all_mergeable(catalyst, node)
    if can_merge and not _rows_are_asked_for(catalyst, node, hint, output_mode):
        return AggregateDraft(catalyst, node, output_mode)
    used = [*grouping, *items(node.aggregateExpressions())]
    decided_by = hint.pattern if can_merge else None
    rows = GroupedRows(node, grouping, used, _functions(catalyst, node), hint, decided_by)
    if counted is not None:
        return _count_rows_draft(catalyst, rows, counted, output_mode)
    if output_mode != "append":
        _check_sessions(catalyst, rows)
        return GroupRowsDraft(catalyst, rows, output_mode)
    if hint == Hint() and not any(map(is_custom_window, grouping)) and is_gathered(catalyst, node):
        return GatheredRowsDraft(catalyst, node, rows.purpose)
    return _ended_rows_draft(catalyst, rows)


def _check_sessions(catalyst: Catalyst, rows: GroupedRows) -> None:
    """Spark forms the sessions of kept rows. Of copies it forms those of each value first, and so finds one twice in
    a session that rows with other values hold together."""
    session = next(filter(is_session_window, rows.keys), None)
    if session is not None and catalyst.copies_rows(rows.node):
        raise InvalidQuery(
            f"{rows.purpose} over {session.name()}: in sessions, Spark counts values twice where DISTINCT is of "
            "several columns, or has a FILTER clause; use outputMode('append'), or a single DISTINCT without FILTER"
        )


def _rows_are_asked_for(catalyst: Catalyst, node: JavaObject, hint: Hint, output_mode: OutputMode) -> bool:
    """Whether a hint wants the rows kept of an aggregate that can be merged, and that would do."""
    if hint.pattern not in ("append_aligned", "append_unaligned") or output_mode != "append":
        return False
    if any(map(marked_top, items(node.aggregateExpressions()))):
        return False
    grouping = items(node.groupingExpressions())
    return (
        _in_windows(grouping)
        or count_form(grouping, node.child()) is not None
        or SessionRowsDraft.would_do(catalyst, node)
    )


def _function_draft(catalyst: Catalyst, node: JavaObject, output_mode: OutputMode) -> Draft | None:
    grouping = items(node.groupingAttributes())
    rows = GroupedRows(node, grouping, None, _GROUP_FUNCTIONS[kind(node)], hint_of(node))
    counted = count_form(grouping, node.child())
    if counted is not None:
        return _count_rows_draft(catalyst, rows, counted, output_mode)
    if output_mode == "append" and watermarked_key(grouping) is not None:
        return _ended_rows_draft(catalyst, rows)
    kinds = (is_custom_window, is_time_window, is_session_window)
    window = next((key for key in grouping if any(is_kind(key) for is_kind in kinds)), None)
    if window is not None:
        raise InvalidQuery(
            f"{rows.purpose} needs all rows of {window.name()}, so that its result comes when the window has ended: "
            "use outputMode('append') and withWatermark(...) on the time that the window is made of"
        )
    return None


def _ended_rows_draft(catalyst: Catalyst, rows: GroupedRows) -> Draft:
    """Rows that are kept until their window or session ends."""
    if any(map(is_session_window, rows.keys)):
        return SessionRowsDraft(catalyst, rows)
    timed = watermarked_key(rows.keys)
    if timed is None or not is_custom_window(timed):
        return WindowRowsDraft(catalyst, rows)
    match rows.hint.pattern:
        case "append_aligned":
            return WindowRowsDraft(catalyst, rows._replace(decided_by=rows.hint.pattern))
        case "append_unaligned" | "range":
            # Either says that windows are read one by one, and the order of their ends is that of a range of time.
            return CustomRowsDraft(catalyst, rows._replace(decided_by=rows.hint.pattern))
    return ObservedRowsDraft(catalyst, rows)


def _count_rows_draft(
    catalyst: Catalyst, rows: GroupedRows, form: CountForm, output_mode: OutputMode
) -> Draft:
    if output_mode != "append":
        raise InvalidQuery(
            f"{rows.purpose} needs all rows of {form.window.name()}, so that its result comes when the window is "
            "full: use outputMode('append')"
        )
    return CountRowsDraft(catalyst, rows, form)


def drafts_of_join(
    catalyst: Catalyst, join: JavaObject, output_mode: OutputMode, needed: Needed
) -> tuple[Draft, Draft] | JoinDraft:
    """Two operators that keep the rows of a window for Spark to join, or one that joins by itself."""
    check_key_types(catalyst, join)
    by_window = window_join(catalyst, join, needed) if output_mode == "append" else None
    return by_window or JoinDraft(catalyst, join, needed)


def _in_windows(grouping: list[JavaObject]) -> bool:
    """Groups that end: Spark's append mode asks for one key that a watermark follows."""
    return watermarked_key(grouping) is not None and not any(is_session_window(key) for key in grouping)


def _all_mergeable(catalyst: Catalyst, aggregate: JavaObject) -> bool:
    return all(
        is_mergeable(catalyst, found)
        for expression in items(aggregate.aggregateExpressions())
        if marked_top(expression) is None
        for found in aggregate_expressions(expression)
    )


def _functions(catalyst: Catalyst, aggregate: JavaObject) -> str:
    """Those that can't be merged, by their names; where all can, all of them."""
    functions = [
        found
        for expression in items(aggregate.aggregateExpressions())
        for found in aggregate_expressions(expression)
    ]
    unmerged = [function for function in functions if not is_mergeable(catalyst, function)]
    return ", ".join(dict.fromkeys(map(_name, unmerged or functions)))


def _name(expression: JavaObject) -> str:
    name = str(expression.aggregateFunction().prettyName())
    return f"{name} distinct" if expression.isDistinct() else name
