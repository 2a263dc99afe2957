"""What a node of Spark's plan groups, for the operators that keep its rows."""

from __future__ import annotations

from typing import NamedTuple

from millpond.hints import Hint, Pattern
from millpond.spark.jvm import JavaObject

__all__ = ["GroupedRows"]


class GroupedRows(NamedTuple):
    node: JavaObject
    """With a single child, which gives the rows."""
    keys: list[JavaObject]
    used: list[JavaObject] | None
    """The expressions that look at the rows; None: all columns are needed."""
    purpose: str
    """What is computed on the rows."""
    hint: Hint = Hint()
    decided_by: Pattern | None = None
    """The hint's pattern, where without it the rows would be kept in another way or not at all."""
