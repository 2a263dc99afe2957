"""A query for each store and each form of what is merged, over the same prepared files. Each puts its batches out
through a function that is idempotent by batch id."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.spark.frame import StreamFrame
from millpond.spark.query import MillpondQuery
from tests.kill_queries import BY_TASKS, SCHEMA, Results, bids
from tests.streams import read_stream, write_batches

BATCHES = 10
OBSERVED = {"millpond.observe.bytes": "4k"}
"""So that rows of unknown pattern move while the query runs."""


def write_input(directory: Path) -> None:
    write_batches(directory, bids(BATCHES, rows=60))


def _timed(stream: DataFrame) -> DataFrame:
    return stream.withWatermark("ts", "4 seconds")


def _join(stream: DataFrame) -> StreamFrame:
    left, right = (
        _timed(stream).toDF(*(side + name for name in stream.columns)) for side in ("left_", "right_")
    )
    near = (
        "left_bidder = right_bidder and left_price < right_price - 500 and left_ts >= right_ts - interval 5 seconds "
        "and left_ts <= right_ts + interval 5 seconds"
    )
    return mp.stream(left).join(right, F.expr(near), "full_outer")


def _lookback(stream: DataFrame) -> StreamFrame:
    timed = mp.stream(_timed(stream))
    return timed.lookback(timed, on="bidder", between=("20 seconds", "10 seconds"), how="left")


def _window_rows(stream: DataFrame) -> StreamFrame:
    groups = mp.stream(_timed(stream)).groupBy("bidder", F.window("ts", "10 seconds", "5 seconds"))
    return groups.agg(F.sort_array(F.collect_list("price")).alias("prices"))


def _session_rows(stream: DataFrame) -> StreamFrame:
    groups = mp.stream(_timed(stream)).groupBy("bidder", F.session_window("ts", "6 seconds"))
    return groups.agg(F.sort_array(F.collect_list("price")).alias("prices"))


def _bidders_windows(times: pa.Array, bidders: pa.Array) -> Any:
    """Of each bidder and second its own."""
    start = times.cast(pa.int64()).to_numpy() // 1_000_000 * 1_000_000
    ends = start + 20_000_000 + bidders.to_numpy() * 101_003
    return pa.array(start).cast(times.type), pa.array(ends).cast(times.type)


def _observed_rows(stream: DataFrame) -> StreamFrame:
    groups = mp.stream(_timed(stream)).groupBy("bidder", mp.window_function(_bidders_windows)("ts", "bidder"))
    return groups.agg(F.sort_array(F.collect_list("price")).alias("prices"))


def _dedup(stream: DataFrame) -> StreamFrame:
    return mp.stream(_timed(stream)).dropDuplicatesWithinWatermark(["bidder"])


def _group_rows(stream: DataFrame) -> StreamFrame:
    return mp.stream(stream).groupBy("bidder").agg(F.sort_array(F.collect_list("price")).alias("prices"))


def _sessions(stream: DataFrame) -> StreamFrame:
    groups = mp.stream(_timed(stream)).groupBy("bidder", F.session_window("ts", "6 seconds"))
    return groups.agg(F.count("*").alias("n"), F.sum("price").alias("total"))


def _count_windows(stream: DataFrame) -> StreamFrame:
    groups = mp.stream(stream).groupBy("bidder", mp.count_window(4))
    return groups.agg(F.count("*").alias("n"), F.sum("price").alias("total"))


def _top(stream: DataFrame) -> StreamFrame:
    return mp.stream(stream).groupBy("bidder").top(3, by="price")


QUERIES: dict[str, Callable[[DataFrame], StreamFrame]] = {
    "join": _join,
    "lookback": _lookback,
    "window-rows": _window_rows,
    "session-rows": _session_rows,
    "observed-rows": _observed_rows,
    "dedup": _dedup,
    "group-rows": _group_rows,
    "sessions": _sessions,
    "count-windows": _count_windows,
    "top": _top,
}
IN_UPDATE_MODE = {"group-rows", "top"}


def start_query(name: str, spark: SparkSession, source: Path, root: Path, **options: Any) -> MillpondQuery:
    out = root / name
    out.mkdir(parents=True, exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        hidden = out / f"_{batch_id}"
        hidden.write_text(json.dumps(sorted(str(tuple(row)) for row in frame.collect())))
        hidden.replace(out / f"{batch_id}.json")

    return (
        QUERIES[name](read_stream(spark, source, SCHEMA))
        .writeStream.outputMode("update" if name in IN_UPDATE_MODE else "append")
        .foreachBatch(write)
        .options(
            checkpointLocation=str(root / f"{name}-checkpoint"), shards=2, **BY_TASKS, **OBSERVED, **options
        )
        .trigger(availableNow=True)
        .start()
    )


def results(root: Path) -> Results:
    """A multiset of rows for each query and batch."""
    return {
        f"{name} {file.stem}": Counter(json.loads(file.read_text()))
        for name in QUERIES
        for file in (root / name).glob("*.json")
    }
