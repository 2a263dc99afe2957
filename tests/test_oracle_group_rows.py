"""Aggregates that can't be merged in update and complete mode, in windows and without, against Spark's own result
batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.semantics.operator import OutputMode
from tests.oracle_data import KEYS, VALUES, Shape, schema_of, shapes, tables
from tests.oracle_run import Outputs, assert_same, check, named, run_both, stream, try_shapes
from tests.streams import read_stream, write_batches

COLUMNS = {
    **{name: VALUES[name] for name in ("i32", "f64", "t", "b", "pair")},
    **{name: KEYS[name] for name in ("k_t", "k_b", "k_f64")},
}

UNMERGED = [
    "median(i32)",
    "percentile(f64, 0.25) filter (where b)",
    "collect_list(u)",
    "sort_array(collect_set(t))",
    "listagg(t, '-') within group (order by u)",
    "first(i32)",
    "count(*)",
]


IN_NO_ORDER = [
    "sort_array(collect_list(u))",
    *(f for f in UNMERGED if not f.startswith(("collect_list", "first"))),
]
"""In sliding windows the order of rows is that of panes."""


def by_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("g").agg(*named(UNMERGED))


def without_keys(rows: DataFrame) -> DataFrame:
    return rows.groupBy().agg(F.median("i32"), F.sort_array(F.collect_list("u")), F.count("*"))


def several_keys(rows: DataFrame) -> DataFrame:
    """Nulls among them, and zeros and numbers that are none."""
    return rows.groupBy("k_t", (F.col("g") % 2).alias("half"), "k_b", "k_f64").agg(*named(UNMERGED))


def with_having(rows: DataFrame) -> DataFrame:
    lists = rows.groupBy("g").agg(F.mode("i32", True).alias("m"), F.collect_list("i32").alias("l"))
    return lists.where("size(l) > 2").select("g", F.array_max("l"), "m")


def windowed(*window: str) -> Callable[[DataFrame], DataFrame]:
    def query(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("ts", "5 seconds")
        functions = UNMERGED if len(window) == 1 else IN_NO_ORDER
        return timed.groupBy(F.window("ts", *window), "g").agg(*named(functions))

    return query


def from_a_select(rows: DataFrame) -> DataFrame:
    window = F.window("ts", "12 seconds", "5 seconds").alias("w")
    made = rows.withWatermark("ts", "5 seconds").select("*", window)
    return made.where("i32 > 0 or i32 is null").groupBy("g", "w").agg(*named(IN_NO_ORDER))


def by_event_time(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds").groupBy("ts").agg(*named(UNMERGED))


def by_window_alone(rows: DataFrame) -> DataFrame:
    timed = rows.withWatermark("ts", "3 seconds")
    return timed.groupBy(F.window("ts", "7 seconds", "3 seconds")).agg(*named(IN_NO_ORDER))


def no_watermark(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("ts", "10 seconds"), "g").agg(*named(UNMERGED))


def in_sessions(rows: DataFrame) -> DataFrame:
    sessions = F.session_window("ts", "3 seconds")
    lists = F.sort_array(F.collect_list("u"))
    return rows.withWatermark("ts", "5 seconds").groupBy("g", sessions).agg(F.median("i32"), lists)


CASES: list[tuple[str, OutputMode, Callable[[DataFrame], DataFrame]]] = [
    ("by key", "update", by_key),
    ("by key", "complete", by_key),
    ("no key", "update", without_keys),
    ("no key", "complete", without_keys),
    ("several keys", "update", several_keys),
    ("having", "update", with_having),
    ("tumbling", "update", windowed("10 seconds")),
    ("tumbling", "complete", windowed("10 seconds")),
    ("sliding", "update", windowed("13 seconds", "5 seconds", "2 seconds")),
    ("a window column from below", "update", from_a_select),
    ("by event time", "update", by_event_time),
    ("no other key", "update", by_window_alone),
    ("no watermark", "update", no_watermark),
    ("sessions", "complete", in_sessions),
]

MERGED_OFTEN = {"millpond.compaction.maxRuns": "2"}


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "mode", "query"), CASES, ids=[f"{name}: {mode}" for name, mode, _ in CASES])
def test_rows_of_groups(
    spark: SparkSession, tmp_path: Path, name: str, mode: OutputMode, query: Callable[[DataFrame], DataFrame]
) -> None:
    def compare(shape: Shape) -> None:
        check(spark, query(stream(spark, shape, COLUMNS, tmp_path)), mode, tmp_path, **MERGED_OFTEN)

    try_shapes(shapes(), compare, f"group rows, {name} {mode}")


def test_late_rows_are_left_out_of_sessions_in_complete_mode_too(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(seed=0, rows=(30, 30, 30, 30), groups=2, nulls=0.0, disorder_s=40.0)
    check(spark, in_sessions(stream(spark, shape, COLUMNS, tmp_path)), "complete", tmp_path)


@pytest.mark.parametrize("query", [by_key, windowed("10 seconds")], ids=["by key", "windows"])
def test_a_restarted_query_knows_the_rows_of_its_groups(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame]
) -> None:
    shape = Shape(seed=5, rows=(40, 40, 40, 40), groups=6, nulls=0.1, disorder_s=12.0)
    batches = tables(shape, COLUMNS)
    _, theirs = run_both(spark, query(stream(spark, shape, COLUMNS, tmp_path)), "update", tmp_path)
    ours = Outputs()
    for part in (batches[:2], batches[2:3], batches[3:]):
        write_batches(tmp_path / "rows", part)
        started = (
            mp.stream(query(read_stream(spark, tmp_path / "rows", schema_of(COLUMNS))))
            .writeStream.outputMode("update")
            .foreachBatch(ours)
            .options(checkpointLocation=str(tmp_path / "parts"), **MERGED_OFTEN)
            .trigger(availableNow=True)
            .start()
        )
        started.awaitTermination()
    assert ours.batches.keys() == theirs.batches.keys()
    for batch, rows in theirs.batches.items():
        assert_same(ours.batches[batch], rows, ours.schema, f"batch {batch}")
    (operator,) = started.explain(as_dict=True)
    assert operator["pattern"] == "AUR"
    assert "reads those of the groups that it touched again" in operator["why"]
    assert operator["readAmplification"] >= 1


def test_an_aggregate_in_pandas_gets_all_rows_of_a_touched_group(spark: SparkSession, tmp_path: Path) -> None:
    """Spark does not run it on a stream; an aggregate of its own gives the same."""

    @F.pandas_udf("array<long>")  # type: ignore[call-overload, untyped-decorator]
    def in_order(values: pd.Series) -> Any:
        return sorted(values)

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path)
        expected = rows.groupBy("g").agg(F.sort_array(F.collect_list("u")).alias("us"))
        own = mp.stream(rows).groupBy("g").agg(in_order("u").alias("us"))
        ours, theirs = run_both(spark, expected, "update", tmp_path, own=own)
        assert theirs.total()
        for batch in sorted({*ours.batches, *theirs.batches}):
            assert_same(ours.batches[batch], theirs.batches[batch], ours.schema, f"batch {batch}")

    try_shapes(shapes(), compare, "group rows, pandas")
