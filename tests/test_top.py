"""`top` and `latest`, compared with what Spark gives for all rows of a group, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.frame import StreamFrame
from tests.oracle_data import VALUES, Columns, Shape, schema_of, shapes, tables
from tests.oracle_run import Outputs, assert_same, run_both, stream, try_shapes
from tests.streams import read_stream, write_batches

COLUMNS: Columns = {name: VALUES[name] for name in ("i8", "f64", "t", "list", "b")}

Form = tuple[Callable[[DataFrame], DataFrame], Callable[[StreamFrame], StreamFrame]]
"""What Spark runs, and what Millpond runs."""


def exploded(rows: DataFrame, keys: list[str | Column], n: int, *fields: str) -> DataFrame:
    """All rows of a group in order, the largest first, of which the first are taken."""
    ordered = F.sort_array(F.collect_list(F.struct(*fields)), asc=False)
    first = rows.groupBy(*keys).agg(F.slice(ordered, 1, n).alias("rows"))
    names = first.columns[:-1]
    return first.select(*names, F.posexplode("rows").alias("place", "row"))


def plain_numbers(rows: DataFrame) -> DataFrame:
    first = exploded(rows.select("g", "i8", "n", "u"), ["g"], 3, "i8", "n", "u")
    return first.select("g", "row.*", (F.col("place") + 1).alias("rank"))


def own_numbers(rows: StreamFrame) -> StreamFrame:
    return rows.select("g", "i8", "n", "u").groupBy("g").top(3, by="i8")


def plain_of_any_type(rows: DataFrame) -> DataFrame:
    first = exploded(rows, ["g", "b"], 4, "t", "f64", "list", "u")
    return first.select("g", "b", "row.u", "row.f64", "row.t", "row.list", (F.col("place") + 1).alias("rank"))


def own_of_any_type(rows: StreamFrame) -> StreamFrame:
    return (
        rows.select("u", "g", "f64", "b", "t", "list").groupBy("g", "b").top(4, ["t", F.desc("f64"), "list"])
    )


def plain_smallest(rows: DataFrame) -> DataFrame:
    """Ascending, nulls last: by the negative number, with a small one for null."""
    first = exploded(
        rows.withColumn("order", F.expr("coalesce(-int(i8), -1000)")), ["g"], 5, "order", "f64", "i8", "u"
    )
    return first.select("g", "row.u", "row.i8", "row.f64", (F.col("place") + 1).alias("rank")).where(
        "rank > 1"
    )


def own_smallest(rows: StreamFrame) -> StreamFrame:
    top = rows.select("u", "g", "i8", "f64").groupBy("g")
    return top.top(5, by=[F.asc_nulls_last("i8"), "f64"]).where("rank > 1")


def plain_expression(rows: DataFrame) -> DataFrame:
    rows = rows.withColumn("order", F.expr("abs(u - 40)"))
    first = exploded(rows, ["g"], 2, "order", "u", "t").where("row.u is not null")
    return (
        first.groupBy().count() if False else first.select("g", "row.u", "row.t", F.expr("place + 1 as rank"))
    )


def own_expression(rows: StreamFrame) -> StreamFrame:
    return rows.select("g", "u", "t").groupBy("g").top(2, by=F.abs(F.col("u") - 40).desc())


FORMS: dict[str, Form] = {
    "numbers": (plain_numbers, own_numbers),
    "any type": (plain_of_any_type, own_of_any_type),
    "smallest": (plain_smallest, own_smallest),
    "an expression": (plain_expression, own_expression),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", ["update", "complete"])
@pytest.mark.parametrize("form", FORMS)
def test_the_first_rows_are_those_of_a_sort(
    spark: SparkSession, tmp_path: Path, form: str, mode: OutputMode
) -> None:
    plain, own = FORMS[form]

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path)
        ours, theirs = run_both(spark, plain(rows), mode, tmp_path, own=own(mp.stream(rows)))
        assert ours.schema == theirs.schema
        assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
        assert_batches(ours, theirs)

    try_shapes(shapes(), compare, f"{form} {mode}")


def assert_batches(ours: Outputs, theirs: Outputs) -> None:
    for batch in sorted({*ours.batches, *theirs.batches}):
        mine, its = ours.batches.get(batch, []), theirs.batches.get(batch, [])
        assert_same(mine, its, ours.schema, f"batch {batch}")


def test_the_latest_row_is_the_largest(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).select("u", "g", "t", "i8")
        plain = rows.groupBy("g").agg(F.max(F.struct("i8", "u", "t")).alias("last"))
        plain = plain.select("g", "last.u", "last.t", "last.i8")
        own = mp.stream(rows).groupBy("g").latest(by="i8")
        ours, theirs = run_both(spark, plain, "update", tmp_path, own=own)
        assert ours.schema == theirs.schema
        assert_batches(ours, theirs)

    try_shapes(shapes(), compare, "latest")


def test_the_latest_row_may_hold_what_has_no_order(spark: SparkSession, tmp_path: Path) -> None:
    rows = stream(spark, Shape(1, (20, 20), 4, 0.0, 0.0), COLUMNS, tmp_path)
    rows = rows.select("g", "u", F.create_map("g", "u").alias("m"))
    plain = rows.groupBy("g").agg(F.max("u").alias("u")).select("g", "u", F.create_map("g", "u").alias("m"))
    own = mp.stream(rows).groupBy("g").latest("u")
    ours, theirs = run_both(spark, plain, "update", tmp_path, own=own)
    assert_batches(ours, theirs)


def test_windows_give_their_first_rows_when_they_end(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withWatermark("ts", "3 seconds")
        window = F.window("ts", "8 seconds", "4 seconds").alias("w")
        plain = exploded(rows, [window, "g"], 2, "u").select("w", "g", "row.u", F.expr("place + 1 as rank"))
        own = mp.stream(rows.select("ts", "g", "u")).groupBy(window, "g").top(2, by="u")
        own = own.select("w", "g", "u", "rank")
        ours, theirs = run_both(spark, plain, "append", tmp_path, own=own)
        assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
        assert_same(ours.total(), theirs.total(), ours.schema, "all batches")

    try_shapes(shapes(in_order=True), compare, "windows")


def test_a_restarted_query_knows_the_first_rows(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(seed=3, rows=(50, 50, 50, 50), groups=5, nulls=0.1, disorder_s=0.0)
    batches = tables(shape, COLUMNS)
    outputs = Outputs()
    for part in (batches[:2], batches[2:]):
        write_batches(tmp_path / "rows", part)
        rows = read_stream(spark, tmp_path / "rows", schema_of(COLUMNS))
        query = own_of_any_type(mp.stream(rows)).writeStream.outputMode("update").foreachBatch(outputs)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
    last: dict[Any, Any] = {}
    for batch in sorted(outputs.batches):
        last |= {(row[0], row[1], row[-1]): row for row in outputs.batches[batch]}
    batch_rows = spark.read.schema(schema_of(COLUMNS)).parquet(str(tmp_path / "rows"))
    expected = Outputs()
    expected(plain_of_any_type(batch_rows), 0)
    assert_same(sorted(last.values(), key=repr), expected.batches[0], outputs.schema, "all batches")


def rate(spark: SparkSession) -> StreamFrame:
    return mp.stream(spark.readStream.format("rate").load().withColumn("k", F.expr("value % 7")))


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3", None])
def test_a_number_of_rows_below_one_is_refused(spark: SparkSession, n: Any) -> None:
    with pytest.raises(InvalidQuery, match="whole number"):
        rate(spark).groupBy("k").top(n, by="value")


def test_a_column_that_is_not_there_is_refused(spark: SparkSession) -> None:
    orders: list[Any] = ["price", F.desc("price"), F.col("price") + 1, ["value", "price"]]
    for by in orders:
        with pytest.raises(InvalidQuery, match="price"):
            rate(spark).groupBy("k").top(3, by=by)
        with pytest.raises(InvalidQuery, match="price"):
            rate(spark).groupBy("k").latest(by=by)


@pytest.mark.parametrize("by", [[], 3, [None]])
def test_an_order_by_nothing_is_refused(spark: SparkSession, by: Any) -> None:
    with pytest.raises(InvalidQuery, match="column"):
        rate(spark).groupBy("k").top(3, by=by)


def test_an_order_that_spark_does_not_have_is_refused(spark: SparkSession) -> None:
    rows = rate(spark).withColumn("m", F.create_map("k", "value"))
    with pytest.raises(InvalidQuery, match="no order"):
        rows.groupBy("k").top(3, by="m")
    with pytest.raises(InvalidQuery, match="no order"):
        rate(spark).withColumn("c", F.expr("'a' collate UTF8_LCASE")).groupBy("k").top(3, by="c")
    with pytest.raises(InvalidQuery, match="top"):
        rate(spark).groupBy("k").latest(by=F.asc("value"))


def test_a_second_column_named_rank_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidQuery, match="rank"):
        rate(spark).withColumn("Rank", F.lit(1)).groupBy("k").top(3, by="value")


def test_groups_of_several_sets_of_keys_are_refused(spark: SparkSession) -> None:
    rows = rate(spark)
    for groups in (rows.rollup("k"), rows.cube("k"), rows.groupBy("k").pivot("value", [1, 2])):
        with pytest.raises(InvalidQuery, match="groupBy"):
            groups.top(1, by="timestamp")


def test_append_mode_is_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    writer = rate(spark).groupBy("k").top(3, by="value").writeStream.outputMode("append").format("noop")
    with pytest.raises(InvalidQuery, match="update"):
        writer.option("checkpointLocation", str(tmp_path)).start()
    assert not spark.streams.active
