"""A streaming plan taken apart at its stateful nodes: stages, and the parts of the plan above, below and between.

The parts are Spark's own nodes. A part above stages has a hole for each of them, which a batch fills with the rows
that the stage emits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millpond.spark.jvm import Catalyst, JavaObject, items, kind

__all__ = ["Hole", "Inner", "Part", "Whole", "filled", "inner", "leaves"]

_WATERMARK_NODES = {"EventTimeWatermark", "UpdateEventTimeWatermarkColumn"}


@dataclass(frozen=True)
class Whole:
    """A subtree without state: of a stream it is a source, else a table."""

    plan: JavaObject


@dataclass(frozen=True)
class Hole:
    """The rows that a stage emits."""

    stage: int


@dataclass(frozen=True)
class Inner:
    """A node above at least one stage."""

    node: JavaObject
    children: tuple[Part, ...]


Part = Whole | Hole | Inner


def inner(node: JavaObject, children: tuple[Part, ...]) -> Part:
    """The node over its children. Batches have no watermark: their rows are in time already."""
    return children[0] if kind(node) in _WATERMARK_NODES else Inner(node, children)


def filled(catalyst: Catalyst, part: Part, rows: Mapping[int, JavaObject]) -> JavaObject:
    """The part as a plan over the rows of the stages below it."""
    match part:
        case Whole():
            return part.plan
        case Hole():
            return rows[part.stage]
        case Inner():
            children = [filled(catalyst, child, rows) for child in part.children]
            return part.node.withNewChildren(catalyst.seq(children))


def leaves(part: Part) -> set[int]:
    """The stages right below the part."""
    match part:
        case Whole():
            return set()
        case Hole():
            return {part.stage}
        case Inner():
            return set().union(*(leaves(child) for child in part.children))


def split_children(node: JavaObject, split: Callable[[JavaObject], Part]) -> Part:
    """A node without state of its own."""
    children = tuple(split(child) for child in items(node.children()))
    if all(isinstance(child, Whole) for child in children):
        return Whole(node)
    return inner(node, children)
