"""Aggregates that can't be merged, over session windows with late rows and rows out of order, against Spark's own
result batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from tests.oracle_data import KEYS, VALUES, Shape, shapes
from tests.oracle_run import check, named, stream, try_shapes

COLUMNS = {
    **{name: VALUES[name] for name in ("i32", "f64", "t", "b", "pair")},
    **{name: KEYS[name] for name in ("k_t", "k_b", "k_f64")},
}

UNMERGED = [
    "median(i32)",
    "sort_array(collect_list(t))",
    "sort_array(collect_set(i32))",
    "percentile(f64, 0.25)",
    "sum(i32) filter (where b)",
    "count(*)",
]


def timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds")


def unmerged(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", "3 seconds"), "g").agg(*named(UNMERGED))


def median(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy("g", F.session_window("ts", "2 seconds").alias("w")).agg(F.median("i32"))


def several_keys(rows: DataFrame) -> DataFrame:
    """Nulls among them, and zeros and numbers that are none."""
    keys = ("k_t", F.session_window("ts", "4 seconds"), (F.col("g") % 2).alias("half"), "k_b", "k_f64")
    return timed(rows).groupBy(*keys).agg(F.median("i32"), F.max("t"))


def with_having(rows: DataFrame) -> DataFrame:
    lists = (
        timed(rows).groupBy(F.session_window("ts", "3 seconds"), "g").agg(F.collect_list("i32").alias("l"))
    )
    return lists.where("size(l) > 1").select("g", lists["session_window.end"], F.array_max("l"))


def some_without_time(rows: DataFrame) -> DataFrame:
    return unmerged(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")))


def the_only_thing_kept(rows: DataFrame) -> DataFrame:
    """No column beside the key."""
    return timed(rows).groupBy("g", F.session_window("ts", "1 second")).agg(F.collect_list(F.lit(1)))


CASES: list[tuple[str, Callable[[DataFrame], DataFrame]]] = [
    ("functions", unmerged),
    ("median", median),
    ("several keys", several_keys),
    ("having", with_having),
    ("some without time", some_without_time),
    ("nothing kept", the_only_thing_kept),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "query"), CASES, ids=[name for name, _ in CASES])
def test_rows_of_sessions(
    spark: SparkSession, tmp_path: Path, name: str, query: Callable[[DataFrame], DataFrame]
) -> None:
    def compare(shape: Shape) -> None:
        frame = query(stream(spark, shape, COLUMNS, tmp_path))
        check(spark, frame, "append", tmp_path, **{"millpond.read.batchRatio": "0.5"})

    try_shapes(shapes(), compare, f"session rows, {name}")


REFUSED: list[tuple[str, Callable[[DataFrame], DataFrame]]] = [
    (
        "its gap has to be a constant",
        lambda rows: rows.groupBy("g", F.session_window("ts", F.expr("if(b, '1 second', '2 seconds')"))).agg(
            F.median("i32")
        ),
    ),
    (
        "its gap has to be a constant",
        lambda rows: rows.groupBy("g", F.session_window("ts", "1 day")).agg(F.median("i32")),
    ),
    (
        "looks at the session window of each row",
        lambda rows: (
            rows.select("*", F.session_window("ts", "1 second").alias("w"))
            .groupBy("g", "w")
            .agg(F.collect_list("w.start"))
        ),
    ),
]


@pytest.mark.parametrize(("message", "query"), REFUSED, ids=["per row", "days", "the window itself"])
def test_what_can_not_be_kept_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, message: str, query: Callable[[DataFrame], DataFrame]
) -> None:
    rows = spark.readStream.format("rate").load()
    frame = rows.selectExpr("timestamp as ts", "value % 3 as g", "value as i32", "value % 2 = 0 as b")
    started = mp.stream(query(timed(frame))).writeStream.outputMode("append").format("noop")
    with pytest.raises(InvalidQuery, match=message):
        started.option("checkpointLocation", str(tmp_path / "c")).start()
