"""Windows and watermarks as the queries use them: a benchmark's lengths where it gives them, else the source's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millpond.workloads.queries.query import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["DELAY", "session", "sliding", "timed", "tumbling"]

DELAY = "4 seconds"
"""How late an event may be."""


def timed(frame: DataFrame, column: str = "ts") -> DataFrame:
    return frame.withWatermark(column, DELAY)


def tumbling(windows: Windows, *, seconds: int, column: str = "ts") -> Column:
    """Windows that a benchmark may make slide."""
    return sliding(windows, seconds=seconds, slide=windows.seconds or seconds, column=column)


def sliding(windows: Windows, *, seconds: int, slide: int, column: str = "ts") -> Column:
    size = windows.seconds or seconds
    return F.window(column, f"{size} seconds", f"{windows.slide_seconds or slide} seconds")


def session(windows: Windows, *, gap: int, column: str = "ts") -> Column:
    return F.session_window(column, f"{windows.seconds or gap} seconds")
