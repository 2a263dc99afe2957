"""Where numbers and types end: overflow with and without ANSI rules, and types that are taken or refused by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.spark.frame import StreamFrame
from tests.oracle_data import VALUES, Columns, Shape, shapes
from tests.oracle_run import check, configured, named, stream, try_shapes

COLUMNS: Columns = {
    # Never negative, so that whether a sum overflows does not depend on the order of the rows.
    "long": (pa.int64(), "bigint", lambda d: d.randrange(2**61)),
    "wide": (pa.decimal128(38, 0), "decimal(38,0)", lambda d: d.randrange(2 * 10**37)),
    **{name: VALUES[name] for name in ("i32", "t", "at", "pair")},
}


def test_sums_wrap_or_are_null_without_ansi_rules(spark: SparkSession, tmp_path: Path) -> None:
    functions = [
        "sum(long)",
        "sum(wide)",
        "avg(wide)",
        "try_sum(long)",
        "try_sum(wide)",
        "try_avg(wide)",
        "count(*)",
    ]

    def compare(shape: Shape) -> None:
        frame = stream(spark, shape, COLUMNS, tmp_path).groupBy("g").agg(*named(functions))
        check(spark, frame, "update", tmp_path)

    with configured(spark, spark__sql__ansi__enabled="false"):
        try_shapes(shapes(), compare, "without ansi")


def test_tolerant_sums_under_ansi_rules(spark: SparkSession, tmp_path: Path) -> None:
    functions = ["try_sum(long)", "try_sum(wide)", "try_avg(wide)", "count(*)"]

    def compare(shape: Shape) -> None:
        frame = stream(spark, shape, COLUMNS, tmp_path).groupBy("g").agg(*named(functions))
        check(spark, frame, "complete", tmp_path)

    try_shapes(shapes(), compare, "try under ansi")


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        pytest.param("sum(long)", (90,), id="in a task"),
        pytest.param("sum(long)", (3, 3, 40, 40), id="between batches"),
        pytest.param("sum(wide)", (3, 3, 40, 40), id="of decimals"),
        pytest.param("avg(wide)", (3, 3, 40, 40), id="of an average"),
    ],
)
def test_overflow_is_spark_s_error_under_ansi_rules(
    spark: SparkSession, tmp_path: Path, function: str, rows: tuple[int, ...]
) -> None:
    shape = Shape(seed=1, rows=rows, groups=1, nulls=0.1, disorder_s=0.0)
    frame = stream(spark, shape, COLUMNS, tmp_path).groupBy("g").agg(*named([function]))
    with pytest.raises(ArithmeticException) as ours:
        run_alone(mp.stream(frame), tmp_path / "millpond")
    with pytest.raises(StreamingQueryException) as theirs:
        run_alone(frame, tmp_path / "spark")
    condition = str(ours.value).partition("]")[0].rpartition("[")[2]
    assert condition
    assert f"[{condition}" in str(theirs.value)


def run_alone(frame: DataFrame | StreamFrame, checkpoint: Path) -> None:
    query = (
        frame.writeStream.outputMode("update")
        .foreachBatch(lambda rows, _: rows.collect())
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


TAKEN = [
    "first(null)",
    "max(null)",
    "count(null)",
    "sum(null)",
    "min(time'12:00:01' + make_dt_interval(0, 0, 0, abs(i32 % 1000)))",
    "max(make_dt_interval(0, 0, i32 % 1000))",
    "max(cast(t as varchar(50)))",
    "max(struct(array(struct(pair, at)), i32))",
    "max_by(map(u, array(pair)), u)",
    "max_by(make_dt_interval(0, 0, i32 % 1000), u)",
    "max_by(null, u)",
    "first(parse_json('[1, {}]'))",
    "max_by(array(parse_json(cast(u as string))), u)",
    "max(struct(null, i32))",
]
"""Types that are rare, but that Spark can hand to Python."""


def test_rare_types(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        frame = stream(spark, shape, COLUMNS, tmp_path).groupBy("g").agg(*named(TAKEN))
        check(spark, frame, "update", tmp_path)

    with configured(spark, spark__sql__timeType__enabled="true"):
        try_shapes(shapes(), compare, "rare types")


REFUSED = {
    "min(make_ym_interval(i32 % 10))": "interval year to month",
    "first(make_interval(i32 % 10))": "interval",
    "sum(make_dt_interval(i32 % 10))": "interval day to second",
    "max_by(make_ym_interval(i32 % 10), u)": "interval year to month",
    "first(struct(make_ym_interval(1)))": "struct<col1:interval year to month>",
}


@pytest.mark.parametrize("function", REFUSED)
def test_types_that_are_refused_by_name(spark: SparkSession, tmp_path: Path, function: str) -> None:
    shape = Shape(seed=1, rows=(3,), groups=1, nulls=0.0, disorder_s=0.0)
    frame = stream(spark, shape, COLUMNS, tmp_path).groupBy("g").agg(*named([function]))
    with pytest.raises(InvalidQuery, match=f"aggregate-0: .*{REFUSED[function]}"):
        run_alone(mp.stream(frame), tmp_path / "millpond")
