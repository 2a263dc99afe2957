"""Deduplicated streams, with late rows, compared batch by batch with Spark's own operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.semantics.operator import OutputMode
from tests.oracle_data import KEYS, Columns, Shape, schema_of, shapes, tables
from tests.oracle_run import Outputs, assert_same, configured, run_both, stream, try_shapes
from tests.streams import read_stream, write_batches

Query = Callable[[DataFrame], DataFrame]

COLUMNS: Columns = {name: KEYS[name] for name in ("k_i8", "k_t", "k_f64", "k_nest", "k_list", "k_at", "k_b")}


def check(spark: SparkSession, frame: DataFrame, mode: OutputMode, scratch: Path) -> Outputs:
    ours, theirs = run_both(spark, frame, mode, scratch)
    assert ours.schema == theirs.schema
    assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
    for batch in sorted({*ours.batches, *theirs.batches}):
        mine, its = ours.batches.get(batch, []), theirs.batches.get(batch, [])
        assert_same(mine, its, ours.schema, f"batch {batch}")
    return ours


def for_ever(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["g"])


def late_by_a_column_that_is_no_key(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "3 seconds").dropDuplicates(["g", "k_b", "k_i8"])


def by_event_time(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "3 seconds").dropDuplicates(["k_b", "ts"])


def some_without_time(rows: DataFrame) -> DataFrame:
    return by_event_time(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")))


def by_window(rows: DataFrame) -> DataFrame:
    timed = rows.withWatermark("ts", "2 seconds").withColumn("w", F.window("ts", "5 seconds"))
    return timed.select("w", "g").dropDuplicates(["w", "g"])


def within_a_delay(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "6 seconds").dropDuplicatesWithinWatermark(["g"])


def within_no_time(rows: DataFrame) -> DataFrame:
    timed = rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")).withWatermark("ts", "0 seconds")
    return timed.dropDuplicatesWithinWatermark(["g", "k_b"])


def all_columns(rows: DataFrame) -> DataFrame:
    return rows.select("g", "k_b", "k_t").where("g > 0").distinct().withColumn("twice", F.col("g") * 2)


def keys_of_many_types(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k_t", "k_nest", "k_f64"])


def other_keys_of_many_types(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k_list", "k_at"])


QUERIES: list[Query] = [
    for_ever,
    late_by_a_column_that_is_no_key,
    by_event_time,
    some_without_time,
    by_window,
    within_a_delay,
    within_no_time,
    all_columns,
    keys_of_many_types,
    other_keys_of_many_types,
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.__name__)
def test_each_key_comes_once(spark: SparkSession, tmp_path: Path, query: Query) -> None:
    mode: OutputMode = "update" if query in QUERIES[::3] else "append"

    def compare(shape: Shape) -> None:
        check(spark, query(stream(spark, shape, COLUMNS, tmp_path)), mode, tmp_path)

    try_shapes(shapes(batches=5), compare, query.__name__)


def test_select_distinct_is_an_aggregate(spark: SparkSession, tmp_path: Path) -> None:
    """In update mode Spark gives a row out again in each batch that has it."""

    def compare(shape: Shape) -> None:
        stream(spark, shape, COLUMNS, tmp_path).createOrReplaceTempView("many")
        check(spark, spark.sql("select distinct g, k_b from many"), "update", tmp_path)

    try_shapes(shapes(), compare, "select distinct")


def counted(rows: DataFrame) -> DataFrame:
    once = rows.withWatermark("ts", "3 seconds").dropDuplicates(["g", "ts"])
    return once.groupBy(F.window("ts", "8 seconds"), "g").agg(F.count("*").alias("n"))


def counted_within_a_delay(rows: DataFrame) -> DataFrame:
    once = rows.withWatermark("ts", "3 seconds").dropDuplicatesWithinWatermark(["g"])
    return once.where("g % 2 = 0").groupBy(F.window("ts", "8 seconds")).agg(F.count("*").alias("n"))


def after_counting(rows: DataFrame) -> DataFrame:
    counts = rows.withWatermark("ts", "3 seconds").groupBy(F.window("ts", "8 seconds"), "g").count()
    return counts.dropDuplicates(["window", "count"]).select("window", "count")


@pytest.mark.parametrize("query", [counted, counted_within_a_delay, after_counting], ids=lambda q: q.__name__)
def test_together_with_a_windowed_count(spark: SparkSession, tmp_path: Path, query: Query) -> None:
    def compare(shape: Shape) -> None:
        frame = query(stream(spark, shape, {"k_b": KEYS["k_b"]}, tmp_path))
        ours, theirs = run_both(spark, frame, "append", tmp_path)
        assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
        assert_same(ours.total(), theirs.total(), ours.schema, "all batches")

    try_shapes(shapes(in_order=True), compare, query.__name__)


@pytest.mark.parametrize("query", [by_event_time, within_a_delay], ids=lambda query: query.__name__)
def test_a_restarted_query_knows_its_keys(spark: SparkSession, tmp_path: Path, query: Query) -> None:
    shape = Shape(seed=5, rows=(40, 40, 40, 40), groups=6, nulls=0.1, disorder_s=12.0)
    batches = tables(shape, COLUMNS)

    def run(source: Path, outputs: Outputs, checkpoint: Path, *, millpond: bool) -> None:
        frame = query(read_stream(spark, source, schema_of(COLUMNS)))
        writer = (mp.stream(frame) if millpond else frame).writeStream.foreachBatch(outputs)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    single = {
        "spark__sql__streaming__statefulOperator__allowMultiple": "false",
        "spark__sql__streaming__noDataMicroBatches__enabled": "false",
    }
    ours, theirs = Outputs(), Outputs()
    with configured(spark, **single):
        for part in (batches[:2], batches[2:]):
            write_batches(tmp_path / "rows", part)
            run(tmp_path / "rows", ours, tmp_path / "millpond", millpond=True)
            run(tmp_path / "rows", theirs, tmp_path / "spark", millpond=False)
    assert theirs.batches.keys() == ours.batches.keys()
    for batch, rows in theirs.batches.items():
        assert_same(ours.batches[batch], rows, ours.schema, f"batch {batch}")
