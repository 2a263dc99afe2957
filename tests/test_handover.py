"""How many rows Spark hands to Python at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import millpond as mp
from millpond.spark.handover import Handover
from millpond.spark.jvm import Catalyst, scala_object
from tests.streams import read_stream, write_batches

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
SIZES = StructType([StructField("rows", LongType()), StructField("bytes", LongType())])
ROWS = 2_000
"""In one task: less than what Spark hands over at once where it does not look at bytes."""


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each batch that Spark gave the task."""
    found = [(batch.num_rows, batch.nbytes) for batch in batches]
    rows, size = zip(*found, strict=True)
    yield pa.record_batch({"rows": pa.array(rows, pa.int64()), "bytes": pa.array(size, pa.int64())})


def handed_over(frame: DataFrame, source: DataFrame | None = None) -> list[int]:
    """Rows of each batch."""
    handover = Handover(Catalyst(frame.sparkSession), source or frame)
    return [row.rows for row in handover.run(frame, sizes, SIZES)]


def texts(spark: SparkSession, length: int) -> DataFrame:
    return spark.range(0, ROWS, 1, 1).select("id", F.repeat(F.lit("x"), F.lit(length)).alias("text"))


@pytest.fixture(autouse=True)
def fewer_rows_at_a_time(spark: SparkSession) -> Iterator[None]:
    """So that texts of 40,000 bytes are small ones."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5000")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.unset(BYTES)


def test_rows_of_bounded_size_are_handed_over_as_many_as_spark_allows(spark: SparkSession) -> None:
    # 80 MB; Spark's bound is 64 MiB.
    assert len(texts(spark, 40_000).mapInArrow(sizes, SIZES).collect()) == 2
    assert handed_over(texts(spark, 40_000)) == [ROWS]
    assert not spark._jsparkSession.conf().contains(BYTES)


def test_large_rows_keep_sparks_bound(spark: SparkSession) -> None:
    # One text is longer than what a batch of small rows may have for each row.
    long = F.when(F.col("id") == ROWS - 1, F.repeat(F.col("text"), F.lit(4))).otherwise(F.col("text"))
    rows = texts(spark, 20_000).select("id", long.alias("text"))
    catalyst = Catalyst(spark)
    handover = Handover(catalyst, rows)
    sparks = [(row.rows, row.bytes) for row in rows.mapInArrow(sizes, SIZES).collect()]
    assert [(row.rows, row.bytes) for row in handover.run(rows, sizes, SIZES)] == sparks
    # From then on without a try.
    assert [row.rows for row in handover.run(texts(spark, 40_000), sizes, SIZES)] != [ROWS]
    assert not spark._jsparkSession.conf().contains(BYTES)


def test_nulls_are_handed_over(spark: SparkSession) -> None:
    rows = spark.range(0, ROWS, 1, 1).select(
        F.when(F.col("id") % 2 == 0, F.repeat(F.lit("x"), F.lit(30_000))).alias("text"),
        F.lit(None).cast("binary").alias("bytes"),
    )
    assert handed_over(rows) == [ROWS]


def test_a_bound_that_the_user_has_set_stays(spark: SparkSession) -> None:
    bound = str(ROWS * 40_000 // 3)
    spark.conf.set(BYTES, bound)
    assert len(handed_over(texts(spark, 40_000))) > 2
    assert spark.conf.get(BYTES) == bound


def test_functions_of_the_users_keep_sparks_bound(spark: SparkSession) -> None:
    same = F.udf(lambda text: text, "string", useArrow=True)
    with_function = texts(spark, 40_000).select("id", same("text").alias("text"))
    assert len(handed_over(with_function)) == 2
    assert len(handed_over(texts(spark, 40_000), source=with_function)) == 2


def test_values_whose_size_no_length_tells_keep_sparks_bound(spark: SparkSession) -> None:
    lists = texts(spark, 40_000).select(F.array("text").alias("texts"))
    assert len(handed_over(lists)) == 2
    numbers = spark.range(0, ROWS, 1, 1).select(F.struct("id", F.current_timestamp()).alias("fixed"))
    assert handed_over(numbers) == [ROWS]


def test_an_error_of_a_task_is_raised_and_leaves_no_setting(spark: SparkSession) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError(f"broken after {len(list(batches))}")

    rows = texts(spark, 10)
    with pytest.raises(PythonException, match="broken after 1"):
        Handover(Catalyst(spark), rows).run(rows, broken, SIZES)
    assert not spark._jsparkSession.conf().contains(BYTES)


def test_a_query_goes_on_over_a_large_row(spark: SparkSession, tmp_path: Path) -> None:
    small = pa.table({"k": pa.array(range(300), pa.int64()), "text": ["some text"] * 300})
    large = pa.table({"k": pa.array([1, 2], pa.int64()), "text": ["z" * 300_000, None]})
    write_batches(tmp_path / "in", [small, large, small, small])
    metrics = scala_object(spark._jvm, "org.apache.spark.metrics.source.CodegenMetrics")
    outputs: list[dict[int, int]] = []
    compiled: list[int] = []

    def sink(rows: DataFrame, _: int) -> None:
        outputs.append({row["k"]: row["longest"] for row in rows.collect()})
        compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())

    query = (
        mp.stream(read_stream(spark, tmp_path / "in", "k long, text string"))
        .groupBy("k")
        .agg(F.max("text").alias("text"))
        .selectExpr("k", "length(text) AS longest")
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("millpond.ingest.localRows", "0")
        .foreachBatch(sink)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [len(output) for output in outputs] == [300, 2, 300, 300]
    assert outputs[1] == {1: 300_000, 2: 9}
    assert outputs[3] == dict.fromkeys(range(300), 9) | {1: 300_000}
    assert compiled[3] == compiled[2]
