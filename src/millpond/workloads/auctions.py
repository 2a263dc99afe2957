"""A small auction: bids made by Spark itself, replayable, a few busy bidders among many."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["bids"]

_START_MS = 1_700_000_000_000


def bids(spark: SparkSession, *, rows_per_batch: int, milliseconds_per_batch: int) -> DataFrame:
    """An endless stream of (auction, bidder, price, ts). A third of the bids come from a hundred busy bidders,
    event time moves on by a fixed step per batch, and some bids arrive up to two seconds late."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("numPartitions", spark.sparkContext.defaultParallelism)
        .option("startTimestamp", _START_MS)
        .option("advanceMillisPerBatch", milliseconds_per_batch)
        .load()
    )
    dice = F.pmod(F.xxhash64("value"), F.lit(1 << 30))
    again = F.pmod(F.xxhash64("value", F.lit(1)), F.lit(1 << 30))
    busy = again % 3 == 0
    at_ms = (
        F.lit(_START_MS)
        + (F.col("value") * milliseconds_per_batch / rows_per_batch).cast("bigint")
        - F.when(dice % 50 == 0, again % 2000).otherwise(0)
    )
    return numbers.select(
        (F.lit(1000) + again % 20_000).alias("auction"),
        F.when(busy, F.lit(1000) + dice % 100).otherwise(F.lit(2000) + dice % 300_000).alias("bidder"),
        (F.lit(100) + dice % 10_000).alias("price"),
        F.timestamp_millis(at_ms).alias("ts"),
    )
