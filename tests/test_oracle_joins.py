"""Joins of two streams against Spark's own result, batch by batch: late rows, nulls, keys that repeat, conditions of
all kinds, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import JoinSpec, JoinTime
from millpond.spark.plan import cut
from tests.join_run import SCHEMA, compare_by_batch, random_batches, run_both, sides, start_millpond
from tests.oracle_run import Outputs, assert_same
from tests.streams import read_stream, write_batches

INTERVAL = "lk = rk and lts >= rts - interval 10 seconds and lts <= rts + interval 20 seconds"

CONDITIONS = {
    "interval": INTERVAL,
    "open": "lk = rk and lts > rts - interval 1500 milliseconds and rts < lts + interval 40 seconds",
    "between": "lk = rk and lts between rts and rts + interval 15 seconds",
    "ahead": "lk = rk and lts >= rts + interval 5 seconds and lts < rts + interval 15 seconds",
    "one-sided": INTERVAL + " and lv > 3 and rv < 7",
    "compared": INTERVAL + " and lv <= rv",
    "cast": "cast(lk as bigint) = rk and lg = rg and lts >= rts and lts <= rts + interval 30 seconds",
    "null-safe": "lk <=> rk and lts >= rts and lts <= rts + interval 30 seconds",
    "time": "lk = rk and lts = rts",
}


def watermarked(left: DataFrame, right: DataFrame) -> list[DataFrame]:
    return [left.withWatermark("lts", "8 seconds"), right.withWatermark("rts", "5 seconds")]


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("interval", "inner"),
        ("interval", "left_outer"),
        ("interval", "right_outer"),
        ("interval", "full_outer"),
        ("open", "left_outer"),
        ("between", "full_outer"),
        ("ahead", "left_outer"),
        ("ahead", "right_outer"),
        ("one-sided", "inner"),
        ("one-sided", "left_outer"),
        ("one-sided", "full_outer"),
        ("compared", "right_outer"),
        ("cast", "inner"),
        ("null-safe", "left_outer"),
        ("time", "full_outer"),
        ("interval", "left_semi"),
        ("one-sided", "left_semi"),
        ("compared", "left_semi"),
    ],
)
def test_an_interval_join_gives_what_spark_gives_batch_by_batch(
    spark: SparkSession, name: str, kind: str, tmp_path: Path
) -> None:
    left, right = sides(
        spark, tmp_path, random_batches(f"l{name}{kind}"), random_batches(f"r{name}{kind}", batches=6)
    )
    if name == "time":
        left, right = left.where("lts is not null"), right.where("rts is not null")
    one, other = watermarked(left, right)
    frame = one.join(other, F.expr(CONDITIONS[name]), kind)
    compare_by_batch(*run_both(spark, frame, tmp_path))


def test_an_inner_join_without_time_remembers_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("la"), random_batches("ra", batches=5))
    frame = left.join(right, F.expr("lk = rk and lv + rv > 4 and lg <=> rg"))
    compare_by_batch(*run_both(spark, frame, tmp_path))


def test_a_join_with_one_watermark_and_a_join_using_a_column(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lb"), random_batches("rb"))
    frame = left.withWatermark("lts", "3 seconds").withColumnRenamed("lk", "k")
    frame = (
        frame.join(right.withColumnRenamed("rk", "k"), "k")
        .where("lv > 2")
        .select("k", "lname", "lts", "rname")
    )
    compare_by_batch(*run_both(spark, frame, tmp_path))


def test_bounds_after_the_join_let_rows_go_as_in_the_condition(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lc"), random_batches("rc"))
    one, other = watermarked(left.withColumnRenamed("lk", "k"), right.withColumnRenamed("rk", "k"))
    bounds = "lts >= rts - interval 10 seconds and lts <= rts + interval 20 seconds and rv > 2"
    frame = one.join(other, "k").where(bounds).select("k", "lname", "rname")
    (spec,) = cut(frame, "append").operators
    assert isinstance(spec.time, JoinTime)
    assert None not in spec.time.offsets_us
    compare_by_batch(*run_both(spark, frame, tmp_path))


def test_columns_that_nothing_looks_at_are_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lh", lateness=2), random_batches("rh", lateness=2))
    one, other = watermarked(left, right)
    pairs = one.join(other, F.expr(INTERVAL + " and lname <> rname"))
    counted = pairs.groupBy(F.window("lts", "10 seconds")).agg(F.count("*").alias("n"))
    join = cut(counted, "append").operators[0]
    assert isinstance(join, JoinSpec)
    assert [[column.name for column in side.kept] for side in join.sides] == [["lts", "lname"], ["rname"]]
    ours, theirs = run_both(spark, counted, tmp_path, multiple=True)
    assert theirs.total()
    assert_same(ours.total(), theirs.total(), ours.schema, "all batches")


def test_a_join_of_which_no_column_is_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("li"), random_batches("ri"))
    frame = left.join(right, F.expr("lk = rk")).select(F.lit(1).alias("one"))
    compare_by_batch(*run_both(spark, frame, tmp_path))


def test_an_aggregate_over_a_join_gives_what_spark_gives(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("ld", lateness=2), random_batches("rd", lateness=2))
    one, other = watermarked(left, right)
    pairs = one.join(other, F.expr(INTERVAL))
    frame = pairs.groupBy(F.window("lts", "10 seconds"), "lk").agg(
        F.count("*").alias("n"), F.sum("rv").alias("s")
    )
    ours, theirs = run_both(spark, frame, tmp_path, multiple=True)
    assert theirs.total()
    assert_same(ours.total(), theirs.total(), ours.schema, "all batches")


def test_a_restarted_outer_join_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    left, right = random_batches("le"), random_batches("re")
    one, other = watermarked(*sides(spark, tmp_path, left, right))
    frame = one.join(other, F.expr(INTERVAL), "full_outer").where("lk is not null or rk is not null")
    whole = Outputs()
    start_millpond(frame, whole, tmp_path / "whole")
    again = [tmp_path / "l", tmp_path / "r"]
    parts = Outputs()
    for start, end in ((0, 2), (2, 4), (4, 6)):
        write_batches(again[0], left[start:end])
        write_batches(again[1], right[start:end])
        streams = [read_stream(spark, directory, SCHEMA) for directory in again]
        streams = [s.toDF(*(p + n for n in s.columns)) for p, s in zip("lr", streams, strict=True)]
        one, other = watermarked(*streams)
        frame = one.join(other, F.expr(INTERVAL), "full_outer").where("lk is not null or rk is not null")
        start_millpond(frame, parts, tmp_path / "parts")
    assert_same(parts.total(), whole.total(), whole.schema, "all batches")


def test_an_outer_join_without_a_bound_is_sparks_own_error(spark: SparkSession, tmp_path: Path) -> None:
    left, right = watermarked(*sides(spark, tmp_path, random_batches("lf"), random_batches("rf")))
    with pytest.raises(AnalysisException):
        mp.stream(left.join(right, F.expr("lk = rk"), "left_outer")).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start()


@pytest.mark.parametrize(
    ("condition", "kind", "named"),
    [
        (INTERVAL + " and lname like rname", "left_outer", "LIKE"),
        (INTERVAL + " and lname like rname", "left_semi", "LIKE"),
        ("lts >= rts and lts <= rts + interval 1 second", "inner", "no equality"),
    ],
)
def test_what_a_join_can_not_do_is_refused_by_name(
    spark: SparkSession, condition: str, kind: str, named: str, tmp_path: Path
) -> None:
    left, right = watermarked(*sides(spark, tmp_path, random_batches("lg"), random_batches("rg")))
    with pytest.raises(InvalidQuery, match=named):
        mp.stream(left.join(right, F.expr(condition), kind)).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start()
