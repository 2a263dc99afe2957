"""Which operator keeps the state of a node of Spark's plan.

A draft is made on the way down, because only it knows where the plan is cut; it becomes an operator on the way up,
when its place among the stages is known.
"""

from __future__ import annotations

from typing import Protocol

from millpond.semantics.operator import OutputMode
from millpond.spark.aggregates import is_mergeable
from millpond.spark.dedup import DEDUPLICATING, DedupDraft
from millpond.spark.gathered_rows import GatheredRowsDraft, is_gathered
from millpond.spark.joins import JoinDraft
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.operators import AggregateDraft, Operator, aggregate_expressions
from millpond.spark.schemas import ArrowSettings
from millpond.spark.session_rows import SessionRowsDraft
from millpond.spark.top import marked_top
from millpond.spark.window_rows import GroupRowsDraft, WindowRowsDraft, window_join
from millpond.spark.windows import is_session_window, watermarked_key

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
        return _draft_of_aggregate(catalyst, node, output_mode)
    if name in DEDUPLICATING:
        return DedupDraft(catalyst, node)
    if name in _GROUP_FUNCTIONS and output_mode == "append":
        grouping = items(node.groupingAttributes())
        if _in_windows(grouping):
            return WindowRowsDraft(catalyst, node, grouping, None, _GROUP_FUNCTIONS[name])
    return None


def _draft_of_aggregate(catalyst: Catalyst, aggregate: JavaObject, output_mode: OutputMode) -> Draft:
    if _all_mergeable(catalyst, aggregate):
        return AggregateDraft(catalyst, aggregate, output_mode)
    purpose = _functions(catalyst, aggregate)
    if output_mode != "append":
        return GroupRowsDraft(catalyst, aggregate, output_mode, purpose)
    if is_gathered(catalyst, aggregate):
        return GatheredRowsDraft(catalyst, aggregate, purpose)
    grouping = items(aggregate.groupingExpressions())
    if any(is_session_window(key) for key in grouping):
        return SessionRowsDraft(catalyst, aggregate, purpose)
    columns = [*grouping, *items(aggregate.aggregateExpressions())]
    return WindowRowsDraft(catalyst, aggregate, grouping, columns, purpose)


def drafts_of_join(
    catalyst: Catalyst, join: JavaObject, output_mode: OutputMode
) -> tuple[Draft, Draft] | JoinDraft:
    """Two operators that keep the rows of a window for Spark to join, or one that joins by itself."""
    by_window = window_join(catalyst, join) if output_mode == "append" else None
    return by_window or JoinDraft(catalyst, join)


def _in_windows(grouping: list[JavaObject]) -> bool:
    """Groups that end: Spark's append mode asks for one key that a watermark follows."""
    return watermarked_key(grouping) is not None and not any(is_session_window(key) for key in grouping)


def _all_mergeable(catalyst: Catalyst, aggregate: JavaObject) -> bool:
    return all(
        is_mergeable(catalyst, found.aggregateFunction())
        for expression in items(aggregate.aggregateExpressions())
        if marked_top(expression) is None
        for found in aggregate_expressions(expression)
    )


def _functions(catalyst: Catalyst, aggregate: JavaObject) -> str:
    """Those that can't be merged, by their names."""
    functions = [
        found.aggregateFunction()
        for expression in items(aggregate.aggregateExpressions())
        for found in aggregate_expressions(expression)
    ]
    unmerged = [function for function in functions if not is_mergeable(catalyst, function)]
    return ", ".join(dict.fromkeys(str(function.prettyName()) for function in unmerged))
