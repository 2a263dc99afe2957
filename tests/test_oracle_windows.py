"""Windows and event time in every output mode, with late rows, against Spark's own result batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.semantics.operator import OutputMode
from tests.oracle_data import VALUES, Shape, shapes
from tests.oracle_run import check, named, stream, try_shapes

COLUMNS = {name: VALUES[name] for name in ("i32", "f64", "d18", "t", "b", "pair", "list")}

MIXED = [
    "count(*)",
    "count(t)",
    "sum(i32)",
    "sum(f64)",
    "avg(d18)",
    "min(t)",
    "max(pair)",
    "max(list) filter (where b)",
    "min_by(t, u)",
    "max_by(pair, us)",
    "bit_xor(i32)",
    "bool_and(b)",
    "stddev_pop(i32)",
]


def windowed(column: str, *window: str) -> Callable[[DataFrame], DataFrame]:
    def query(rows: DataFrame) -> DataFrame:
        return (
            rows.withWatermark(column, "5 seconds").groupBy(F.window(column, *window), "g").agg(*named(MIXED))
        )

    return query


def from_a_select(rows: DataFrame) -> DataFrame:
    made = rows.withWatermark("ts", "5 seconds").select(
        "*", F.window("ts", "12 seconds", "5 seconds").alias("w")
    )
    return made.groupBy("g", "w").agg(*named(MIXED), F.max("w.start").alias("start"))


def made_before(rows: DataFrame) -> DataFrame:
    """Nothing looks at the window up to the grouping, which is over a column and under a filter that others make."""
    made = rows.withWatermark("ts", "5 seconds").withColumn("w", F.window("ts", "13 seconds", "5 seconds"))
    above = made.where("i32 % 3 > 0 or i32 is null").select("*", (F.col("g") % 2).alias("half"))
    return above.withColumnRenamed("w", "window").groupBy("window", "half").agg(*named(MIXED))


def by_event_time(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds").groupBy("ts").agg(*named(MIXED))


def some_without_time(rows: DataFrame) -> DataFrame:
    """A null among the event times is a group that never expires."""
    return by_event_time(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")))


def some_in_no_window(rows: DataFrame) -> DataFrame:
    return SLIDING(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")))


def time_without_a_zone(rows: DataFrame) -> DataFrame:
    """Spark takes no watermark over such a column, so its windows never close."""
    timed = rows.withWatermark("ts", "5 seconds")
    return timed.groupBy(F.window("nts", "9 seconds", "4 seconds", "1 second"), "g").agg(*named(MIXED))


def without_keys(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("ts", "3 seconds")
        .groupBy(F.window("ts", "7 seconds", "3 seconds"))
        .agg(*named(MIXED))
    )


def without_watermark(rows: DataFrame) -> DataFrame:
    return rows.groupBy("g", F.window("ts", "20 seconds", "10 seconds")).agg(*named(MIXED))


def with_having(rows: DataFrame) -> DataFrame:
    counts = (
        rows.where("i32 > 0 or b")
        .withWatermark("ts", "5 seconds")
        .groupBy((F.col("g") % 3).alias("third"), F.window("ts", "10 seconds"))
        .agg(F.count("*").alias("n"), (F.sum("i32") / (F.count("b") + 1)).alias("ratio"))
    )
    return counts.where(counts["n"] > 2).select("third", counts["window.end"].alias("until"), "ratio")


TUMBLING = windowed("ts", "10 seconds")
OFFSET = windowed("ts", "10 seconds", "10 seconds", "3 seconds")
SLIDING = windowed("ts", "20 seconds", "5 seconds")
UNEVEN = windowed("ts", "13 seconds", "5 seconds", "2 seconds")

CASES: list[tuple[str, OutputMode, Callable[[DataFrame], DataFrame]]] = [
    ("tumbling", "append", TUMBLING),
    ("tumbling with an offset", "update", OFFSET),
    ("sliding", "append", SLIDING),
    ("sliding", "update", SLIDING),
    ("sliding, uneven, with an offset", "append", UNEVEN),
    ("sliding, uneven, with an offset", "update", UNEVEN),
    ("sliding, uneven, with an offset", "complete", UNEVEN),
    ("time without a zone", "update", time_without_a_zone),
    ("a window column from below", "append", from_a_select),
    ("a window column from below", "update", from_a_select),
    ("a window column that is handed on", "append", made_before),
    ("a window column that is handed on", "update", made_before),
    ("by event time", "append", by_event_time),
    ("by event time", "update", by_event_time),
    ("some without time", "append", some_without_time),
    ("some without time", "update", some_without_time),
    ("some in no window", "update", some_in_no_window),
    ("no other key", "append", without_keys),
    ("no watermark", "update", without_watermark),
    ("having", "update", with_having),
]


@pytest.mark.sample(9)
@pytest.mark.parametrize(("name", "mode", "query"), CASES, ids=[f"{name}: {mode}" for name, mode, _ in CASES])
def test_windows(
    spark: SparkSession, tmp_path: Path, name: str, mode: OutputMode, query: Callable[[DataFrame], DataFrame]
) -> None:
    def compare(shape: Shape) -> None:
        check(spark, query(stream(spark, shape, COLUMNS, tmp_path)), mode, tmp_path)

    try_shapes(shapes(), compare, f"{name} {mode}")


def test_first_and_last_in_tumbling_windows(spark: SparkSession, tmp_path: Path) -> None:
    """In sliding ones Spark's answer is that of arrival, Millpond's that of time: they agree on rows in order."""
    functions = [f"{f}(n){nulls}" for f in ("first", "last", "any_value") for nulls in ("", " ignore nulls")]

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withWatermark("ts", "5 seconds")
        frame = rows.groupBy("g", F.window("ts", "10 seconds")).agg(*named(functions))
        check(spark, frame, "append", tmp_path)

    try_shapes(shapes(), compare, "first and last, tumbling")


def test_first_and_last_in_sliding_windows_over_rows_in_order(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withWatermark("ts", "5 seconds")
        frame = rows.groupBy("g", F.window("ts", "13 seconds", "5 seconds")).agg(F.first("n"), F.last("n"))
        check(spark, frame, "update", tmp_path)

    try_shapes(shapes(in_order=True), compare, "first and last, sliding")


def hottest(rows: DataFrame) -> DataFrame:
    """The shape of NEXMark's fifth query: the most of a window's counts."""
    counts = (
        rows.withWatermark("ts", "2 seconds")
        .groupBy(F.window("ts", "12 seconds", "4 seconds"), "g")
        .agg(F.count("*").alias("n"), F.max("t").alias("t"))
    )
    return counts.groupBy("window").agg(
        F.max("n"), F.sum("n"), F.count("*"), F.max_by("t", F.struct("n", "g")), F.min(F.struct("t", "g"))
    )


def longer_windows(rows: DataFrame) -> DataFrame:
    short = (
        rows.withWatermark("ts", "2 seconds")
        .groupBy(F.window("ts", "5 seconds"), "g")
        .agg(F.sum("i32").alias("s"))
    )
    return short.groupBy(F.window("window", "15 seconds")).agg(F.sum("s"), F.avg("s"), F.count("*"))


@pytest.mark.parametrize("query", [hottest, longer_windows])
def test_two_aggregates_over_rows_in_order(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame]
) -> None:
    def compare(shape: Shape) -> None:
        check(spark, query(stream(spark, shape, COLUMNS, tmp_path)), "append", tmp_path)

    try_shapes(shapes(in_order=True), compare, query.__name__)
