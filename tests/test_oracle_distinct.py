"""DISTINCT aggregates, which Spark runs on no stream: against sets that Spark gathers on the same stream, batch by
batch, and against Spark's own result on the same rows as a batch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.plan import cut
from tests.oracle_data import KEYS, VALUES, Shape, schema_of, shapes, tables
from tests.oracle_run import FEW_ROWS, Outputs, assert_same, check, configured, stream, try_shapes
from tests.streams import read_stream, write_batches

COLUMNS = {
    **{name: KEYS[name] for name in ("k_i32", "k_d9", "k_f64", "k_t", "k_b", "k_nest")},
    **{name: VALUES[name] for name in ("i32", "b")},
}

AS_SETS = {
    "count(distinct k_t)": "cast(size(collect_set(k_t)) as bigint)",
    "count(distinct k_i32, k_b)": "cast(size(collect_set(k_i32 || '/' || k_b)) as bigint)",
    "sum(distinct k_i32) filter (where b)": (
        "aggregate(collect_set(k_i32) filter (where b), cast(null as bigint), (a, v) -> coalesce(a, 0L) + v)"
    ),
    "count(*)": "count(*)",
    "max(u)": "max(u)",
    "sum(i32)": "sum(i32)",
}
"""How Spark computes them on a stream."""


def ours() -> list[Column]:
    return [F.expr(f"{function} as `{function}`") for function in AS_SETS]


def theirs() -> list[Column]:
    return [F.expr(f"{sets} as `{function}`") for function, sets in AS_SETS.items()]


def timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds")


CASES: list[tuple[str, OutputMode, list[str]]] = [
    ("tumbling", "append", ["g", "window(ts, '10 seconds')"]),
    ("tumbling", "update", ["g", "window(ts, '10 seconds')"]),
    ("sliding", "append", ["g % 3", "window(ts, '13 seconds', '5 seconds')"]),
    ("no other key", "append", ["window(ts, '7 seconds', '3 seconds')"]),
    ("sessions", "append", ["g", "session_window(ts, '3 seconds')"]),
    ("by key", "update", ["k_f64", "g"]),
    ("by key", "complete", ["k_f64", "g"]),
    ("no key", "update", []),
    ("no key", "complete", []),
]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "mode", "keys"), CASES, ids=[f"{name}: {mode}" for name, mode, _ in CASES])
def test_distinct_values_are_those_of_sets(
    spark: SparkSession, tmp_path: Path, name: str, mode: OutputMode, keys: list[str]
) -> None:
    def compare(shape: Shape) -> None:
        groups = timed(stream(spark, shape, COLUMNS, tmp_path)).groupBy(*map(F.expr, keys))
        check(spark, groups.agg(*theirs()), mode, tmp_path, own=mp.stream(groups.agg(*ours())))

    try_shapes(shapes(), compare, f"distinct, {name} {mode}")


def test_distinct_values_of_one_column_in_all_sessions(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = timed(stream(spark, shape, COLUMNS, tmp_path))
        groups = rows.groupBy("g", F.session_window("ts", "3 seconds"))
        own = mp.stream(groups.agg(*ours()[:1], F.count("*")))
        check(spark, groups.agg(*theirs()[:1], F.count("*")), "complete", tmp_path, own=own)

    try_shapes(shapes(), compare, "distinct, all sessions")


@pytest.mark.parametrize("places", [(0, 1), (2,)], ids=["several columns", "a filter"])
def test_what_spark_counts_twice_in_sessions_is_refused(
    spark: SparkSession, tmp_path: Path, places: tuple[int, ...]
) -> None:
    rows = timed(stream(spark, Shape(1, (1,), 1, 0.0, 0.0), COLUMNS, tmp_path))
    functions = [ours()[place] for place in places]
    frame = rows.groupBy("g", F.session_window("ts", "3 seconds")).agg(*functions)
    with pytest.raises(InvalidQuery, match=r"distinct over session_window: .*use outputMode\('append'\)"):
        cut(frame, "complete")
    assert cut(frame, "append")


def eight_seconds(times: pa.Array) -> tuple[Any, Any]:
    start = pc.floor_temporal(times, multiple=8, unit="second")
    return start, pc.add(start, pa.scalar(timedelta(seconds=8)))


def test_distinct_values_of_custom_windows(spark: SparkSession, tmp_path: Path) -> None:
    window = mp.window_function(eight_seconds)("ts").alias("w")

    def compare(shape: Shape) -> None:
        rows = timed(stream(spark, shape, COLUMNS, tmp_path))
        with_window = window.rows(rows).select("*", window.column(rows))
        own = mp.stream(rows).groupBy("g", window).agg(*ours())
        check(spark, with_window.groupBy("g", "w").agg(*theirs()), "append", tmp_path, own=own)

    try_shapes(shapes(), compare, "distinct, custom windows")


OF_ONE_COLUMN = ["count(distinct k_f64)", "count(*)", "max(distinct u)", "median(i32)"]
OF_SEVERAL = [
    *OF_ONE_COLUMN,
    "count(distinct k_f64) filter (where b)",
    "count(distinct k_nest)",
    "count(distinct k_t, k_b)",
    "sum(distinct k_d9)",
    "avg(distinct k_i32 % 7 + g)",
    "array_sort(collect_list(distinct k_t))",
]
IN_TASKS = {
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__shuffle__partitions": "3",
    "spark__sql__adaptive__enabled": "false",
}
"""Rows are not brought together unless they have to be."""


@pytest.mark.parametrize(
    ("window", "functions"),
    [("window(ts, '10 seconds')", OF_ONE_COLUMN), ("window(ts, '12 seconds', '4 seconds')", OF_SEVERAL)],
    ids=["tumbling, one column", "sliding, several"],
)
def test_a_restarted_query_gives_what_spark_gives_for_a_batch(
    spark: SparkSession, tmp_path: Path, window: str, functions: list[str]
) -> None:
    columns = ", ".join(f"{function} as `{function}`" for function in functions)
    given, expected = Outputs(), Outputs()

    def query(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rows_of_groups")
        return spark.sql(
            f"select window, g, {columns} from rows_of_groups group by g, {window} having count(distinct k_f64) > 1"
        )

    # Rows are in order, so that none is late; the last lies in a window that does not end.
    shape = Shape(seed=11, rows=(50, 50, 50, 50), groups=9, nulls=0.2, disorder_s=0.0)
    batches = tables(shape, COLUMNS)
    for part in (batches[:2], batches[2:]):
        write_batches(tmp_path / "rows", part)
        rows = read_stream(spark, tmp_path / "rows", schema_of(COLUMNS)).withWatermark("ts", "1 second")
        with configured(spark, **IN_TASKS):
            running = (
                mp.stream(query(rows))
                .writeStream.foreachBatch(given)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .options(**{"millpond.emit.localRows": "0", "shards": "4"})
                .trigger(availableNow=True)
                .start()
            )
        running.awaitTermination()
    (last,) = batches[-1]["u"].to_pylist()
    whole = spark.read.schema(schema_of(COLUMNS)).parquet(str(tmp_path / "rows"))
    with configured(spark, **FEW_ROWS):
        expected(query(whole.where(F.col("u") != last)), 0)
    assert expected.total()
    assert given.schema == expected.schema
    assert_same(given.total(), expected.total(), given.schema, "all batches")
