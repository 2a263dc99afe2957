"""Streams for tests: rows given as batches, one file a batch, read by Spark in that order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

_times = itertools.count(1_600_000_000)


def write_batches(directory: Path, batches: Sequence[pa.Table]) -> None:
    """One file per batch; their modification times are the order in which Spark reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        at = next(_times)
        hidden = directory / f"_{at}"
        pq.write_table(batch, hidden)
        os.utime(hidden, (at, at))
        hidden.rename(directory / f"{at}.parquet")


def read_stream(spark: SparkSession, directory: Path, schema: str) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))
