"""The way of the stream through an analysed plan: where it is aggregated, and what on it can't be taken.

Spark keeps state for the nodes refused here. They are refused by name, because a stateful node left in the
plan would run in Spark's own state store unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.jvm import JavaObject, items, kind

__all__ = ["Stage", "stages"]


@dataclass(frozen=True)
class Stage:
    """One streaming aggregate and what stands above it, up to the next aggregate or the root."""

    aggregate: JavaObject
    above: tuple[tuple[JavaObject, int], ...]
    """Nodes from the bottom up, each with the position of the child through which the stream comes."""


_STATEFUL = {
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "Except": "except",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
}

_LIMITS = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset"}

_SIDE_BY_SIDE = {"Union", "SequentialStreamingUnion"}


def stages(root: JavaObject, output_mode: OutputMode) -> list[Stage]:
    """The streaming aggregates of the plan, bottom up, each with what stands above it."""
    aggregates: list[JavaObject] = []
    between: list[list[tuple[JavaObject, int]]] = [[]]
    node = root
    while True:
        if kind(node) == "Aggregate":
            aggregates.append(node)
            between.append([])
            node = node.child()
            continue
        streaming = _streaming_children(node)
        if len(streaming) != 1:
            break
        between[-1].append((node, streaming[0]))
        node = items(node.children())[streaming[0]]
    _refuse_branches_with_state(node)
    if not aggregates:
        _refuse([n for n, _ in between[0]], below_all=True, output_mode=output_mode)
        raise InvalidQuery(
            "the query keeps no state: there is no aggregate on the stream, so there is nothing for Millpond "
            "to keep. Start it with Spark's own writeStream"
        )
    for depth, nodes in enumerate(between):
        _refuse([n for n, _ in nodes], below_all=depth == len(aggregates), output_mode=output_mode)
    return [
        Stage(aggregate, tuple(reversed(nodes)))
        for aggregate, nodes in zip(reversed(aggregates), reversed(between[:-1]), strict=True)
    ]


def _streaming_children(node: JavaObject) -> list[int]:
    return [i for i, child in enumerate(items(node.children())) if child.isStreaming()]


def _refuse(nodes: list[JavaObject], *, below_all: bool, output_mode: OutputMode) -> None:
    for node in nodes:
        name = kind(node)
        if name in _STATEFUL:
            raise _keeps_state(_STATEFUL[name])
        # Above an aggregate in complete mode a limit is a limit of each batch's result; elsewhere Spark
        # counts the rows of all batches.
        if name in _LIMITS and (below_all or output_mode == "append"):
            raise _keeps_state(_LIMITS[name])


def _refuse_branches_with_state(node: JavaObject) -> None:
    """At a leaf there is nothing; where several streams meet, only a union of stateless ones is left to
    Spark."""
    streaming = _streaming_children(node)
    if not streaming:
        return
    if kind(node) not in _SIDE_BY_SIDE:
        raise _keeps_state(
            "a join of two streams" if "Join" in kind(node) else f"{kind(node)} of several streams"
        )
    pending = [items(node.children())[i] for i in streaming]
    while pending:
        below = pending.pop()
        streaming = _streaming_children(below)
        if kind(below) == "Aggregate":
            raise InvalidQuery(
                "the query aggregates one side of a union of streams; Millpond takes aggregates only one "
                "above the other. Aggregate after the union, or run one query per side"
            )
        if len(streaming) > 1 and kind(below) not in _SIDE_BY_SIDE:
            raise _keeps_state("a join of two streams")
        _refuse([below], below_all=True, output_mode="append")
        pending += [items(below.children())[i] for i in streaming]


def _keeps_state(operator: str) -> InvalidQuery:
    return InvalidQuery(
        f"{operator} keeps state on a stream, and Millpond does not take it yet. Leave it out of the query, "
        "or start the query with Spark's own writeStream"
    )
