"""Groups by keys of every type, alone and together, and none, against Spark's own result batch by batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from millpond.semantics.operator import OutputMode
from tests.oracle_data import KEYS, VALUES, Shape, shapes
from tests.oracle_run import check, stream, try_shapes

COLUMNS = {**KEYS, "i32": VALUES["i32"], "t": VALUES["t"]}

TOGETHER = [
    ("k_i8", "k_t"),
    ("k_f64", "k_i64", "k_b"),
    ("k_nest", "k_bin"),
    ("k_d38", "k_at", "k_pair"),
    ("k_list", "k_i16"),
    ("k_t", "k_t", "k_day"),
]


def results() -> list[Column]:
    return [F.count("*").alias("rows"), F.sum("i32"), F.max("t"), F.min_by("t", "u").alias("by")]


def narrow_results() -> list[Column]:
    """Of fixed width: with others Spark sorts the groups, which it can't do by maps."""
    return [F.count("*").alias("rows"), F.sum("i32"), F.max("u")]


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_each_key_alone(spark: SparkSession, tmp_path: Path, mode: OutputMode) -> None:
    """Grouping sets of one key each: all keys in one query."""

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path)
        grouped = rows.groupingSets([[k] for k in KEYS], *KEYS)
        check(spark, grouped.agg(F.grouping_id().alias("set"), *narrow_results()), mode, tmp_path)

    try_shapes(shapes(), compare, f"each key {mode}")


@pytest.mark.parametrize("keys", TOGETHER, ids=map("-".join, TOGETHER))
def test_keys_together(spark: SparkSession, tmp_path: Path, keys: tuple[str, ...]) -> None:
    def compare(shape: Shape) -> None:
        check(
            spark, stream(spark, shape, COLUMNS, tmp_path).groupBy(*keys).agg(*results()), "update", tmp_path
        )

    try_shapes(shapes(), compare, "-".join(keys))


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_no_key(spark: SparkSession, tmp_path: Path, mode: OutputMode) -> None:
    def compare(shape: Shape) -> None:
        check(spark, stream(spark, shape, COLUMNS, tmp_path).agg(*results()), mode, tmp_path)

    try_shapes(shapes(rows=80), compare, f"no key {mode}")


def test_keys_beside_a_window(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withWatermark("ts", "4 seconds")
        keys = ("k_f32", F.window("ts", "15 seconds", "6 seconds"), "k_pairs", "k_nat")
        check(spark, rows.groupBy(*keys).agg(*results()), "append", tmp_path)

    try_shapes(shapes(), compare, "keys beside a window")


def test_keys_from_expressions_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        stream(spark, shape, COLUMNS, tmp_path).createOrReplaceTempView("keyed")
        frame = spark.sql(
            """select k_i8 + 1 as next, concat(upper(k_t), '!') as loud, count(*) as n, sum(i32) / count(*) as r,
                      max(t) || coalesce(upper(k_t), '') as both
               from keyed where i32 is not null
               group by k_i8 + 1, upper(k_t), make_dt_interval(0, 0, g) having n > 1 and sum(i32) > -1e10"""
        )
        check(spark, frame, "update", tmp_path)

    try_shapes(shapes(), compare, "expressions in sql")
