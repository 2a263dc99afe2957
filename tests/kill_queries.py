"""Two queries over the same prepared files, and what they put out: the windowed one into Parquet files, the
unwindowed one through a function that is idempotent by batch id."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.spark.frame import StreamFrame
from millpond.spark.query import MillpondQuery
from tests.streams import read_stream, write_batches

SCHEMA = "bidder long, price long, ts timestamp"
START = datetime(2024, 1, 1, tzinfo=UTC)

Results = dict[str, Counter[Any]]


def bids(batches: int, rows: int = 200, seconds_per_batch: int = 6, seed: int = 7) -> list[pa.Table]:
    """Mostly in order; one row in ten comes up to 20 s late, so that some are dropped and some are not."""
    dice = random.Random(seed)
    tables = []
    for batch in range(batches):
        late = [dice.random() * 20 if dice.random() < 0.1 else 0.0 for _ in range(rows)]
        at = [(batch + dice.random()) * seconds_per_batch - late[i] for i in range(rows)]
        columns = {
            "bidder": pa.array([dice.randrange(30) for _ in range(rows)], pa.int64()),
            "price": pa.array([dice.randrange(1000) for _ in range(rows)], pa.int64()),
            "ts": pa.array([START + timedelta(seconds=t) for t in at], pa.timestamp("us", "UTC")),
        }
        tables.append(pa.table(columns))
    return tables


def write_input(directory: Path, batches: int) -> None:
    write_batches(directory, bids(batches))


def windows(source: DataFrame) -> StreamFrame:
    return (
        mp.stream(source)
        .withWatermark("ts", "4 seconds")
        .groupBy("bidder", F.window("ts", "10 seconds", "5 seconds"))
        .agg(F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price").alias("most"))
    )


def totals(source: DataFrame) -> StreamFrame:
    return mp.stream(source).groupBy("bidder").agg(F.count("*").alias("n"), F.sum("price").alias("total"))


BY_TASKS = {"millpond.ingest.localRows": 0}
"""So few rows would go through the driver, and no worker could be killed over them."""


def start_windows(spark: SparkSession, source: Path, root: Path, **options: Any) -> MillpondQuery:
    return (
        windows(read_stream(spark, source, SCHEMA))
        .writeStream.format("parquet")
        .options(path=str(root / "windows"), checkpointLocation=str(root / "windows-checkpoint"))
        .options(**BY_TASKS, **options)
        .trigger(availableNow=True)
        .start()
    )


def start_totals(spark: SparkSession, source: Path, root: Path, **options: Any) -> MillpondQuery:
    out = root / "totals"
    out.mkdir(parents=True, exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(tuple(row) for row in frame.collect())
        hidden = out / f"_{batch_id}"
        hidden.write_text(json.dumps(rows))
        hidden.replace(out / f"{batch_id}.json")

    return (
        totals(read_stream(spark, source, SCHEMA))
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .options(checkpointLocation=str(root / "totals-checkpoint"), **BY_TASKS, **options)
        .trigger(availableNow=True)
        .start()
    )


def results(spark: SparkSession, root: Path) -> Results:
    """Multisets of rows: of the windows' sink, and of each batch of the totals."""
    found: Results = {}
    if (root / "windows").exists():
        found["windows"] = Counter(tuple(row) for row in spark.read.parquet(str(root / "windows")).collect())
    for file in (root / "totals").glob("*.json"):
        found[f"totals {file.stem}"] = Counter(tuple(row) for row in json.loads(file.read_text()))
    return found
