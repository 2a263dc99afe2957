"""Aggregates over all rows of a window, and joins by window, against Spark's own result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from tests.oracle_data import VALUES, Shape, shapes
from tests.oracle_run import (
    Outputs,
    assert_same,
    check,
    configured,
    named,
    own_directory,
    run_both,
    stream,
    try_shapes,
)
from tests.streams import read_stream, write_batches

Query = Callable[[DataFrame, list[str]], DataFrame]
COLUMNS = {name: VALUES[name] for name in ("i32", "f64", "t", "b", "pair")}

UNMERGED = [
    "median(i32)",
    "percentile(i32, array(0.25, 0.75)) filter (where b)",
    "sort_array(collect_list(u))",
    "sort_array(collect_set(t))",
    "listagg(t, '-') within group (order by u)",
    "count(*)",
    "max(pair)",
]

GATHERED = [
    "median(i32)",
    "percentile(f64, 0.3)",
    "percentile(i32 + 1, 1.0)",
    "sort_array(collect_list(u))",
    "sort_array(collect_list(struct(t, pair)))",
    "sort_array(collect_list(f64))",
]
"""Functions that are computed before the rows reach Spark."""


def windowed(*window: str) -> Query:
    def query(rows: DataFrame, functions: list[str]) -> DataFrame:
        timed = rows.withWatermark("ts", "5 seconds")
        return timed.groupBy(F.window("ts", *window), "g").agg(*named(functions))

    return query


def an_expression_as_key(rows: DataFrame, functions: list[str]) -> DataFrame:
    timed = rows.withWatermark("ts", "5 seconds").groupBy(F.col("g") % 3, F.window("ts", "10 seconds"))
    return timed.agg(*named(functions), F.sort_array(F.collect_list("window.start")).alias("starts"))


def from_a_select(rows: DataFrame, functions: list[str]) -> DataFrame:
    window = F.window("ts", "12 seconds", "5 seconds").alias("w")
    made = rows.withWatermark("ts", "5 seconds").select("*", window)
    return made.groupBy("g", "w").agg(*named(functions))


def by_event_time(rows: DataFrame, functions: list[str]) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds").groupBy("ts").agg(*named(functions))


def without_keys(rows: DataFrame, functions: list[str]) -> DataFrame:
    timed = rows.withWatermark("ts", "3 seconds")
    return timed.groupBy(F.window("ts", "7 seconds", "3 seconds")).agg(*named(functions))


def some_in_no_window(rows: DataFrame, functions: list[str]) -> DataFrame:
    return windowed("10 seconds")(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")), functions)


CASES: dict[str, Query] = {
    "tumbling": windowed("10 seconds"),
    "sliding": windowed("20 seconds", "5 seconds"),
    "sliding, uneven, with an offset": windowed("13 seconds", "5 seconds", "2 seconds"),
    "an expression as key": an_expression_as_key,
    "a window column from below": from_a_select,
    "by event time": by_event_time,
    "no other key": without_keys,
    "some in no window": some_in_no_window,
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("functions", [UNMERGED, GATHERED], ids=["unmerged", "gathered"])
@pytest.mark.parametrize("name", CASES)
def test_aggregates_of_all_rows_of_a_window(
    spark: SparkSession, tmp_path: Path, name: str, functions: list[str]
) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path)
        check(spark, CASES[name](rows, functions), "append", tmp_path)

    try_shapes(shapes(), compare, f"rows {name}")


def test_unmerged_over_merged_on_rows_in_order(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withWatermark("ts", "2 seconds")
        counts = rows.groupBy(F.window("ts", "12 seconds", "4 seconds"), "g").agg(F.count("*").alias("n"))
        most = F.array_max(F.collect_list(F.struct("n", "g")))
        check(spark, counts.groupBy("window").agg(most.alias("top")), "append", tmp_path)

    try_shapes(shapes(in_order=True), compare, "unmerged over merged")


def with_applied_function(rows: Any) -> Any:
    def of_group(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"g": [key[0]], "start": [key[1]["start"]], "us": [sorted(group.u)]})

    window = F.window("ts", "10 seconds").alias("window")
    groups = rows.withWatermark("ts", "5 seconds").groupBy("g", window)
    return groups.applyInPandas(of_group, "g long, start timestamp, us array<long>")


def with_aggregate_in_pandas(rows: Any) -> Any:
    @F.pandas_udf("array<long>")  # type: ignore[call-overload, untyped-decorator]
    def in_order(values: pd.Series) -> Any:
        return sorted(values)

    groups = rows.withWatermark("ts", "5 seconds").groupBy("g", F.window("ts", "10 seconds"))
    return groups.agg(in_order("u").alias("us")).select("g", "window.start", "us")


@pytest.mark.parametrize("query", [with_applied_function, with_aggregate_in_pandas])
def test_python_code_gets_all_rows_of_a_window(
    spark: SparkSession, tmp_path: Path, query: Callable[[Any], Any]
) -> None:
    """Spark runs neither on a stream, or only batch by batch; an aggregate of its own gives the same."""

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).where("g is not null")
        groups = rows.withWatermark("ts", "5 seconds").groupBy("g", F.window("ts", "10 seconds"))
        expected = groups.agg(F.sort_array(F.collect_list("u")).alias("us"))
        _, theirs = run_both(spark, expected.select("g", "window.start", "us"), "append", tmp_path)
        ours = Outputs()
        started = (
            query(mp.stream(rows))
            .writeStream.foreachBatch(ours)
            .option("checkpointLocation", str(own_directory(tmp_path)))
            .trigger(availableNow=True)
            .start()
        )
        started.awaitTermination()
        assert_same(ours.total(), theirs.total(), ours.schema, "all batches")

    try_shapes(shapes(), compare, "applied")


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(
    "window", [("10 seconds",), ("12 seconds", "5 seconds")], ids=["tumbling", "sliding"]
)
def test_joins_by_window(spark: SparkSession, tmp_path: Path, how: str, window: tuple[str, ...]) -> None:
    """Spark gives pairs at once, Millpond when the window has ended: they agree on the windows that have."""

    def compare(shape: Shape) -> None:
        left, right = (
            stream(spark, shape, COLUMNS, tmp_path)
            .withWatermark("ts", "5 seconds")
            .select("g", F.window("ts", *window).alias("window"), F.col("u").alias(f"u{side}"), "t")
            .where(f"u{side} % 3 != {side}")
            for side in range(2)
        )
        right = right.withColumnRenamed("t", "other")
        frame = left.join(right, ["g", "window"], how)
        ours, theirs = run_both(spark, frame, "append", tmp_path)
        ended = {row[1] for row in ours.total()}
        assert ended, "no window ended, so the comparison shows nothing"
        assert_same(ours.total(), _of_windows(theirs, ended), ours.schema, "windows that ended")
        last = max(row[1][1] for row in ours.total())
        assert {row[1] for row in theirs.total() if row[1][1] <= last} == ended

    try_shapes(shapes(), compare, f"join {how} {window}")


def _of_windows(outputs: Outputs, windows: set[Any]) -> list[Any]:
    return [row for row in outputs.total() if row[1] in windows]


def test_a_join_by_window_of_few_rows_with_many(spark: SparkSession, tmp_path: Path) -> None:
    """The few come through the driver, the many from a task for each shard: Spark must not take the shards for its
    own partitions and bring the few to where its hash says."""
    schema = "k int, ts timestamp"
    for name, keys in (("few", range(0, 200, 10)), ("many", range(200))):
        first = [(key, datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC)) for key in keys]
        last = [(-1, datetime(2024, 1, 1, 0, 1, tzinfo=UTC))]
        write_batches(tmp_path / name, [as_table(first), as_table(last)])
    few, many = (
        mp.stream(read_stream(spark, tmp_path / name, schema))
        .withWatermark("ts", "0 seconds")
        .select("k", F.window("ts", "10 seconds").alias("window"), F.lit(name).alias(name))
        for name in ("few", "many")
    )
    found: list[Any] = []
    plain = {"spark__sql__adaptive__enabled": "false", "spark__sql__autoBroadcastJoinThreshold": "-1"}
    with configured(spark, **plain, spark__sql__shuffle__partitions="3"):
        query = (
            few.join(many, ["k", "window"], "left")
            .writeStream.foreachBatch(lambda rows, _: found.extend(rows.select("k", "many").collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("millpond.emit.localRows", "100")
            .option("shards", "4")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert sorted(found) == [(key, "many") for key in range(0, 200, 10)]


def as_table(rows: list[tuple[int, datetime]]) -> pa.Table:
    keys, times = zip(*rows, strict=True)
    return pa.table({"k": pa.array(keys, pa.int32()), "ts": pa.array(times, pa.timestamp("us", "UTC"))})
