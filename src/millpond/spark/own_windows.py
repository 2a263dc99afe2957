"""Windows that Spark lacks, as keys for `groupBy` on a wrapped stream.

In Spark's plan such a window is a column with a mark in its metadata, which says to the planner what it is. An
aggregate groups by that column; a function of groups gets the window with the key and does not see the column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.group import GroupedData

from millpond.errors import InvalidQuery

__all__ = ["OwnWindow", "OwnWindowGroups", "own_window"]


class OwnWindow(ABC):
    is_time: ClassVar[bool]
    """Whether the window's column is a time above the groups too."""

    name: str
    """Of the window's column."""

    @abstractmethod
    def rows(self, frame: DataFrame) -> DataFrame:
        """The rows that have a window."""

    @abstractmethod
    def column(self, frame: DataFrame) -> Column:
        """The marked column over the frame's rows."""


def own_window(keys: list[Any]) -> OwnWindow | None:
    """The key that is a window of Millpond's own."""
    windows = [key for key in keys if isinstance(key, OwnWindow)]
    if len(windows) > 1:
        raise InvalidQuery("group by one window: it would be open which of several ends a group")
    return windows[0] if windows else None


class OwnWindowGroups:
    """Groups by such a window, made when it is known what is done with them."""

    def __init__(self, frame: DataFrame, keys: list[Any], window: OwnWindow) -> None:
        if window.name.lower() in (name.lower() for name in frame.columns):
            raise InvalidQuery(
                f"the window's column would be named {window.name}, and there is one already: give the window "
                "another name with .alias(...)"
            )
        self._frame = window.rows(frame)
        self._keys = keys
        self._window = window

    def for_aggregates(self) -> GroupedData:
        with_window = self._frame.select("*", self._window.column(self._frame))
        return with_window.groupBy(*self._keys_with(F.col(f"`{self._window.name}`")))

    def for_functions(self) -> GroupedData:
        return self._frame.groupBy(*self._keys_with(self._window.column(self._frame)))

    def _keys_with(self, window: Column) -> list[Any]:
        return [window if key is self._window else key for key in self._keys]

    def aggregated(self, method: Callable[[GroupedData], DataFrame]) -> DataFrame:
        """What a method that aggregates gives for the groups."""
        frame = method(self.for_aggregates())
        if not isinstance(frame, DataFrame):
            raise InvalidQuery(f"groups by {self._window.name} can be aggregated, and nothing else")
        return frame if self._window.is_time else self._unmarked(frame)

    def _unmarked(self, frame: DataFrame) -> DataFrame:
        """Above the groups the window's column is one like others, and no time."""
        columns = [(name, F.col(f"`{name}`")) for name in frame.columns]
        return frame.select(
            *(
                column.alias(name, metadata={}) if name == self._window.name else column
                for name, column in columns
            )
        )
