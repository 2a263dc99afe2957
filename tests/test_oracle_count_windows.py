"""Count windows against Spark's own aggregates over the same rows: on a batch, rows are numbered by key, and every so
many of them are a group. Half of the batches come after a restart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import millpond as mp
from millpond.spark.frame import StreamFrame, StreamGroups
from tests.oracle_data import KEYS, VALUES, Shape, schema_of, shapes, tables
from tests.oracle_run import FEW_ROWS, Outputs, assert_refused, assert_same, configured, named, try_shapes
from tests.streams import read_stream, write_batches

COLUMNS = {
    **{name: VALUES[name] for name in ("i32", "i64", "f64", "d18", "t", "b", "pair")},
    **{name: KEYS[name] for name in ("k_t", "k_f64", "k_pair")},
}
SCHEMA = schema_of(COLUMNS) + ", batch int, place bigint"
MERGED = [
    "count(*)",
    "count(i32)",
    "sum(i64)",
    "avg(d18)",
    "min(t)",
    "max(f64)",
    "first(t)",
    "last(i32, true)",
    "max_by(pair, place)",
    "stddev(i32)",
    "sum(i32) filter (where b)",
]
UNMERGED = [
    "median(i32)",
    "sort_array(collect_list(t))",
    "collect_list(place)",
    "count(*)",
    "mode(b)",
    "count(distinct k_t)",
    "sum(distinct g) filter (where b)",
]

_numbers = itertools.count()
_small: list[dict[str, str]] = [
    {},
    # Rows and outputs come by way of tasks, and state lies on disk.
    {"millpond.ingest.localRows": "0", "millpond.emit.localRows": "0", "millpond.memory.bytes": "1m",
     "millpond.write.bufferBytes": "64k"},
]  # fmt: skip


class Case:
    """The rows of a shape as a stream in the order of their places, and as a batch."""

    def __init__(self, spark: SparkSession, shape: Shape, scratch: Path) -> None:
        self._spark = spark
        self._scratch = scratch / f"case-{next(_numbers)}"
        places = itertools.count()
        self._tables = [
            table.append_column("batch", pa.array([n] * table.num_rows, pa.int32())).append_column(
                "place", pa.array([next(places) for _ in range(table.num_rows)], pa.int64())
            )
            for n, table in enumerate(tables(shape, COLUMNS))
        ]

    def run(self, query: Callable[[StreamFrame], StreamFrame], mode: str, **options: str) -> Outputs:
        given = Outputs()
        half = len(self._tables) // 2
        for part in (self._tables[:half], self._tables[half:]):
            write_batches(self._scratch / "rows", part)
            rows = read_stream(self._spark, self._scratch / "rows", SCHEMA)
            with configured(self._spark, **FEW_ROWS):
                running = (
                    query(mp.stream(rows))
                    .writeStream.outputMode(mode)
                    .foreachBatch(given)
                    .option("checkpointLocation", str(self._scratch / "checkpoint"))
                    .options(**options)
                    .trigger(availableNow=True)
                    .start()
                )
            running.awaitTermination()
        return given

    def rows(self) -> DataFrame:
        return self._spark.read.schema(SCHEMA).parquet(str(self._scratch / "rows"))


def numbered(rows: DataFrame, keys: list[Any], size: int) -> DataFrame:
    order = Window.partitionBy(*keys or [F.lit(1)]).orderBy("place")
    number = F.floor((F.row_number().over(order) - 1) / size)
    return rows.withColumn("w", F.struct(number.cast("bigint").alias("number")))


def compare(given: Outputs, expected: DataFrame) -> None:
    """`expected`: rows with the batch in which each comes as the last column."""
    of_batch: dict[int, Outputs] = {}
    everything = Outputs()
    everything(expected, 0)
    for row in everything.batches[0]:
        of_batch.setdefault(row[-1], Outputs()).batches.setdefault(0, []).append(row[:-1])
    schema = everything.schema[:-1]
    assert given.schema == schema
    assert of_batch, "the query gives no rows, so the comparison shows nothing"
    for batch in sorted({*given.batches, *of_batch}):
        theirs = of_batch[batch].batches[0] if batch in of_batch else []
        assert_same(given.batches.get(batch, []), theirs, schema, f"batch {batch}")


@pytest.mark.sample(4)
@pytest.mark.parametrize("functions", [MERGED, UNMERGED], ids=["merged", "rows"])
@pytest.mark.parametrize(
    ("name", "size"), [("one key", 3), ("one key", 1), ("several keys", 2), ("no key", 7)]
)
def test_full_windows_are_those_of_a_batch(
    spark: SparkSession, tmp_path: Path, functions: list[str], name: str, size: int
) -> None:
    keys: list[Any] = {
        "one key": ["g"],
        "several keys": ["k_t", (F.col("g") % 2).alias("half"), "k_f64"],
        "no key": [],
    }[name]

    def query(rows: StreamFrame) -> StreamFrame:
        return rows.groupBy(*keys, mp.count_window(size).alias("w")).agg(*named(functions))

    def attempt(shape: Shape) -> None:
        case = Case(spark, shape, tmp_path)
        given = case.run(query, "append", **_small[next(_numbers) % 2])
        groups = numbered(case.rows(), keys, size).groupBy(*keys, "w")
        expected = groups.agg(*named(functions), F.max("batch").alias("batch"), F.count("*").alias("rows"))
        compare(given, _in_order(expected.where(f"rows = {size}").drop("rows")))

    try_shapes(shapes(rows=40), attempt, f"count windows, {name}, {size}, {functions[0]}")


@pytest.mark.parametrize("local_rows", ["20000", "0"])
@pytest.mark.parametrize("function", ["count(*)", "size(collect_list(1))"])
def test_rows_are_counted_of_which_no_column_is_looked_at(
    spark: SparkSession, tmp_path: Path, function: str, local_rows: str
) -> None:
    def query(rows: StreamFrame) -> StreamFrame:
        return rows.groupBy(mp.count_window(7).alias("w")).agg(F.expr(function).alias("n"))

    def attempt(shape: Shape) -> None:
        case = Case(spark, shape, tmp_path)
        given = case.run(query, "append", **{"millpond.ingest.localRows": local_rows})
        groups = numbered(case.rows(), [], 7).groupBy("w")
        expected = groups.agg(F.expr(function).alias("n"), F.max("batch").alias("batch")).where("n = 7")
        compare(given, expected)

    try_shapes(shapes(rows=40), attempt, f"count windows, {function}, no column")


def _in_order(frame: DataFrame) -> DataFrame:
    """Spark gathers lists in no order that is promised; places are in the order of arrival."""
    columns = [
        F.sort_array(F.col("`collect_list(place)`")).alias(name)
        if name == "collect_list(place)"
        else F.col(f"`{name}`")
        for name in frame.columns
    ]
    return frame.select(*columns)


def test_update_mode_gives_the_values_so_far(spark: SparkSession, tmp_path: Path) -> None:
    def query(rows: StreamFrame) -> StreamFrame:
        return rows.groupBy("g", mp.count_window(5)).agg(*named(MERGED))

    def attempt(shape: Shape) -> None:
        case = Case(spark, shape, tmp_path)
        given = case.run(query, "update")
        rows = numbered(case.rows(), ["g"], 5).withColumnRenamed("w", "count_window").cache()
        batches = rows.select(F.col("batch").alias("at")).distinct()
        so_far = rows.join(batches, rows["batch"] <= batches["at"]).groupBy("g", "count_window", "at")
        values = so_far.agg(*named(MERGED), F.max("batch").alias("batch"))
        touched = values.where("batch = at").select("g", "count_window", *_quoted(MERGED), "batch")
        compare(given, touched)

    try_shapes(shapes(rows=40), attempt, "count windows, update")


def _quoted(names: list[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def in_pandas(groups: StreamGroups | Any) -> Any:
    def of_group(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        assert list(rows.columns) == ["g", "place", "i32", "batch"]
        made = {"g": [key[0]], "number": [key[1]["number"]], "places": [list(rows["place"])]}
        return pd.DataFrame(made)

    return groups.applyInPandas(of_group, "g int, number bigint, places array<bigint>")


def in_arrow(groups: StreamGroups | Any) -> Any:
    def of_group(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        assert rows.column_names == ["g", "place", "i32", "batch"]
        made = {
            "g": [key[0].as_py()],
            "number": [key[1].as_py()["number"]],
            "places": [rows["place"].to_pylist()],
        }
        return pa.table(
            made, pa.schema([("g", pa.int32()), ("number", pa.int64()), ("places", pa.list_(pa.int64()))])
        )

    return groups.applyInArrow(of_group, "g int, number bigint, places array<bigint>")


def as_aggregate(groups: StreamGroups | Any) -> Any:
    @F.pandas_udf("array<bigint>")  # type: ignore[call-overload, untyped-decorator]
    def in_order(places: pd.Series) -> Any:
        return list(places)

    return groups.agg(in_order("place").alias("places")).select(
        "g", F.col("w.number").alias("number"), "places"
    )


@pytest.mark.parametrize("apply", [in_pandas, in_arrow, as_aggregate])
def test_python_code_gets_all_rows_of_a_window_in_the_order_of_arrival(
    spark: SparkSession, tmp_path: Path, apply: Callable[[Any], Any]
) -> None:
    def query(rows: StreamFrame) -> StreamFrame:
        return apply(rows.select("g", "place", "i32", "batch").groupBy("g", mp.count_window(4).alias("w")))

    def attempt(shape: Shape) -> None:
        case = Case(spark, shape, tmp_path)
        given = case.run(query, "append", **_small[next(_numbers) % 2])
        groups = numbered(case.rows(), ["g"], 4).groupBy("g", F.col("w.number").alias("number"))
        places = F.sort_array(F.collect_list("place")).alias("places")
        compare(given, groups.agg(places, F.max("batch").alias("batch")).where("size(places) = 4"))

    try_shapes(shapes(rows=40), attempt, f"count windows, {apply.__name__}")


def test_the_first_rows_of_a_window(spark: SparkSession, tmp_path: Path) -> None:
    def query(rows: StreamFrame) -> StreamFrame:
        return rows.select("g", "place", "t").groupBy("g", mp.count_window(3)).top(2, by="place")

    def attempt(shape: Shape) -> None:
        case = Case(spark, shape, tmp_path)
        given = case.run(query, "append", **_small[next(_numbers) % 2])
        rows = numbered(case.rows(), ["g"], 3).withColumnRenamed("w", "count_window")
        of_window = Window.partitionBy("g", "count_window")
        ranked = (
            rows.withColumn("rank", F.row_number().over(of_window.orderBy(F.desc("place"))))
            .withColumn("filled", F.max("batch").over(of_window))
            .withColumn("rows", F.count("*").over(of_window))
        )
        first = ranked.where("rank <= 2 and rows = 3")
        compare(given, first.select("g", "count_window", "place", "t", "rank", "filled"))

    try_shapes(shapes(rows=40), attempt, "count windows, top")


def test_above_its_groups_a_window_is_a_column_like_others(spark: SparkSession, tmp_path: Path) -> None:
    def query(rows: StreamFrame) -> StreamFrame:
        latest = rows.select("g", "place", "i32").groupBy("g", mp.count_window(3)).latest(by="place")
        return latest.where("count_window.number % 2 = 0").select("g", latest["count_window.number"], "place")

    def attempt(shape: Shape) -> None:
        case = Case(spark, shape, tmp_path)
        given = case.run(query, "append")
        groups = numbered(case.rows(), ["g"], 3).groupBy("g", F.col("w.number").alias("number"))
        values = groups.agg(
            F.max("place").alias("place"), F.max("batch").alias("batch"), F.count("*").alias("n")
        )
        compare(given, values.where("n = 3 and number % 2 = 0").drop("n"))

    try_shapes(shapes(rows=40), attempt, "count windows, latest")


REFUSED: list[tuple[str, str, str, Callable[[StreamFrame], Any]]] = [
    (
        "complete mode",
        "complete",
        "full windows are not kept",
        lambda rows: rows.groupBy("g", mp.count_window(3)).count(),
    ),
    (
        "unmerged in update mode",
        "update",
        "median needs all rows of count_window",
        lambda rows: rows.groupBy("g", mp.count_window(3)).agg(F.median("v")),
    ),
    (
        "another time",
        "append",
        "by a time that a watermark follows",
        lambda rows: (
            rows.withWatermark("ts", "1 second")
            .groupBy(F.window("ts", "1 second"), mp.count_window(3))
            .count()
        ),
    ),
    (
        "two windows",
        "append",
        "one window",
        lambda rows: rows.groupBy(mp.count_window(3), mp.count_window(4)),
    ),
    (
        "a name that is taken",
        "append",
        "there is one already",
        lambda rows: rows.groupBy(mp.count_window(3).alias("V")).count(),
    ),
    ("no rows", "append", "whole number of rows", lambda _: mp.count_window(0)),
    ("half a row", "append", "whole number of rows", lambda _: mp.count_window(1.5)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("mode", "message", "query"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_what_can_not_be_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, mode: str, message: str, query: Callable[[StreamFrame], Any]
) -> None:
    assert_refused(spark, tmp_path, mode, message, query)
