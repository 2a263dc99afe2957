"""Every aggregate over every type it takes, in every output mode, against Spark's own result batch by batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.semantics.operator import OutputMode
from tests.oracle_data import VALUES, Shape, shapes
from tests.oracle_run import check, named, stream, try_shapes
from tests.streams import read_stream, write_batches

INTEGERS = ("i8", "i16", "i32", "i64")
NUMBERS = (*INTEGERS, "f32", "f64", "d9", "d18", "d38")

SETS: dict[str, list[str]] = {
    "counts": [
        "count(*)",
        "count(1)",
        "count(i32)",
        "count(t)",
        "count(pair)",
        "count(i32, t, b)",
        "count(f64, day)",
        "count_if(b)",
        "count_if(i32 > 0 and f64 > 0)",
        "regr_count(i32, i16)",
        *(f"{f}(b)" for f in ("bool_and", "every", "bool_or", "some", "any")),
        *(f"bit_{f}({c})" for f in ("and", "or", "xor") for c in INTEGERS),
        "count(*) filter (where b)",
        "count(t) filter (where i32 > 0)",
        "bool_or(i8 > 100) filter (where i16 > 0)",
    ],
    "sums": [
        *(f"{f}({c})" for f in ("sum", "try_sum") for c in NUMBERS),
        *(f"avg({c})" for c in NUMBERS),
        *(f"try_avg({c})" for c in ("i32", "f64", "d18", "d38")),
        "sum(i32) filter (where b)",
        "avg(d9) filter (where b and i8 > 0)",
        "avg(f64) filter (where false)",
        "sum(case when b then i16 else 0 end)",
        "sum(case when b then d9 end)",
        "sum(if(b, f32, null))",
        "sum(i8) / (count(i16) + 1)",
        "sum(i32 * cast(i8 as bigint)) - sum(i64)",
        "cast(avg(d18) as decimal(20,3))",
        "coalesce(sum(i64), 0) + sum(u)",
    ],
    "extremes": [
        *(f"{f}({c})" for f in ("min", "max") for c in VALUES),
        "min(struct(day, at, d38))",
        "max(array(f64, 1.5D))",
        "min(named_struct('x', list, 'y', pair))",
        "max(t) filter (where b)",
        "min(make_dt_interval(0, 0, 0, i16))",
        "greatest(max(i32), min(i8))",
    ],
    "by another": [
        *(f"{f}({c}, u)" for f in ("min_by", "max_by") for c in VALUES),
        "min_by(i32, us)",
        "max_by(t, us)",
        "max_by(pair, struct(i8, u))",
        "min_by(us, struct(t, pair, us))",
        "max_by(u, array(u % 7, u))",
        "min_by(i16, if(b, u, null))",
        "max_by(map('a', i32), u)",
        "max_by(u, cast(u as decimal(30,2))) filter (where b)",
    ],
    "firsts": [
        *(
            f"{f}({c}){nulls}"
            for f in ("first", "last", "any_value")
            for c in ("once_i", "once_t", "once_pair", "n")
            for nulls in ("", " ignore nulls")
        ),
        "first(n) filter (where once_i > 500)",
        "last(n) filter (where once_t is null)",
    ],
    "spread": [
        f"{f}({c})"
        for f in ("stddev", "stddev_pop", "stddev_samp", "std", "variance", "var_pop", "var_samp")
        for c in ("i8", "i32", "f64", "d9")
    ],
}


CASES: list[tuple[OutputMode, tuple[str, ...]]] = [
    *(("update", (name,)) for name in SETS),
    ("complete", ("counts", "firsts")),
    ("complete", ("sums", "spread")),
    ("complete", ("extremes", "by another")),
]


@pytest.mark.parametrize(
    ("mode", "names"), CASES, ids=[f"{mode}: {', '.join(names)}" for mode, names in CASES]
)
def test_by_key(spark: SparkSession, tmp_path: Path, mode: OutputMode, names: tuple[str, ...]) -> None:
    functions = [function for name in names for function in SETS[name]]
    # Outputs take two ways to the sink: through the driver, and through a Spark job.
    options = {"millpond.emit.localRows": "20000" if mode == "update" else "0"}

    def compare(shape: Shape) -> None:
        frame = stream(spark, shape, VALUES, tmp_path).groupBy("g").agg(*named(functions))
        check(spark, frame, mode, tmp_path, **options)

    try_shapes(shapes(), compare, f"{mode} {names}")


COUNTED: dict[str, tuple[OutputMode, str]] = {
    "rows, update": ("update", "count(*)"),
    "rows, complete": ("complete", "count(*)"),
    "what is never null": ("update", "count(coalesce(v, 0))"),
    "kept rows, update": ("update", "size(collect_list(1))"),
    "kept rows, complete": ("complete", "size(collect_list(1))"),
}


@pytest.mark.parametrize("local_rows", ["20000", "0"])
@pytest.mark.parametrize(("mode", "function"), COUNTED.values(), ids=COUNTED)
def test_rows_are_counted_of_which_no_column_is_looked_at(
    spark: SparkSession, tmp_path: Path, mode: OutputMode, function: str, local_rows: str
) -> None:
    """Both ways of a batch: through the driver and, above that many rows, through tasks."""
    frame = counted_rows(spark, tmp_path).groupBy().agg(F.expr(function).alias("n"))
    ours = check(spark, frame, mode, tmp_path, **{"millpond.ingest.localRows": local_rows})
    assert [rows for _, rows in sorted(ours.batches.items())] == [[(21_000,)], [(21_007,)], [(21_008,)]]


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_rows_of_another_operator_are_counted(spark: SparkSession, tmp_path: Path, mode: OutputMode) -> None:
    distinct = counted_rows(spark, tmp_path).where("v > 2 or ts > timestamp '1970-01-01 00:30:00'")
    ours = check(spark, distinct.dropDuplicates(["v"]).groupBy().count(), mode, tmp_path)
    assert ours.batches[0] == [(10,)]


def test_rows_of_a_window_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows = counted_rows(spark, tmp_path).withWatermark("ts", "1 second")
    check(spark, rows.groupBy(F.window("ts", "1 minute")).count(), "append", tmp_path)


def counted_rows(spark: SparkSession, scratch: Path) -> DataFrame:
    """Above a given number, rows of a batch take another way than below."""
    batches, at = [], 0
    for size in (21_000, 7, 1):
        numbers = range(at, at + size)
        given = {"v": [n % 10 for n in numbers], "ts": [n * 100_000 for n in numbers]}
        batches.append(
            pa.table(given, pa.schema([("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])),
        )
        at += size
    write_batches(scratch / "counted", batches)
    return read_stream(spark, scratch / "counted", "v bigint, ts timestamp")
