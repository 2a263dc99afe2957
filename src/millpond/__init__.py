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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond.spark.frame import StreamFrame

__all__ = [
    "Conflict",
    "CorruptState",
    "Fenced",
    "InternalError",
    "InvalidQuery",
    "MillpondError",
    "Unavailable",
    "register",
    "stream",
]


def register(spark: SparkSession) -> None:
    """Makes the generated streams known to a session: `nexmark`, `linear-road`, `cluster-monitoring`, `ysb`,
    `readwrite` and `logistics`, for `spark.readStream.format(...)` and `spark.read.format(...)`."""
    from millpond.workloads.sources import register as register_sources

    register_sources(spark)


def stream(frame: DataFrame | StreamFrame) -> StreamFrame:
    """Gives a streaming DataFrame, from the DataFrame API or SQL, a state layer of its own."""
    from millpond.spark.frame import stream as wrap

    return wrap(frame)
