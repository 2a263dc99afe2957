"""Which columns of a plan are looked at above it: the others need not be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond.spark.jvm import JavaObject, items, kind
from millpond.spark.windows import watermarked_key

__all__ = ["Needed", "id_of", "ids_of", "needed_below", "needed_down_to"]

Needed = frozenset[int] | None
"""Ids of columns; None: all."""


def id_of(attribute: JavaObject) -> int:
    return int(attribute.exprId().id())


def ids_of(expressions: Iterable[JavaObject]) -> frozenset[int]:
    """The columns that expressions look at."""
    return frozenset(
        id_of(attribute) for expression in expressions for attribute in items(expression.references().toSeq())
    )


def needed_below(node: JavaObject, needed: Needed) -> Needed:
    """What a node looks at of its children's columns, when `needed` is looked at of its own."""
    match kind(node):
        case "Project":
            columns = items(node.projectList())
            return ids_of(c for c in columns if needed is None or id_of(c) in needed)
        case "Aggregate":
            return ids_of([*items(node.groupingExpressions()), *items(node.aggregateExpressions())])
        case "Filter" | "EventTimeWatermark" | "Generate" as name:
            return None if needed is None else needed | ids_of([_PASSED_BY[name](node)])
        case "Join":
            condition = node.condition()
            asked = [condition.get()] if condition.isDefined() else []
            # By these rows are late and forgotten.
            times = [time for child in items(node.children()) if (time := _event_time(child)) is not None]
            return None if needed is None else needed | ids_of([*asked, *times])
    return None


_PASSED_BY: dict[str, Callable[[JavaObject], JavaObject]] = {
    "Filter": lambda node: node.condition(),
    "EventTimeWatermark": lambda node: node.eventTime(),
    "Generate": lambda node: node.generator(),
}
"""What nodes look at that pass on all columns."""


def _event_time(plan: JavaObject) -> JavaObject | None:
    return watermarked_key(items(plan.output()))


def needed_down_to(node: JavaObject, below: JavaObject, needed: Needed) -> Needed:
    """Likewise of a plan some nodes further below; None also where it stands there in another form."""
    needed = needed_below(node, needed)
    while needed is not None:
        children = items(node.children())
        if len(children) != 1:
            return None
        (node,) = children
        if node.equals(below):
            return needed
        needed = needed_below(node, needed)
    return None
