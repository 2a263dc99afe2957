"""Session windows with late rows and rows out of order, against Spark's own result batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.semantics.operator import OutputMode
from tests.oracle_data import KEYS, OWN_GAPS, VALUES, Shape, shapes
from tests.oracle_run import check, named, stream, try_shapes
from tests.streams import read_stream, write_batches

COLUMNS = {
    **{name: VALUES[name] for name in ("i32", "f64", "d18", "t", "b", "pair")},
    **{name: KEYS[name] for name in ("k_t", "k_b")},
}

MIXED = [
    "count(*)",
    "count(t)",
    "sum(i32)",
    "avg(d18)",
    "min(t)",
    "max(pair) filter (where b)",
    "max_by(pair, us)",
    "bit_xor(i32)",
    "stddev_pop(i32)",
]
FIXED = ["count(*)", "sum(i32)", "avg(f64)", "max(i32)"]


def timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds")


def fixed_gap(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", "3 seconds"), "g").agg(*named(FIXED))


def varying_aggregates(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy("g", F.session_window("ts", "2 seconds")).agg(*named(MIXED))


def a_gap_per_row(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", F.expr(OWN_GAPS)), "g").agg(*named(FIXED))


def several_keys(rows: DataFrame) -> DataFrame:
    """Nulls among them."""
    return (
        timed(rows)
        .groupBy("k_t", F.session_window("ts", "4 seconds"), (F.col("g") % 2).alias("half"), "k_b")
        .agg(*named(FIXED))
    )


def made_in_a_select(rows: DataFrame) -> DataFrame:
    made = timed(rows).select("*", F.session_window("ts", "3 seconds").alias("w"))
    return made.groupBy("g", "w").agg(F.count("*").alias("n"), F.max("w.start").alias("last"))


def with_having(rows: DataFrame) -> DataFrame:
    counts = timed(rows).groupBy(F.session_window("ts", "3 seconds"), "g").agg(F.count("*").alias("n"))
    return counts.where("n > 1").select("g", counts["session_window.end"].alias("until"), "n")


def some_without_time(rows: DataFrame) -> DataFrame:
    return fixed_gap(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")))


def of_a_day(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", "1 day"), "g").agg(*named(FIXED))


def without_watermark(rows: DataFrame) -> DataFrame:
    return rows.groupBy("g", F.session_window("ts", "3 seconds")).agg(*named(MIXED))


CASES: list[tuple[str, OutputMode, Callable[[DataFrame], DataFrame]]] = [
    ("fixed gap", "append", fixed_gap),
    ("fixed gap", "complete", fixed_gap),
    ("aggregates that vary in length", "append", varying_aggregates),
    ("a gap per row", "append", a_gap_per_row),
    ("a gap per row", "complete", a_gap_per_row),
    ("several keys", "append", several_keys),
    ("made in a select", "append", made_in_a_select),
    ("having", "append", with_having),
    ("some without time", "append", some_without_time),
    ("a gap of a day", "append", of_a_day),
    ("no watermark", "complete", without_watermark),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "mode", "query"), CASES, ids=[f"{name}: {mode}" for name, mode, _ in CASES])
def test_sessions(
    spark: SparkSession, tmp_path: Path, name: str, mode: OutputMode, query: Callable[[DataFrame], DataFrame]
) -> None:
    def compare(shape: Shape) -> None:
        check(spark, query(stream(spark, shape, COLUMNS, tmp_path)), mode, tmp_path)

    try_shapes(shapes(), compare, f"sessions, {name} {mode}")


@pytest.mark.parametrize("result", ["count(*)", "median(v)"])
def test_a_row_behind_the_watermark_extends_a_session_that_has_ended(
    spark: SparkSession, tmp_path: Path, result: str
) -> None:
    """Its own session ends after the watermark, so it is in time, and the one that it belongs to is still there."""
    directory = tmp_path / "rows"
    for second in ((10,), (30,), (18,), (32, 60)):
        times = pa.array([at * 1_000_000 for at in second], pa.timestamp("us", "UTC"))
        write_batches(directory, [pa.table({"ts": times, "v": pa.array(second, pa.int64())})])
    rows = read_stream(spark, directory, "ts timestamp, v long").withWatermark("ts", "5 seconds")
    frame = rows.groupBy((F.col("v") * 0).alias("k"), F.session_window("ts", "10 seconds")).agg(
        F.expr(result).alias("r")
    )
    given = check(spark, frame, "append", tmp_path).total()
    ends = sorted(row[1][1] - row[1][0] for row in given)
    assert ends == [timedelta(seconds=12), timedelta(seconds=18)]


def test_first_and_last_over_rows_in_order(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = timed(stream(spark, shape, COLUMNS, tmp_path))
        frame = rows.groupBy("g", F.session_window("ts", "3 seconds")).agg(F.first("n"), F.last("n"))
        check(spark, frame, "append", tmp_path)

    try_shapes(shapes(in_order=True), compare, "sessions, first and last")


def test_a_session_window_as_the_only_key(spark: SparkSession, tmp_path: Path) -> None:
    """Spark runs it on tables alone; there the session that is still open counts too."""

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path)
        frame = timed(rows).groupBy(F.session_window("ts", "200 milliseconds")).agg(*named(FIXED))
        given: list[tuple[object, ...]] = []
        query = (
            mp.stream(frame)
            .writeStream.outputMode("append")
            .foreachBatch(lambda batch, _: given.extend(tuple(row) for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / f"only-{len(list(tmp_path.iterdir()))}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        directory = max(tmp_path.glob("rows-*"), key=lambda path: int(path.name.removeprefix("rows-")))
        table = spark.read.schema(rows.schema).parquet(str(directory))
        window: Column = F.session_window("ts", "200 milliseconds")
        expected = [tuple(row) for row in table.groupBy(window).agg(*named(FIXED)).collect()]
        expected.sort(key=repr)
        assert sorted(map(repr, given)) == list(map(repr, expected[:-1]))

    try_shapes(shapes(in_order=True), compare, "sessions, only key")


def test_sessions_and_windows_of_their_ends_over_rows_in_order(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        counts = (
            timed(stream(spark, shape, COLUMNS, tmp_path))
            .groupBy(F.session_window("ts", "2 seconds"), "g")
            .agg(F.count("*").alias("n"))
        )
        frame = counts.groupBy(F.window(F.window_time("session_window"), "10 seconds")).agg(F.sum("n"))
        check(spark, frame, "append", tmp_path)

    try_shapes(shapes(in_order=True), compare, "sessions, then windows")
