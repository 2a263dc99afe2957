"""Joins by window whose rows are kept in panes, or as copies where the plan has no such shape, against Spark's own
result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.semantics.operator import KeyedTime, Panes, WindowRowsSpec
from millpond.spark.plan import cut
from tests.join_run import random_batches, run_both, sides, start_millpond, started_thrice
from tests.oracle_run import Outputs, assert_same, configured

Query = Callable[[DataFrame, DataFrame, str], DataFrame]
SHUFFLED = {
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__autoBroadcastJoinThreshold": "-1",
    "spark__sql__shuffle__partitions": "3",
}
BY_TASKS = {"millpond.ingest.localRows": "0", "millpond.emit.localRows": "0", "shards": "3"}
PANES, COPIES = [Panes, Panes], [KeyedTime, KeyedTime]


def sliding(column: str) -> Column:
    return F.window(column, "12 seconds", "4 seconds")


def renamed(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """Under several names, the last of them given below a filter."""
    one = left.select(sliding("lts").alias("a"), "lk", "lname").withColumnRenamed("a", "w").where("lk <> 3")
    other = right.select("rk", F.col("rname"), sliding("rts").alias("b")).select(
        "rname", F.col("b").alias("w"), "rk"
    )
    return one.join(other, (F.col("lk") == F.col("rk")) & (one["w"] == other["w"]), how)


def computed(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """Columns, one of them a key, that are made above the windows, from others that go no further."""
    one = left.select("*", sliding("lts")).select(
        "window", (F.col("lk") % 4).alias("k"), F.col("lv") * 2, "lname"
    )
    other = (
        right.select("*", sliding("rts"))
        .withColumn("k", F.col("rk") % 4)
        .withColumn("half", F.col("rv") / 2)
        .where("half > 1 and rg is not null")
        .drop("rts", "rv", "rk")
    )
    return one.join(other, ["window", "k"], how)


def uneven(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    lengths = ("13 seconds", "5 seconds", "2 seconds")
    one = left.select(F.window("lts", *lengths), F.col("lk").alias("k"), "lname")
    other = right.select(F.window("rts", *lengths), F.col("rk").alias("k"), "rname")
    return one.join(other, ["window", "k"], how)


def tumbling(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    one = left.select(F.window("lts", "10 seconds"), "lk", F.length("lname").alias("n"))
    other = (
        right.withColumn("window", F.window("rts", "10 seconds"))
        .where("rv > 2")
        .withColumnRenamed("rk", "lk")
        .drop("rts")
    )
    return one.join(other, ["window", "lk"], how)


def with_itself(left: DataFrame, _: DataFrame, how: str) -> DataFrame:
    rows = left.select(sliding("lts"), "lk", "lv", "lname").where("lv is not null")
    others = rows.select("window", "lk", F.col("lname").alias("other"))
    return rows.join(others, ["window", "lk"], how)


def keyed_by_the_window_too(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    one, other = (
        left.select(sliding("lts"), "lk", "lname"),
        right.select(sliding("rts").alias("w"), "rk", "rname"),
    )
    condition = (F.col("window") == F.col("w")) & (F.col("window.start") == F.col("w.start"))
    return one.join(other, condition & (F.col("lk") == F.col("rk")), how)


def one_side_looks_at_the_window(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    one = left.select(sliding("lts"), F.col("lk").alias("k"), "lname")
    other = right.select(sliding("rts"), F.col("rk").alias("k"), "rname").withColumn(
        "start", F.col("window.start")
    )
    return one.join(other, ["window", "k"], how)


def filtered_by_the_window(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    one = left.select(sliding("lts"), F.col("lk").alias("k"), "lname").where("second(window.start) % 3 > 0")
    other = right.select(sliding("rts"), F.col("rk").alias("k"), "rname").where("second(window.end) % 5 > 0")
    return one.join(other, ["window", "k"], how)


def with_the_window_twice(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """Both equal to the same column of the other side, so that rows must not be placed by either."""
    one = left.select(sliding("lts"), "lk", "lname")
    other = right.select("*", sliding("rts").alias("w")).select("rk", "rname", "w", F.col("w").alias("again"))
    return one.join(other, F.expr("window = w and window = again and lk = rk"), how)


def by_the_window_alone(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    one, other = left.select(sliding("lts"), "lk", "lname"), right.select(sliding("rts"), "rk", "rname")
    return one.where("lv > 5").join(other.where("rv > 5"), "window", how)


CASES: list[tuple[Query, str, list[type]]] = [
    (renamed, "inner", PANES),
    (renamed, "full_outer", PANES),
    (computed, "left_outer", PANES),
    (computed, "inner", PANES),
    (uneven, "full_outer", PANES),
    (tumbling, "left_outer", PANES),
    (with_itself, "inner", PANES),
    (with_itself, "left_outer", PANES),
    (keyed_by_the_window_too, "left_outer", PANES),
    (one_side_looks_at_the_window, "right_outer", [Panes, KeyedTime]),
    (filtered_by_the_window, "left_outer", COPIES),
    (with_the_window_twice, "left_outer", [Panes, KeyedTime]),
    (by_the_window_alone, "inner", PANES),
]


@pytest.mark.parametrize(
    ("query", "how", "times"), CASES, ids=[f"{query.__name__}-{how}" for query, how, _ in CASES]
)
def test_a_join_by_window_gives_what_spark_gives(
    spark: SparkSession, tmp_path: Path, query: Query, how: str, times: list[type]
) -> None:
    """Spark gives pairs at once, Millpond when the window has ended: they agree on the windows that have. A twentieth
    of the rows has no time, many are late for some of their windows, some for all."""
    seed = f"{query.__name__} {how}"
    left, right = sides(spark, tmp_path, random_batches(f"l{seed}"), random_batches(f"r{seed}"))
    frame = query(left.withWatermark("lts", "8 seconds"), right.withWatermark("rts", "5 seconds"), how)
    operators = cut(frame, "append").operators
    assert [type(operator.time) for operator in operators] == times
    with configured(spark, **SHUFFLED):
        ours, theirs = run_both(spark, frame, tmp_path, **BY_TASKS)
    windows = [
        i for i, (_, kind) in enumerate(ours.schema) if kind == "struct<start:timestamp,end:timestamp>"
    ]

    def end(row: Any) -> Any:
        return max(row[i][1] for i in windows if row[i] is not None)

    assert ours.schema == theirs.schema
    assert ours.total(), "no window ended, so the comparison shows nothing"
    last = max(map(end, ours.total()))
    expected = [row for row in theirs.total() if end(row) <= last]
    assert_same(ours.total(), expected, ours.schema, "windows that ended")


def test_null_keys_are_equal_in_a_full_outer_join_alone(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lnull"), random_batches("rnull"))
    one = left.withWatermark("lts", "8 seconds").select(
        sliding("lts"), F.lit(None).cast("long").alias("k"), "lk"
    )
    other = right.withWatermark("rts", "5 seconds").select(
        sliding("rts"), F.lit(None).cast("long").alias("k"), "rk"
    )
    for how, are_joined in (("full_outer", True), ("left_outer", False)):
        ours = Outputs()
        start_millpond(one.join(other, ["window", "k"], how), ours, tmp_path / how)
        assert ours.total()
        assert any(None not in (row[2], row[3]) for row in ours.total()) == are_joined


def test_columns_that_nothing_above_a_join_looks_at_are_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lsome"), random_batches("rsome"))
    one = left.withWatermark("lts", "8 seconds").select("*", sliding("lts"))
    other = right.withWatermark("rts", "5 seconds").select("*", sliding("rts").alias("w"))
    whole = one.join(other, F.expr("window = w and lk = rk and lv <= rv"), "left_outer")
    frame = whole.select("window", "lname", (F.col("rname") == F.col("lname")).alias("same"))
    kept = []
    for operator in cut(frame, "append").operators:
        assert isinstance(operator, WindowRowsSpec)
        kept.append([column.name for column in operator.kept])
    assert kept == [["lk", "lv", "lname"], ["rk", "rv", "rname"]]
    ours, theirs = run_both(spark, frame, tmp_path, **BY_TASKS)
    assert ours.total()
    last = max(row[0][1] for row in ours.total())
    assert_same(
        ours.total(), [row for row in theirs.total() if row[0][1] <= last], ours.schema, "windows that ended"
    )


def test_a_join_gives_all_columns_of_its_sides_as_they_stand(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is between windows and join. Of the two times of a side that it has then, Spark goes by the first, so
    that it joins without the other."""
    left, right = sides(spark, tmp_path, random_batches("lall"), random_batches("rall"))
    left, right = left.withWatermark("lts", "8 seconds"), right.withWatermark("rts", "5 seconds")
    condition = F.expr("window = w and lk = rk and 1 = rv % 2 and lv <= rv")
    one, other = left.select(sliding("lts"), "*"), right.select("*", sliding("rts").alias("w"))
    whole = one.join(other, condition, "left_outer")
    operators = cut(whole, "append").operators
    assert [type(operator.time) for operator in operators] == PANES
    frame = one.drop("lts").join(other.drop("rts"), condition, "left_outer")
    ours, theirs = run_both(spark, frame, tmp_path, own=mp.stream(whole), **BY_TASKS)
    assert [name for name, _ in ours.schema] == whole.columns
    places = [whole.columns.index(name) for name in frame.columns]
    given = sorted((tuple(row[place] for place in places) for row in ours.total()), key=repr)
    last = max(row[0][1] for row in given)
    expected = [row for row in theirs.total() if row[0][1] <= last]
    assert_same(given, expected, theirs.schema, "windows that ended")


def test_a_side_of_which_only_the_window_is_left(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lonly"), random_batches("ronly"))
    one = left.withWatermark("lts", "8 seconds").where("lv > 7").select(sliding("lts"))
    other = right.withWatermark("rts", "5 seconds").select("rk", "rname", sliding("rts").alias("w"))
    frame = one.join(other, F.expr("window = w"))
    ours, theirs = run_both(spark, frame, tmp_path, **BY_TASKS)
    assert ours.total(), "no window ended, so the comparison shows nothing"
    last = max(row[0][1] for row in ours.total())
    expected = [row for row in theirs.total() if row[0][1] <= last]
    assert_same(ours.total(), expected, ours.schema, "windows that ended")


def test_columns_without_meaning_for_a_copy_are_made_of_each(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, random_batches("lr"), random_batches("rr"))
    one = left.withWatermark("lts", "8 seconds").select(sliding("lts"), "lk", F.rand().alias("dice"))
    other = right.withWatermark("rts", "5 seconds").select(sliding("rts"), F.col("rk").alias("lk"), "rname")
    operators = cut(one.join(other, ["window", "lk"]), "append").operators
    assert [type(operator.time) for operator in operators] == [KeyedTime, Panes]


def test_what_goes_no_further_than_below_the_join_is_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, tmp_path, [], [])
    frame = computed(left.withWatermark("lts", "8 seconds"), right.withWatermark("rts", "5 seconds"), "inner")
    kept = []
    for operator in cut(frame, "append").operators:
        assert isinstance(operator, WindowRowsSpec)
        kept.append([column.name for column in operator.kept])
    assert kept == [["k", "(lv * 2)", "lname"], ["rg", "rname", "k", "half"]]


def test_a_row_is_kept_once_for_all_its_windows(spark: SparkSession, tmp_path: Path) -> None:
    """Thirty windows hold a row; the watermark has passed some of them, and none of the rows."""
    rows = [{"k": i, "g": "a", "ts": 1_000_000_000 + i * 1_000, "v": i, "name": "n"} for i in range(100)]
    table = pa.Table.from_pylist(rows, schema=random_batches("s", batches=1)[0].schema)
    left, right = sides(spark, tmp_path, [table, table.slice(0, 1)], [table.slice(0, 40)] * 2)
    frames = (
        rows.withWatermark(f"{side}ts", "0 seconds").select(
            F.window(f"{side}ts", "30 seconds", "1 second"), F.col(f"{side}k").alias("k"), f"{side}name"
        )
        for side, rows in (("l", left), ("r", right))
    )
    one, other = frames
    query = (
        mp.stream(one.join(other, ["window", "k"]))
        .writeStream.foreachBatch(lambda rows, _: rows.collect())
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    operators = query.explain(as_dict=True)
    assert [operator["rows"] for operator in operators] == [101, 80]
    assert [operator["keys"] for operator in operators] == [["k", "window"]] * 2


def test_a_restarted_join_by_window_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    left, right = random_batches("le"), random_batches("re")

    def query(one: DataFrame, other: DataFrame) -> DataFrame:
        return renamed(
            one.withWatermark("lts", "8 seconds"), other.withWatermark("rts", "5 seconds"), "full_outer"
        )

    whole = Outputs()
    start_millpond(query(*sides(spark, tmp_path, left, right)), whole, tmp_path / "whole")
    assert whole.total()
    parts = started_thrice(spark, tmp_path, left, right, query)
    assert_same(parts.total(), whole.total(), whole.schema, "all batches")
