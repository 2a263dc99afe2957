"""Whole queries cut at their aggregates, against Spark's batch results."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.semantics.operator import GroupRowsSpec, KeyedTime, Panes, Sessions
from millpond.spark.gathering import Gathering
from millpond.spark.plan import cut
from tests.plan_bench import Bids, check


@pytest.fixture(scope="module")
def bids(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bids]:
    yield Bids(spark, tmp_path_factory.mktemp("plan"))


def test_windowed_aggregates_with_a_bound_column_after_them(bids: Bids) -> None:
    def query(df: DataFrame) -> DataFrame:
        counts = (
            df.withWatermark("ts", "4 seconds")
            .groupBy("bidder", F.window("ts", "10 seconds"))
            .agg(F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price"), F.avg("price"))
        )
        return counts.where(counts["n"] > 2)

    plan = check(bids, query)
    (operator,) = plan.operators
    assert isinstance(operator.time, Panes)
    assert (operator.time.size_us, operator.time.slide_us, operator.time.offset_us) == (10**7, 10**7, 0)
    assert [key.name for key in operator.keys] == ["bidder"]
    assert plan.carrier.source.columns == operator.input_schema.names


@pytest.mark.parametrize("form", ["with", "view"])
def test_the_same_in_sql_with_clauses_and_temp_views(bids: Bids, form: str) -> None:
    def query(df: DataFrame) -> DataFrame:
        df.withWatermark("ts", "4 seconds").createOrReplaceTempView("bids")
        body = (
            "select bidder, window.end as until, count(*) filter (where price > 9) as n, sum(price + 1) * 2 as t "
            "from {source} where price is not null "
            "group by window(ts, '10 seconds', '5 seconds', '1 second'), bidder having max(price) > 4"
        )
        if form == "with":
            return bids.spark.sql(
                f"with some as (select * from bids where auction < 3) {body.format(source='some')}"
            )
        bids.spark.sql(body.format(source="bids")).createOrReplaceTempView("counted")
        return bids.spark.sql("select c.*, upper(cast(n as string)) as s from counted c where n >= 0")

    (operator,) = check(bids, query).operators
    assert isinstance(operator.time, Panes)
    assert (operator.time.size_us, operator.time.slide_us, operator.time.offset_us) == (
        10**7,
        5 * 10**6,
        10**6,
    )


def test_a_window_that_is_no_multiple_of_its_slide(bids: Bids) -> None:
    (operator,) = check(
        bids,
        lambda df: (
            df.withWatermark("ts", "1 second")
            .groupBy(F.window("ts", "7 seconds", "3 seconds", "2 seconds").alias("w"), "auction")
            .agg(F.count("name").alias("n"))
            .select("n", "w.start", "auction")
        ),
    ).operators
    assert isinstance(operator.time, Panes)


def test_two_aggregates_one_above_the_other(bids: Bids) -> None:
    def query(df: DataFrame) -> DataFrame:
        per_auction = (
            df.withWatermark("ts", "1 second")
            .groupBy("auction", F.window("ts", "10 seconds", "5 seconds"))
            .agg(F.count("*").alias("bids"))
        )
        busy = per_auction.where("bids > 1").withColumn("twice", F.col("bids") * 2)
        return busy.groupBy("window").agg(F.max("bids").alias("most"), F.sum("twice"))

    first, second = check(bids, query).operators
    assert isinstance(first.time, Panes)
    assert isinstance(second.time, KeyedTime)
    assert second.time.slice_us == 1
    assert (first.name, second.name) == ("aggregate-0", "aggregate-1")


def test_windows_over_windows(bids: Bids) -> None:
    def query(df: DataFrame) -> DataFrame:
        small = df.withWatermark("ts", "1 second").groupBy("auction", F.window("ts", "5 seconds")).count()
        large = small.groupBy(F.window(F.window_time("window"), "20 seconds", "10 seconds")).agg(
            F.sum("count")
        )
        return large.groupBy(F.window("window", "40 seconds")).agg(F.max("sum(count)"))

    operators = check(bids, query).operators
    assert [type(operator.time) for operator in operators] == [Panes, Panes, Panes]


def test_a_timestamp_key_holds_its_own_expiry(bids: Bids) -> None:
    (operator,) = check(
        bids, lambda df: df.where("ts is not null").withWatermark("ts", "1 second").groupBy("ts").count()
    ).operators
    assert isinstance(operator.time, KeyedTime)
    assert operator.time.slice_us == 1_000_000
    assert [key.name for key in operator.keys] == ["ts"]


def test_a_window_made_before_the_grouping_is_kept_in_panes(bids: Bids) -> None:
    def query(df: DataFrame) -> DataFrame:
        rows = df.withWatermark("ts", "1 second").withColumn("w", F.window("ts", "10 seconds", "5 seconds"))
        named = rows.where("price > 10").select(
            F.col("w").alias("window"), "auction", (F.col("price") * 2).alias("p")
        )
        return named.groupBy("window", "auction").agg(F.sum("p"))

    (operator,) = check(bids, query).operators
    assert isinstance(operator.time, Panes)
    assert [key.name for key in operator.keys] == ["auction"]


def test_a_window_that_is_looked_at_before_the_grouping_holds_its_own_expiry(bids: Bids) -> None:
    (operator,) = check(
        bids,
        lambda df: (
            df.withWatermark("ts", "1 second")
            .select(F.window("ts", "10 seconds", "5 seconds").alias("w"), "auction")
            .where("second(w.start) < 30")
            .groupBy("w", "auction")
            .count()
        ),
    ).operators
    assert isinstance(operator.time, KeyedTime)


def test_a_window_that_an_aggregate_looks_at_is_an_ordinary_key(bids: Bids) -> None:
    (operator,) = check(
        bids,
        lambda df: (
            df.withWatermark("ts", "1 second")
            .groupBy(F.window("ts", "10 seconds"))
            .agg(F.max(F.col("window.end")).alias("last"), F.count("*"))
        ),
    ).operators
    assert isinstance(operator.time, KeyedTime)


@pytest.mark.parametrize("watermarked", [True, False])
def test_groups_never_expire_in_complete_mode_or_without_a_watermark(bids: Bids, watermarked: bool) -> None:
    def query(df: DataFrame) -> DataFrame:
        df = df.withWatermark("ts", "1 second") if watermarked else df
        return df.groupBy(F.window("ts", "10 seconds", "5 seconds"), "auction").agg(F.sum("price"))

    (operator,) = check(bids, query, "complete" if watermarked else "update").operators
    assert operator.time is None
    assert [key.name for key in operator.keys] == ["window", "auction"]


def test_order_and_limit_of_a_complete_result(bids: Bids) -> None:
    check(
        bids, lambda df: df.groupBy("bidder").count().orderBy(F.desc("count"), "bidder").limit(2), "complete"
    )


def test_no_keys_at_all(bids: Bids) -> None:
    (operator,) = check(bids, lambda df: df.agg(F.count("*"), F.avg("score").alias("a")), "update").operators
    assert operator.keys == ()


def test_keys_without_aggregates(bids: Bids) -> None:
    (operator,) = check(bids, lambda df: df.groupBy("bidder").agg(F.lit(1).alias("one")), "update").operators
    assert operator.aggregates == ()


def test_user_code_before_and_after_the_aggregate(bids: Bids) -> None:
    @F.udf("string")
    def shout(text: str | None) -> str | None:
        return None if text is None else text.upper()

    @F.pandas_udf("bigint")
    def doubled(values: pd.Series) -> pd.Series:
        return values * 2

    check(
        bids,
        lambda df: (
            df.where("price is not null")
            .groupBy(shout(F.substring("name", 1, 1)).alias("initial"))
            .agg(doubled(F.sum(doubled("price"))).alias("s"))
            .withColumn("again", shout(F.concat("initial", F.lit("x"))))
        ),
        "update",
    )


def test_static_tables_joined_below_and_above(bids: Bids) -> None:
    names = bids.spark.createDataFrame([(i, f"bidder {i}") for i in range(4)], "bidder bigint, label string")
    totals = names.groupBy("bidder").agg(F.count("*").alias("rows"))

    def query(df: DataFrame) -> DataFrame:
        summed = df.join(F.broadcast(names), "bidder").groupBy("label").agg(F.sum("price").alias("total"))
        labelled = summed.join(names, "label", "left")
        return labelled.join(totals, "bidder").select("bidder", "total", "label", "rows")

    assert len(check(bids, query, "update").operators) == 1


def test_a_union_of_streams_below_the_aggregate(bids: Bids) -> None:
    check(
        bids,
        lambda df: (
            df.select("auction", "price")
            .union(df.select("bidder", "items"))
            .groupBy("auction")
            .agg(F.sum("price"))
        ),
        "update",
    )


def test_grouping_sets(bids: Bids) -> None:
    check(
        bids,
        lambda df: df.cube("auction", "paid").agg(F.sum("price"), F.grouping_id().alias("g")),
        "update",
    )


def test_a_grouping_expression_inside_result_expressions(bids: Bids) -> None:
    (operator,) = check(
        bids,
        lambda df: df.groupBy((F.col("price") % 3).alias("r"), F.length("name"), "price").agg(
            (F.sum("items") / F.count("*") + F.col("price")).alias("x"),
            ((F.col("price") % 3) * 10).alias("y"),
        ),
        "update",
    ).operators
    assert [key.name for key in operator.keys] == ["(price % CAST(3 AS BIGINT))", "length(name)", "price"]


def test_only_what_is_needed_is_read(bids: Bids) -> None:
    plan = cut(bids.stream.groupBy("bidder").agg(F.sum("price"), F.avg("score"), F.sum("score")), "update")
    assert plan.carrier.source.columns == ["k0", "c1", "c2"]
    assert [aggregate.op for aggregate in plan.operators[0].aggregates] == ["sum_int", "sum_float", "count"]


def test_of_rows_for_distinct_values_only_what_is_needed_is_kept(bids: Bids) -> None:
    functions = [F.count_distinct("price"), F.expr("sum(distinct items) filter (where paid)"), F.max("price")]
    (operator,) = cut(bids.stream.groupBy("bidder").agg(*functions), "update").operators
    assert isinstance(operator, GroupRowsSpec)
    assert [column.name for column in operator.kept] == ["bidder", "price", "paid", "items"]


def test_distinct_values_of_functions_that_count_none_twice_are_merged(bids: Bids) -> None:
    functions = [F.expr("max(distinct price)"), F.expr("min(distinct price) + 1")]
    (operator,) = cut(bids.stream.groupBy("bidder").agg(*functions), "update").operators
    assert [aggregate.op for aggregate in operator.aggregates] == ["max", "min"]


def test_the_source_keeps_the_watermark(bids: Bids) -> None:
    plan = cut(
        bids.stream.withWatermark("ts", "4 seconds").groupBy(F.window("ts", "10 seconds")).count(), "append"
    )
    assert "EventTimeWatermark" in plan.carrier.source._jdf.queryExecution().analyzed().toString()


@pytest.mark.parametrize(
    ("gap", "gap_us", "timer_us"),
    [
        ("'10 seconds'", 10**7, 10**6),
        ("'2 days 1 second'", 172_801 * 10**6, 172_801 * 10**6 // 128),
        ("make_interval(0, 0, 0, 0, 0, 0, items)", None, 10**7),
    ],
)
def test_sessions_with_their_gap(bids: Bids, gap: str, gap_us: int | None, timer_us: int) -> None:
    window = F.session_window("ts", F.expr(gap)).alias("w")
    frame = bids.stream.withWatermark("ts", "4 seconds").groupBy(window, "bidder").count()
    (operator,) = cut(frame, "append").operators
    assert isinstance(operator.time, Sessions)
    assert (operator.time.gap_us, operator.time.timer_us) == (gap_us, timer_us)
    assert operator.time.by_calendar == ("days" in gap)
    assert [key.name for key in operator.keys] == ["bidder"]
    (complete,) = cut(frame, "complete").operators
    assert isinstance(complete.time, Sessions)
    assert complete.time.timer_us == 0
    assert complete.drops_late_rows
    (untimed,) = cut(bids.stream.groupBy(window, "bidder").count(), "complete").operators
    assert not untimed.drops_late_rows


@pytest.mark.parametrize(
    ("key", "functions", "gathered"),
    [
        ("bidder", ["median(price)"], True),
        ("bidder", ["array_max(collect_list(price))", "percentile(score, 0.25) + 1"], True),
        ("name", ["size(array_agg(struct(price, name)))"], True),
        ("fee", ["median(items)"], True),
        ("score", ["median(price)"], False),
        ("array(bidder)", ["median(price)"], False),
        ("bidder", ["median(price)", "count(*)"], False),
        ("bidder", ["percentile(price, array(0.1, 0.2))"], False),
        ("bidder", ["percentile(price, 0.5, items)"], False),
        ("bidder", ["collect_list(price) filter (where paid)"], False),
        ("bidder", ["median(fee)"], False),
        ("bidder", ["mode(price)"], False),
    ],
)
def test_functions_that_only_gather_give_spark_one_row_a_group(
    bids: Bids, key: str, functions: list[str], gathered: bool
) -> None:
    timed = bids.stream.withWatermark("ts", "1 second")
    for window in (F.window("ts", "10 seconds"), F.session_window("ts", "10 seconds")):
        plan = cut(timed.groupBy(window, F.expr(key)).agg(*map(F.expr, functions)), "append")
        assert [isinstance(reshaping, Gathering) for reshaping in plan.reshapings] == [gathered]
