"""The way of the streams through an analysed plan: where they are kept, and what on it can't be taken.

Spark keeps state for the nodes refused here. They are refused by name, because a stateful node left in the
plan would run in Spark's own state store unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.drafts import Draft, draft_of, drafts_of_join
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.needed import Needed, id_of, needed_below, needed_down_to
from millpond.spark.operators import Operator
from millpond.spark.parts import Hole, Inner, Part, Whole, inner, split_children
from millpond.spark.unaligned_rows import UnalignedRowsDraft
from millpond.spark.window_joins import as_in_streams

__all__ = ["Stage", "Taken", "take_apart"]


@dataclass(frozen=True)
class Stage:
    """One operator and what gives its rows: a part for each of its inputs."""

    operator: Operator
    inputs: tuple[Part, ...]
    partner: int | None = None
    """An earlier stage whose rows Spark joins with those of this one, so that both have to come in the same batch."""


@dataclass(frozen=True)
class Taken:
    """A plan taken apart: its stages, bottom up, and what stands above them all."""

    stages: tuple[Stage, ...]
    top: Part


class Finish(Protocol):
    def __call__(self, draft: Draft, number: int) -> Operator: ...


def take_apart(catalyst: Catalyst, root: JavaObject, output_mode: OutputMode, finish: Finish) -> Taken:
    """`finish` makes an operator of a draft once its place among the stages is known."""
    splitter = _Splitter(catalyst, output_mode, finish)
    top = splitter.split(root)
    if not splitter.stages:
        raise InvalidQuery(
            "the query keeps no state: there is no aggregate on the stream, so there is nothing for Millpond "
            "to keep. Start it with Spark's own writeStream"
        )
    return Taken(tuple(splitter.stages), top)


_STATEFUL = {
    "Except": "except",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
}

_LIMITS = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset"}

_SIDE_BY_SIDE = {"Union", "SequentialStreamingUnion"}


class _Splitter:
    def __init__(self, catalyst: Catalyst, output_mode: OutputMode, finish: Finish) -> None:
        self._catalyst = catalyst
        self._mode = output_mode
        self._finish = finish
        self.stages: list[Stage] = []

    def split(self, node: JavaObject, needed: Needed = None) -> Part:
        """`needed`: what is looked at of the node's columns."""
        if not node.isStreaming():
            return Whole(node)
        node = self._catalyst.with_filters_joined(node)
        draft = draft_of(self._catalyst, node, self._mode)
        if draft is not None:
            hole = self._stage(draft, [needed_down_to(node, below, needed) for below in draft.below])
            if isinstance(draft, UnalignedRowsDraft):
                node = draft.node
            return Inner(node, (hole,)) if draft.keeps_node else hole
        streaming = [child for child in items(node.children()) if child.isStreaming()]
        if len(streaming) > 1 and kind(node) not in _SIDE_BY_SIDE:
            return self._split_join(node, needed)
        part = split_children(node, lambda child: self.split(child, needed_below(node, needed)))
        if isinstance(part, Inner) and kind(node) == "Project" and needed is not None:
            # What else it would pass on is not kept.
            columns = (column for column in items(node.projectList()) if id_of(column) in needed)
            part = Inner(self._catalyst.project(self._catalyst.seq(columns), node.child()), part.children)
        self._refuse(node, above_state=not isinstance(part, Whole))
        if kind(node) in _SIDE_BY_SIDE and not isinstance(part, Whole):
            raise InvalidQuery(
                "the query aggregates one side of a union of streams; Millpond takes aggregates only one "
                "above the other. Aggregate after the union, or run one query per side"
            )
        return part

    def _stage(self, draft: Draft, needed: Sequence[Needed], partner: Hole | None = None) -> Hole:
        inputs = tuple(self.split(below, of) for below, of in zip(draft.below, needed, strict=True))
        operator = self._finish(draft, len(self.stages))
        self.stages.append(Stage(operator, inputs, None if partner is None else partner.stage))
        return Hole(len(self.stages) - 1)

    def _split_join(self, node: JavaObject, needed: Needed) -> Part:
        if kind(node) != "Join":
            raise _keeps_state(
                "a join of two streams" if "Join" in kind(node) else f"{kind(node)} of several streams"
            )
        drafts = drafts_of_join(self._catalyst, node, self._mode, needed)
        if isinstance(drafts, tuple):
            left = self._stage(drafts[0], [None])
            right = self._stage(drafts[1], [None], partner=left)
            return inner(as_in_streams(self._catalyst, node), (left, right))
        hole = self._stage(drafts, [needed_below(node, needed)] * 2)
        return hole if drafts.rest is None else Inner(drafts.rest, (hole,))

    def _refuse(self, node: JavaObject, *, above_state: bool) -> None:
        name = kind(node)
        if name in _STATEFUL:
            raise _keeps_state(_STATEFUL[name])
        # Above an aggregate in complete mode a limit is a limit of each batch's result; elsewhere Spark
        # counts the rows of all batches.
        if name in _LIMITS and (not above_state or self._mode == "append"):
            raise _keeps_state(_LIMITS[name])


def _keeps_state(operator: str) -> InvalidQuery:
    return InvalidQuery(
        f"{operator} keeps state on a stream, and Millpond does not take it yet. Leave it out of the query, "
        "or start the query with Spark's own writeStream"
    )
