"""Queries over the same prepared files, and what they put out: the windowed one into Parquet files, the others
through a function that is idempotent by batch id."""

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
    return (
        totals(read_stream(spark, source, SCHEMA))
        .writeStream.outputMode("update")
        .foreachBatch(lambda rows, batch: _write(out, rows, batch))
        .options(checkpointLocation=str(root / "totals-checkpoint"), **BY_TASKS, **options)
        .trigger(availableNow=True)
        .start()
    )


def start_joined(spark: SparkSession, source: Path, root: Path, **options: Any) -> MillpondQuery:
    """An outer join of the bids with some of them, whose last nulls come in a batch without rows."""
    root.mkdir(parents=True, exist_ok=True)
    out = root / "joined"
    left, right = (
        read_stream(spark, source, SCHEMA)
        .withWatermark("ts", "4 seconds")
        .selectExpr(f"bidder as {side}_bidder", f"price as {side}_price", f"ts as {side}_ts")
        for side in ("l", "r")
    )
    close = "l_bidder = r_bidder and r_ts >= l_ts and r_ts <= l_ts + interval 3 seconds"
    frame = mp.stream(left.join(right.where("r_price < 100"), F.expr(close), "left_outer"))
    return (
        frame.writeStream.foreachBatch(lambda rows, batch: _write(out, rows, batch))
        .options(checkpointLocation=str(root / "joined-checkpoint"), **BY_TASKS, **options)
        .trigger(availableNow=True)
        .start()
    )


def joined_results(root: Path) -> dict[int, Counter[Any]]:
    """Multisets of rows by batch."""
    files = sorted((root / "joined").glob("*.json"), key=lambda file: int(file.stem))
    return {int(file.stem): Counter(map(tuple, json.loads(file.read_text()))) for file in files}


def _write(out: Path, frame: DataFrame, batch_id: int) -> None:
    """The same whether it is called once or again."""
    out.mkdir(parents=True, exist_ok=True)
    rows = sorted((tuple(row) for row in frame.collect()), key=repr)
    hidden = out / f"_{batch_id}"
    hidden.write_text(json.dumps(rows, default=str))
    hidden.replace(out / f"{batch_id}.json")


def results(spark: SparkSession, root: Path) -> Results:
    """Multisets of rows: of the windows' sink, and of each batch of the totals."""
    found: Results = {}
    if (root / "windows").exists():
        found["windows"] = Counter(tuple(row) for row in spark.read.parquet(str(root / "windows")).collect())
    for file in (root / "totals").glob("*.json"):
        found[f"totals {file.stem}"] = Counter(tuple(row) for row in json.loads(file.read_text()))
    return found
