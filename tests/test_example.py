"""The example of the README, as written there, and its SQL form, against Spark's own result."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from tests.streams import read_stream, write_batches

SCHEMA = "bidder long, price long, ts timestamp"
START = datetime(2024, 1, 1, tzinfo=UTC)


def bid_batches(batches: int, rows: int, seconds_per_batch: float) -> list[pa.Table]:
    dice = random.Random(7)
    tables = []
    for batch in range(batches):
        at = [batch * seconds_per_batch + dice.random() * seconds_per_batch for _ in range(rows)]
        tables.append(
            pa.table(
                {
                    "bidder": pa.array([dice.randrange(20) for _ in range(rows)], pa.int64()),
                    "price": pa.array([dice.randrange(1000) for _ in range(rows)], pa.int64()),
                    "ts": pa.array([START + timedelta(seconds=t) for t in at], pa.timestamp("us", "UTC")),
                }
            )
        )
    return tables


@pytest.fixture(scope="module")
def bids(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    directory = tmp_path_factory.mktemp("bids")
    write_batches(directory, bid_batches(batches=6, rows=400, seconds_per_batch=7))
    return read_stream(spark, directory, SCHEMA)


def spark_result(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, name: str
) -> list[tuple[object, ...]]:
    """The same streaming query in Spark's own state store, with the rules of time that Millpond keeps."""
    setting = "spark.sql.streaming.statefulOperator.allowMultiple"
    spark.conf.set(setting, "false")
    try:
        query = (
            frame.writeStream.outputMode("append")
            .format("memory")
            .queryName(name)
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.unset(setting)
    return rows_of(spark.table(name))


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_the_example_gives_spark_s_result(spark: SparkSession, bids: DataFrame, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    counts = (
        mp.stream(bids)
        .withWatermark("ts", "4 seconds")
        .groupBy("bidder", F.window("ts", "10 seconds"))
        .agg(F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price"), F.avg("price"))
    )
    query = (
        counts.where(counts["n"] > 3)
        .writeStream.outputMode("append")
        .format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .queryName("bids")
        .start()
    )
    query.awaitTermination()

    expected = spark_result(spark, counts.where(counts["n"] > 3).unwrapped, tmp_path, "example_spark")
    assert rows_of(spark.read.parquet(out)) == expected
    assert expected


def test_the_sql_form_gives_spark_s_result(spark: SparkSession, bids: DataFrame, tmp_path: Path) -> None:
    bids.withWatermark("ts", "4 seconds").createOrReplaceTempView("bids_view")
    frame = spark.sql(
        """select bidder, window, count(*) n, sum(price) total, max(price), avg(price)
           from bids_view group by window(ts, '10 seconds'), bidder having n > 3"""
    )
    query = (
        mp.stream(frame)
        .writeStream.outputMode("append")
        .format("memory")
        .queryName("sql_millpond")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    expected = spark_result(spark, frame, tmp_path, "sql_spark")
    assert rows_of(spark.table("sql_millpond")) == expected
    assert expected


def test_progress_tells_state_watermark_and_times(
    spark: SparkSession, bids: DataFrame, tmp_path: Path
) -> None:
    query = (
        mp.stream(bids)
        .withWatermark("ts", "4 seconds")
        .groupBy("bidder", F.window("ts", "10 seconds"))
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    last = query.lastProgress
    assert last is not None
    operator = last["stateOperators"][0]
    assert operator["numRowsTotal"] > 0
    assert operator["memoryUsedBytes"] > 0
    assert last["eventTime"]["watermark"].startswith("2024-01-01T00:00:3")
    durations = last["durationMs"]
    assert {f"millpond.{part}" for part in ("ingest", "seal", "emit", "commit", "waiting")} <= set(durations)
    times = {name: ms for name, ms in durations.items() if name.startswith("millpond.time.")}
    assert {"millpond.time.encoding", "millpond.time.state_write", "millpond.time.state_read"} <= set(times)
    assert sum(times.values()) == pytest.approx(durations["triggerExecution"], abs=1)
    assert 0 < durations["millpond.cpu.encoding"] < durations["triggerExecution"] * 2
