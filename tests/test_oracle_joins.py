"""Joins of two streams against Spark's own result, batch by batch: late rows, nulls, keys that repeat, conditions of
all kinds, restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import JoinSpec, JoinTime
from millpond.spark.plan import cut
from tests.join_run import (
    compare_by_batch,
    random_batches,
    run_both,
    sides,
    start_millpond,
    started_thrice,
)
from tests.oracle_run import Outputs, assert_same

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


@pytest.mark.parametrize("limit", [5, 15])
def test_a_condition_without_columns_holds_for_all_pairs_or_none(
    spark: SparkSession, tmp_path: Path, limit: int
) -> None:
    left, right = sides(spark, tmp_path, random_batches("lj"), random_batches("rj"))
    one, other = watermarked(left, right)
    frame = one.join(other, F.expr(f"{INTERVAL} and (select max(id) from range(10)) > {limit}"))
    ours, theirs = run_both(spark, frame, tmp_path)
    assert bool(theirs.total()) == (limit == 5)
    assert ours.total() == theirs.total()


@pytest.mark.parametrize("year", [2020, 9000])
@pytest.mark.parametrize("placed", ["in the join", "after it"])
def test_the_time_of_day_is_asked_of_pairs(
    spark: SparkSession, tmp_path: Path, placed: str, year: int
) -> None:
    left, right = sides(spark, tmp_path, random_batches("lk"), random_batches("rk"))
    one, other = watermarked(left, right)
    asked = f"current_timestamp() > timestamp '{year}-01-01'"
    frame = one.join(other, F.expr(INTERVAL)).where(asked)
    # In the condition itself Spark does not take it.
    inside = one.join(other, F.expr(f"{INTERVAL} and {asked}"))
    own = mp.stream(inside if placed == "in the join" else frame)
    ours, theirs = run_both(spark, frame, tmp_path, own=own)
    assert bool(theirs.total()) == (year == 2020)
    assert ours.total() == theirs.total()


@pytest.mark.parametrize("kind", ["inner", "left_outer"])
def test_a_condition_that_always_holds_changes_nothing(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    left, right = sides(spark, tmp_path, random_batches("ll"), random_batches("rl"))
    one, other = watermarked(left, right)
    frame = one.join(other, F.expr(f"1 = 1 and {INTERVAL} and true"), kind)
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


def in_sessions(rows: DataFrame, _: DataFrame) -> DataFrame:
    sessions = rows.groupBy("lk", F.session_window("lts", "3 seconds")).agg(F.count("*").alias("n"))
    return sessions.select("lk", "n", F.window("session_window", "10 seconds"))


def in_outer_pairs(rows: DataFrame, others: DataFrame) -> DataFrame:
    pairs = rows.join(others, F.expr(INTERVAL), "left_outer")
    return pairs.select("lk", "lname", "rname", F.window("lts", "10 seconds"))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("first", [in_sessions, in_outer_pairs])
def test_a_join_by_window_waits_for_the_side_that_comes_later(
    spark: SparkSession, tmp_path: Path, first: Callable[[DataFrame, DataFrame], DataFrame], turned: bool
) -> None:
    """One side's rows have passed an operator that gives them out late, the other side's have not."""
    batches = [random_batches(seed, batches=10, rows=20, lateness=0) for seed in ("lm", "rm", "lo")]
    left, right = watermarked(*sides(spark, tmp_path, batches[0], batches[1]))
    (plain, _) = sides(spark, tmp_path, batches[2], [])
    plain = plain.withWatermark("lts", "2 seconds").select(
        F.col("lk").alias("k"), F.col("lname").alias("plain"), F.window("lts", "10 seconds").alias("w")
    )
    late = first(left, right)
    condition = F.expr("lk = k and window = w")
    frame = plain.join(late, condition) if turned else late.join(plain, condition)
    ours, theirs = run_both(spark, frame, tmp_path, multiple=True)
    assert theirs.total()
    # Spark gives out a window's pairs when they come, Millpond when the window has ended.
    assert ours.total()
    ended = max(row[frame.columns.index("w")] for row in ours.total())
    assert_same(
        ours.total(),
        [row for row in theirs.total() if row[frame.columns.index("w")] <= ended],
        ours.schema,
        "all batches",
    )


def test_another_watermark_is_named(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("ln"), random_batches("rn"))

    def start(delay: str) -> None:
        one = left.withWatermark("lts", delay)
        joined = one.join(right.withWatermark("rts", "5 seconds"), F.expr(INTERVAL))
        start_millpond(joined, Outputs(), tmp_path / "c")

    start("8 seconds")
    start("6 seconds")
    with pytest.raises(InvalidQuery, match="the delay of a watermark"):
        start("1 hour")


def test_a_restarted_outer_join_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    left, right = random_batches("le"), random_batches("re")

    def query(one: DataFrame, other: DataFrame) -> DataFrame:
        one, other = watermarked(one, other)
        return one.join(other, F.expr(INTERVAL), "full_outer").where("lk is not null or rk is not null")

    whole = Outputs()
    start_millpond(query(*sides(spark, tmp_path, left, right)), whole, tmp_path / "whole")
    parts = started_thrice(spark, tmp_path, left, right, query)
    assert_same(parts.total(), whole.total(), whole.schema, "all batches")


def test_an_outer_join_without_a_bound_is_refused_with_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    left, right = watermarked(*sides(spark, tmp_path, random_batches("lf"), random_batches("rf")))
    with pytest.raises(InvalidQuery, match=r"LeftOuter join.*To do: call withWatermark.*BETWEEN"):
        mp.stream(left.join(right, F.expr("lk = rk"), "left_outer")).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start()


@pytest.mark.parametrize(
    ("condition", "kind", "named"),
    [
        (INTERVAL + " and lname like rname", "left_outer", "LIKE"),
        (INTERVAL + " and lname like rname", "left_semi", "LIKE"),
        ("lts >= rts and lts <= rts + interval 1 second", "inner", "no equality"),
        (INTERVAL + " and current_date() > date '2020-01-01'", "left_outer", "current_date.*no column"),
        (INTERVAL + " and 1 = 0", "full_outer", "1 = 0.*no column"),
        (INTERVAL + " and (select max(id) from range(3)) > 1", "left_semi", "no column"),
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
