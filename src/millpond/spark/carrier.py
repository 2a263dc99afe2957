"""The one stream that Spark reads for a query, whatever the number of its sources.

Where several inputs of operators come from sources, their rows travel as a union: a tag says to which input a row
belongs, and inputs share columns of equal type, so that few are empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from millpond.spark.jvm import Catalyst, JavaObject, items
from millpond.spark.parts import Whole
from millpond.spark.stateful import Stage

__all__ = ["Carrier", "Feed", "carry"]


@dataclass(frozen=True)
class Feed:
    """One input of an operator that comes from a source."""

    operator: int
    side: int
    """Which of the operator's inputs."""
    columns: tuple[int, ...]
    """Positions of the input's columns in the carrier."""


@dataclass(frozen=True)
class Carrier:
    source: DataFrame
    feeds: tuple[Feed, ...]
    """With more than one, the carrier's first column is the number of the row's feed."""


def carry(catalyst: Catalyst, session: SparkSession, stages: tuple[Stage, ...]) -> Carrier:
    found = [
        (number, side, part.plan, stage.operator.inputs[side])
        for number, stage in enumerate(stages)
        for side, part in enumerate(stage.inputs)
        if isinstance(part, Whole)
    ]
    if len(found) == 1:
        ((operator, side, plan, columns),) = found
        source = catalyst.frame(catalyst.project(columns, plan), session)
        return Carrier(source, (Feed(operator, side, tuple(range(columns.size()))),))
    shared = _Shared(catalyst)
    feeds = tuple(
        Feed(operator, side, shared.positions(items(columns))) for operator, side, _, columns in found
    )
    branches = [
        catalyst.project(catalyst.seq(shared.columns(tag, items(columns), feed)), plan)
        for tag, ((_, _, plan, columns), feed) in enumerate(zip(found, feeds, strict=True))
    ]
    return Carrier(catalyst.frame(catalyst.union(branches), session), feeds)


class _Shared:
    """The columns of the union behind its tag."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._types: list[JavaObject] = []

    def positions(self, columns: list[JavaObject]) -> tuple[int, ...]:
        """Where a feed's columns lie: each takes the first free column of its type, or a new one."""
        taken: list[int] = []
        for column in columns:
            free = (
                place
                for place, kind in enumerate(self._types)
                if place not in taken and self._catalyst.same_type(kind, column.dataType())
            )
            place = next(free, None)
            if place is None:
                place = len(self._types)
                self._types.append(column.dataType())
            taken.append(place)
        return tuple(place + 1 for place in taken)

    def columns(self, tag: int, columns: list[JavaObject], feed: Feed) -> list[JavaObject]:
        given = dict(zip(feed.columns, columns, strict=True))
        made = [self._catalyst.alias(self._catalyst.literal(tag), "tag")]
        for place, kind in enumerate(self._types, start=1):
            column = given.get(place)
            value = self._catalyst.null_of(kind) if column is None else column.child()
            made.append(self._catalyst.alias(value, f"s{place}"))
        return made
