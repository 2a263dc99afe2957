"""Batches without rows, as Spark runs them where the watermark has moved: when the source is idle, and at the end of
what is available."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import millpond as mp
from tests.join_run import compare_by_batch, random_batches, run_both, sides
from tests.kill_queries import joined_results, start_joined, write_input
from tests.oracle_run import Outputs, assert_same, configured
from tests.streams import read_stream, write_batches
from tests.test_kill import die_at_point, driver

INTERVAL = "lk = rk and lts >= rts - interval 10 seconds and lts <= rts + interval 20 seconds"

Enabled = pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])


def no_data(spark: SparkSession, enabled: bool) -> Any:
    return configured(
        spark,
        spark__sql__streaming__noDataMicroBatches__enabled=str(enabled).lower(),
        spark__sql__streaming__statefulOperator__allowMultiple="false",
    )


def in_order(seed: str, batches: int = 4) -> list[pa.Table]:
    """No row is behind another, so that it does not matter which of two watermarks makes one late."""
    tables = random_batches(seed, batches=batches, lateness=0)
    return [table.filter(table["ts"].is_valid()).sort_by("ts") for table in tables]


def watermarked(
    spark: SparkSession, tmp_path: Path, seed: str, batches: int = 4
) -> tuple[DataFrame, DataFrame]:
    left, right = sides(spark, tmp_path, in_order(f"l{seed}", batches), in_order(f"r{seed}", batches))
    return left.withWatermark("lts", "8 seconds"), right.withWatermark("rts", "5 seconds")


@Enabled
def test_what_is_available_ends_with_a_batch_for_what_the_last_rows_made_due(
    spark: SparkSession, enabled: bool, tmp_path: Path
) -> None:
    left, right = watermarked(spark, tmp_path, "flush")
    frame = left.join(right, F.expr(INTERVAL), "left_outer")
    ours, theirs = run_both(spark, frame, tmp_path, no_data=enabled)
    compare_by_batch(ours, theirs)
    assert max(ours.batches) == (4 if enabled else 3)
    if enabled:
        assert ours.batches[4], "nothing was due, so the comparison shows nothing"


def seen_keys(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds").dropDuplicatesWithinWatermark(["k"])


def seen_times(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds").dropDuplicates(["k", "ts"])


def start(
    frame: DataFrame, outputs: Outputs, checkpoint: Path, *, millpond: bool, now: bool
) -> StreamingQuery:
    writer = (mp.stream(frame) if millpond else frame).writeStream.foreachBatch(outputs)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()


def keyed(*rows: tuple[int, int]) -> pa.Table:
    """Rows of a key and a time in seconds."""
    times = pa.array([seconds * 1_000_000 for _, seconds in rows], pa.timestamp("us", "UTC"))
    return pa.table({"k": pa.array([key for key, _ in rows], pa.int32()), "ts": times})


KEYED = [
    keyed((1, 100), (2, 101)),
    keyed((3, 200)),  # the watermark passes the others, whose keys a batch without rows forgets
    keyed((1, 201), (2, 202), (3, 203)),
    keyed((4, 300)),
    keyed((1, 301), (3, 302), (4, 303)),
]


@Enabled
@pytest.mark.parametrize("query", [seen_keys, seen_times], ids=lambda query: query.__name__)
def test_keys_are_forgotten_while_the_source_is_idle(
    spark: SparkSession, enabled: bool, query: Callable[[DataFrame], DataFrame], tmp_path: Path
) -> None:
    ours, theirs = Outputs(), Outputs()
    source = tmp_path / "rows"
    source.mkdir()
    frame = query(read_stream(spark, source, "k int, ts timestamp"))
    with no_data(spark, enabled):
        queries = [
            start(frame, ours, tmp_path / "millpond", millpond=True, now=False),
            start(frame, theirs, tmp_path / "spark", millpond=False, now=False),
        ]
        try:
            for table in KEYED:
                write_batches(source, [table])
                for running in queries:
                    running.processAllAvailable()
        finally:
            for running in queries:
                running.stop()
    compare_by_batch(ours, theirs)
    if query is seen_keys:
        twice = [row for row in ours.total() if row[0] == 1]
        assert len(twice) == (3 if enabled else 2), "a key that came again tells the two apart"


@Enabled
def test_a_restarted_query_goes_on_from_a_batch_without_rows(
    spark: SparkSession, enabled: bool, tmp_path: Path
) -> None:
    ours, theirs = Outputs(), Outputs()
    source = tmp_path / "rows"
    with no_data(spark, enabled):
        for table in KEYED:
            write_batches(source, [table])
            frame = seen_keys(read_stream(spark, source, "k int, ts timestamp"))
            for outputs, name in ((ours, "millpond"), (theirs, "spark")):
                started = start(frame, outputs, tmp_path / name, millpond=name == "millpond", now=True)
                started.awaitTermination()
    compare_by_batch(ours, theirs)


# Operators above a join whose nulls come a batch later


def counted(left: DataFrame, right: DataFrame) -> DataFrame:
    pairs = left.join(right, F.expr(INTERVAL), "left_outer")
    return pairs.groupBy(F.window("lts", "5 seconds")).agg(F.count("*").alias("n"), F.count("rk").alias("m"))


def listed(left: DataFrame, right: DataFrame) -> DataFrame:
    pairs = left.join(right, F.expr(INTERVAL), "left_outer")
    rows = F.sort_array(F.collect_list(F.struct("lname", "rname")))
    return pairs.groupBy("lk", F.window("lts", "5 seconds")).agg(rows.alias("rows"))


def counted_twice(left: DataFrame, right: DataFrame) -> DataFrame:
    counts = (
        left.join(right, F.expr(INTERVAL), "left_outer").groupBy("lk", F.window("lts", "4 seconds")).count()
    )
    return counts.groupBy(F.window(F.window_time("window"), "8 seconds")).agg(F.sum("count").alias("n"))


def once(left: DataFrame, right: DataFrame) -> DataFrame:
    pairs = left.join(right, F.expr(INTERVAL), "left_outer")
    seen = pairs.select("lk", "lts", F.col("rk").isNull().alias("alone")).dropDuplicates(
        ["lk", "lts", "alone"]
    )
    return seen.groupBy(F.window("lts", "5 seconds"), "alone").count()


def joined_again(left: DataFrame, right: DataFrame) -> DataFrame:
    pairs = left.join(right, F.expr(INTERVAL), "left_outer").select("lk", "lts", "lname", "rname")
    third = right.toDF("tk", "tg", "tts", "tv", "tname").where("tv > 6")
    close = "lk = tk and tts >= lts - interval 3 seconds and tts <= lts + interval 4 seconds"
    return pairs.join(third, F.expr(close), "left_outer").select("lname", "rname", "tname", "lts")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "query", [counted, listed, counted_twice, once, joined_again], ids=lambda query: query.__name__
)
def test_operators_over_an_outer_join_lose_none_of_its_nulls(
    spark: SparkSession, query: Callable[[DataFrame, DataFrame], DataFrame], tmp_path: Path
) -> None:
    left, right = watermarked(spark, tmp_path, query.__name__, batches=6)
    ours, theirs = run_both(spark, query(left, right), tmp_path, multiple=True)
    assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
    assert ours.schema == theirs.schema
    assert_same(ours.total(), theirs.total(), ours.schema, "all batches")


# The driver dies in the batch without rows, or before it


@pytest.mark.timeout(600)
def test_a_driver_killed_around_the_last_batch_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_input(source, 3)
    start_joined(spark, source, tmp_path / "undisturbed").awaitTermination()
    wanted = joined_results(tmp_path / "undisturbed")
    assert list(wanted) == [0, 1, 2, 3]
    assert wanted[3], "the last batch gives nothing, so the comparison shows nothing"
    root = tmp_path / "killed"
    root.mkdir()
    # The batch of the last rows is in the record, not in Spark's log; then it is the turn of the one without rows.
    for point in ("after-record:3", "after-sink:1"):
        die_at_point(source, root, point, "joined")
    with driver(source, root, "joined") as last:
        assert last.process.wait(timeout=300) == 0, last.log()
    assert joined_results(root) == wanted
