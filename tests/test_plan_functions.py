"""Every aggregate that is kept, its result type and nulls, against Spark's batch results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.plan_bench import Bids, check


@pytest.fixture(scope="module")
def bids(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bids]:
    yield Bids(spark, tmp_path_factory.mktemp("functions"))


FUNCTIONS = {
    "count": ["count(*)", "count(1)", "count(price)", "count(name)", "count(price, name)", "count_if(paid)"],
    "sum of integers": ["sum(items)", "sum(price)", "try_sum(items)", "sum(cast(items as tinyint))"],
    "sum of floats": ["sum(score)", "try_sum(score)", "sum(cast(score as float))"],
    "sum of decimals": ["sum(fee)", "try_sum(fee)", "sum(cast(fee as decimal(38,2)))"],
    "average": ["avg(items)", "mean(score)", "avg(fee)", "try_avg(fee)", "try_avg(items)"],
    "extremes": [f"{f}({c})" for f in ("min", "max") for c in ("price", "name", "fee", "paid", "ts", "blob")],
    "extremes by another column": ["max_by(name, struct(price, name))", "min_by(price, name)"],
    "booleans": ["bool_and(paid)", "every(paid)", "bool_or(paid)", "some(paid)", "any(paid)"],
    "bits": [
        f"bit_{f}({c})" for f in ("and", "or", "xor") for c in ("items", "price", "cast(items as short)")
    ],
    "spread": [
        f"{f}({c})"
        for f in ("stddev", "stddev_pop", "var_samp", "var_pop", "std", "variance")
        for c in ("items", "price")
    ],
    "regression": ["regr_count(price, items)", "regr_avgx(price, items)"],
    "conditions": [
        "count(*) filter (where price > 9)",
        "sum(price) filter (where paid)",
        "count(name) filter (where price > 9 and paid)",
        "avg(fee) filter (where false)",
        "sum(case when paid then price else 0 end)",
    ],
    "expressions": ["sum(price * items) - max(price) + count(*)", "cast(avg(price) as decimal(10,3))"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(bids: Bids, name: str) -> None:
    def query(df: DataFrame) -> DataFrame:
        if name == "spread":
            df = df.where("price is not null")
        return df.groupBy("auction").agg(*(F.expr(f"{f} as `{f}`") for f in FUNCTIONS[name]))

    check(bids, query, "update")


@pytest.mark.parametrize("nulls", ["", " ignore nulls"])
def test_first_and_last_take_the_rows_as_they_come(bids: Bids, nulls: str) -> None:
    # Fixed-width columns only: for others Spark sorts the rows first, and its answer is any of them.
    functions = [f"{f}({c}){nulls}" for f in ("first", "last", "any_value") for c in ("price", "items")]
    check(
        bids,
        lambda df: df.coalesce(1).groupBy("auction").agg(*(F.expr(f"{f} as `{f}`") for f in functions)),
        "update",
    )


def test_overflow_follows_the_mode_of_the_query(bids: Bids) -> None:
    def query(df: DataFrame) -> DataFrame:
        large = F.lit(2**62)
        return (
            df.where("auction is not null")
            .groupBy("auction")
            .agg(F.try_sum(large).alias("try"), F.expr("try_sum(cast(9e27 as decimal(28,0)))").alias("fits"))
        )

    (operator,) = check(bids, query, "update").operators
    assert [aggregate.op for aggregate in operator.aggregates] == ["sum_int_try", "sum_decimal"]
    ansi = bids.spark.conf.get("spark.sql.ansi.enabled")
    try:
        bids.spark.conf.set("spark.sql.ansi.enabled", "false")
        wrapping = lambda df: df.groupBy("auction").agg(F.sum(F.lit(2**62)).alias("s"))  # noqa: E731
        (operator,) = check(bids, wrapping, "update").operators
        assert [aggregate.op for aggregate in operator.aggregates] == ["sum_int_wrapping"]
    finally:
        bids.spark.conf.set("spark.sql.ansi.enabled", ansi)


KEYS = [
    "name",
    "fee",
    "score",
    "cast(score as float)",
    "cast(ts as date)",
    "date_trunc('second', ts)",
    "cast(ts as timestamp_ntz)",
    "blob",
    "struct(auction, score)",
    "array(score, -0.0D)",
    "map('a', items, 'b', auction)",
    "if(paid, map('b', 1, 'a', 2), map('a', 2, 'b', 1))",
    "paid",
    "cast(items as tinyint)",
    "null",
    "make_dt_interval(0, items)",
]


@pytest.mark.parametrize("key", KEYS)
def test_key(bids: Bids, key: str) -> None:
    check(bids, lambda df: df.groupBy(F.expr(key).alias("k")).agg(F.count("*"), F.sum("price")), "update")


def test_zeros_are_one_key_and_so_are_nans(bids: Bids) -> None:
    keys = "element_at(array(0.0D, -0.0D, double('NaN'), -double('NaN')), cast(price % 4 + 1 as int))"
    (operator,) = check(
        bids, lambda df: df.where("price > 0").groupBy(F.expr(keys).alias("k")).count(), "update"
    ).operators
    assert operator.keys[0].type == "double"
