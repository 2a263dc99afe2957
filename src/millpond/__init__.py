"""Millpond: a state layer for stateful stream processing on Spark.

    import millpond as mp
    mp.stream(df).groupBy(...).agg(...).writeStream...

Importing starts nothing; Spark is imported at the first use of `stream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import (
    Conflict,
    CorruptState,
    Fenced,
    InternalError,
    InvalidQuery,
    MillpondError,
    Unavailable,
)
from millpond.hints import checked, hint

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

    from millpond.hints import NextRead, Pattern
    from millpond.spark.count_windows import CountWindow
    from millpond.spark.custom_windows import WindowFunction
    from millpond.spark.frame import StreamFrame

__all__ = [
    "Conflict",
    "CorruptState",
    "Fenced",
    "InternalError",
    "InvalidQuery",
    "MillpondError",
    "Unavailable",
    "count_window",
    "hint",
    "register",
    "stream",
    "window_function",
]


def count_window(
    rows: int, *, pattern: Pattern | None = None, next_read: NextRead | None = None
) -> CountWindow:
    """A window for `mp.stream(df).groupBy(...)`: every so many rows of a key, in the order in which they come. Its
    column is a struct with the window's `number` among those of the key, from 0. `pattern`, `next_read`: as in
    `hint`."""
    from millpond.spark.count_windows import count_window as window

    return window(rows, checked(pattern, next_read))


def register(spark: SparkSession) -> None:
    """Makes the generated streams known to a session: `nexmark`, `linear-road`, `cluster-monitoring`, `ysb`,
    `readwrite` and `logistics`, for `spark.readStream.format(...)` and `spark.read.format(...)`."""
    from millpond.workloads.sources import register as register_sources

    register_sources(spark)


def stream(frame: DataFrame | StreamFrame) -> StreamFrame:
    """Gives a streaming DataFrame, from the DataFrame API or SQL, a state layer of its own."""
    from millpond.spark.frame import stream as wrap

    return wrap(frame)


def window_function(
    assign: Callable[..., tuple[Any, Any]],
    *,
    pattern: Pattern | None = None,
    next_read: NextRead | None = None,
) -> WindowFunction:
    """Windows of one's own for `mp.stream(df).groupBy("k", mp.window_function(assign)("ts"))`.

    `assign` gets the columns that are named, as Arrow arrays of some rows, and returns the starts and the ends of
    these rows' windows, which the watermark of the first column closes. `pattern`, `next_read`: as in `hint`."""
    from millpond.spark.custom_windows import WindowFunction

    return WindowFunction(assign, checked(pattern, next_read))
