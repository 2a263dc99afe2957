"""Runs a join of two streams in Millpond and in Spark's own state store, on the same batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import millpond as mp
from millpond.spark.frame import StreamFrame
from tests.oracle_run import FEW_ROWS, Outputs, assert_same, configured
from tests.sampling import FUZZ_SEED
from tests.streams import read_stream, write_batches

Query = Callable[[DataFrame, DataFrame], DataFrame]

SCHEMA = "k int, g string, ts timestamp, v int, name string"
_numbers = itertools.count()
_ARROW = pa.schema(
    [
        ("k", pa.int32()),
        ("g", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("v", pa.int32()),
        ("name", pa.string()),
    ]
)


def random_batches(seed: str, *, batches: int = 6, rows: int = 60, lateness: int = 25) -> list[pa.Table]:
    """Time moves on by about ten seconds a batch; keys repeat, some are null, some times too."""
    chance = random.Random(f"{seed}{FUZZ_SEED}")
    tables = []
    for batch in range(batches):
        given = []
        for number in range(chance.randrange(rows // 2, rows)):
            at = 1_000 + 10 * batch + chance.uniform(-lateness, 10)
            given.append(
                {
                    "k": chance.choice([None, *range(12)]),
                    "g": chance.choice(["a", "b", None]),
                    "ts": None if chance.random() < 0.05 else int(at * 1_000_000) // 250_000 * 250_000,
                    "v": chance.choice([None, *range(10)]),
                    "name": f"{seed} {batch} {number}",
                }
            )
        tables.append(pa.Table.from_pylist(given, schema=_ARROW))
    return tables


def sides(spark: SparkSession, scratch: Path, left: list[pa.Table], right: list[pa.Table]) -> list[DataFrame]:
    """A stream for each side, whose columns are prefixed with l and r."""
    frames = []
    for prefix, tables in (("l", left), ("r", right)):
        directory = scratch / f"{prefix}-{next(_numbers)}"
        write_batches(directory, tables)
        frame = read_stream(spark, directory, SCHEMA)
        frames.append(frame.toDF(*(prefix + name for name in frame.columns)))
    return frames


def start_millpond(
    frame: DataFrame | StreamFrame, outputs: Outputs, checkpoint: Path, **options: str
) -> None:
    query = (
        mp.stream(frame)
        .writeStream.outputMode("append")
        .foreachBatch(outputs)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_both(
    spark: SparkSession,
    frame: DataFrame,
    scratch: Path,
    *,
    own: StreamFrame | None = None,
    multiple: bool = False,
    no_data: bool = True,
    **options: str,
) -> tuple[Outputs, Outputs]:
    """Millpond's outputs and Spark's. `own`: what Millpond runs, where that is written in another way; `multiple`:
    the query has several operators; `no_data`: there may be batches without rows."""
    ours, theirs = Outputs(), Outputs()
    with configured(
        spark,
        spark__sql__streaming__statefulOperator__allowMultiple=str(multiple).lower(),
        spark__sql__streaming__noDataMicroBatches__enabled=str(no_data).lower(),
        **FEW_ROWS,
    ):
        oracle = (
            frame.writeStream.outputMode("append")
            .foreachBatch(theirs)
            .option("checkpointLocation", str(scratch / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            start_millpond(frame if own is None else own, ours, scratch / "millpond", **options)
            oracle.awaitTermination()
        finally:
            oracle.stop()
    return ours, theirs


def compare_by_batch(ours: Outputs, theirs: Outputs) -> None:
    assert ours.schema == theirs.schema
    assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
    assert ours.batches.keys() == theirs.batches.keys()
    for batch, its in theirs.batches.items():
        assert_same(ours.batches[batch], its, ours.schema, f"batch {batch}")


def started_thrice(
    spark: SparkSession,
    scratch: Path,
    left: list[pa.Table],
    right: list[pa.Table],
    query: Query,
) -> Outputs:
    """What a query gives that reads two batches of each side, stops, and goes on from its checkpoint."""
    directories = [scratch / "l", scratch / "r"]
    given = Outputs()
    for start, end in ((0, 2), (2, 4), (4, 6)):
        write_batches(directories[0], left[start:end])
        write_batches(directories[1], right[start:end])
        streams = [read_stream(spark, directory, SCHEMA) for directory in directories]
        one, other = (s.toDF(*(p + n for n in s.columns)) for p, s in zip("lr", streams, strict=True))
        start_millpond(query(one, other), given, scratch / "parts")
    return given
