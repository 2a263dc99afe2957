"""DISTINCT in the aggregates of a stream. Spark computes it on batches alone, which is where Millpond leaves it: rows
are kept, and Spark aggregates those of whole groups. So what Spark says of the plan as a stream is asked without it.
"""

from __future__ import annotations

from millpond.spark.jvm import Catalyst, JavaObject, items, kind, rebuild
from millpond.spark.operators import aggregate_expressions

__all__ = ["without_distinct"]


def without_distinct(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The same plan with aggregates of all values."""

    def of_all_values(node: JavaObject) -> JavaObject | None:
        match kind(node):
            case "Aggregate" if _has_distinct(node):
                results = (
                    without_distinct(catalyst, result) for result in items(node.aggregateExpressions())
                )
                below = without_distinct(catalyst, node.child())
                return catalyst.aggregate(node.groupingExpressions(), catalyst.seq(results), below)
            case "AggregateExpression" if node.isDistinct():
                return node.copy(node.aggregateFunction(), node.mode(), False, node.filter(), node.resultId())
        return None

    return rebuild(catalyst, plan, of_all_values)


def _has_distinct(aggregate: JavaObject) -> bool:
    return any(
        found.isDistinct()
        for result in items(aggregate.aggregateExpressions())
        for found in aggregate_expressions(result)
    )
