"""Aggregates that can't be merged and functions of groups, over session windows with late rows and rows out of order,
against Spark's own result batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.spark.frame import StreamFrame, StreamGroups
from tests.oracle_data import KEYS, OWN_GAPS, VALUES, Shape, shapes
from tests.oracle_run import assert_refused, check, named, stream, try_shapes
from tests.streams import read_stream, write_batches

COLUMNS = {
    **{name: VALUES[name] for name in ("i32", "f64", "t", "b", "pair")},
    **{name: KEYS[name] for name in ("k_t", "k_b", "k_f64")},
}

UNMERGED = [
    "median(i32)",
    "sort_array(collect_list(t))",
    "sort_array(collect_set(i32))",
    "percentile(f64, 0.25)",
    "sum(i32) filter (where b)",
    "count(*)",
]


def timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds")


def unmerged(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", "3 seconds"), "g").agg(*named(UNMERGED))


def median(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy("g", F.session_window("ts", "2 seconds").alias("w")).agg(F.median("i32"))


def several_keys(rows: DataFrame) -> DataFrame:
    """Nulls among them, and zeros and numbers that are none."""
    keys = ("k_t", F.session_window("ts", "4 seconds"), (F.col("g") % 2).alias("half"), "k_b", "k_f64")
    return timed(rows).groupBy(*keys).agg(F.median("i32"), F.max("t"))


def with_having(rows: DataFrame) -> DataFrame:
    lists = (
        timed(rows).groupBy(F.session_window("ts", "3 seconds"), "g").agg(F.collect_list("i32").alias("l"))
    )
    return lists.where("size(l) > 1").select("g", lists["session_window.end"], F.array_max("l"))


def some_without_time(rows: DataFrame) -> DataFrame:
    return unmerged(rows.withColumn("ts", F.expr("if(u % 5 = 0, null, ts)")))


def the_only_thing_kept(rows: DataFrame) -> DataFrame:
    """No column beside the key."""
    return timed(rows).groupBy("g", F.session_window("ts", "1 second")).agg(F.collect_list(F.lit(1)))


def a_gap_per_row(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", F.expr(OWN_GAPS)), "g").agg(*named(UNMERGED))


def gathered_with_a_gap_per_row(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy("g", F.session_window("ts", F.expr(OWN_GAPS))).agg(F.median("i32"))


def of_a_day(rows: DataFrame) -> DataFrame:
    return timed(rows).groupBy(F.session_window("ts", "1 day"), "g").agg(*named(UNMERGED))


CASES: list[tuple[str, Callable[[DataFrame], DataFrame]]] = [
    ("functions", unmerged),
    ("median", median),
    ("several keys", several_keys),
    ("having", with_having),
    ("some without time", some_without_time),
    ("nothing kept", the_only_thing_kept),
    ("a gap per row", a_gap_per_row),
    ("gathered, a gap per row", gathered_with_a_gap_per_row),
    ("a gap of a day", of_a_day),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "query"), CASES, ids=[name for name, _ in CASES])
def test_rows_of_sessions(
    spark: SparkSession, tmp_path: Path, name: str, query: Callable[[DataFrame], DataFrame]
) -> None:
    def compare(shape: Shape) -> None:
        frame = query(stream(spark, shape, COLUMNS, tmp_path))
        check(spark, frame, "append", tmp_path, **{"millpond.read.batchRatio": "0.5"})

    try_shapes(shapes(), compare, f"session rows, {name}")


OF_SESSION = "g int, start timestamp, end timestamp, us array<bigint>"


def in_pandas(groups: StreamGroups) -> Any:
    def of_session(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        assert list(rows.columns) == ["ts", "g", "u"]
        g, session = key
        made = {"g": [g], "start": [session["start"]], "end": [session["end"]], "us": [sorted(rows["u"])]}
        return pd.DataFrame(made)

    return groups.applyInPandas(of_session, OF_SESSION)


def in_arrow(groups: StreamGroups) -> Any:
    def of_session(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        assert rows.column_names == ["ts", "g", "u"]
        g, session = key
        values = [g, session["start"], session["end"], pa.scalar(sorted(rows["u"].to_pylist()))]
        return pa.table([pa.array([value]) for value in values], ["g", "start", "end", "us"])

    return groups.applyInArrow(of_session, OF_SESSION)


@pytest.mark.parametrize(("apply", "gap"), [(in_pandas, "'3 seconds'"), (in_arrow, OWN_GAPS)])
def test_a_function_gets_all_rows_of_a_session(
    spark: SparkSession, tmp_path: Path, apply: Callable[[StreamGroups], Any], gap: str
) -> None:
    """Spark would give it each row's own session; an aggregate of the same rows has those that are meant."""

    def compare(shape: Shape) -> None:
        rows = timed(stream(spark, shape, {}, tmp_path)).select("ts", "g", "u")
        keys = ("g", F.session_window("ts", F.expr(gap)))
        of_sessions = rows.groupBy(*keys).agg(F.sort_array(F.collect_list("u")).alias("us"))
        expected = of_sessions.select("g", "session_window.start", "session_window.end", "us")
        own = apply(mp.stream(rows).groupBy(*keys))
        check(spark, expected, "append", tmp_path, own=own, **{"millpond.read.batchRatio": "0.5"})

    try_shapes(shapes(), compare, f"session rows, {apply.__name__}")


@pytest.mark.parametrize("gap", ["'10 seconds'", "if(k > 0, '10 seconds', '1 second')"])
def test_a_function_gets_a_session_whose_parts_were_joined_after_a_restart(
    spark: SparkSession, tmp_path: Path, gap: str
) -> None:
    """Also where the query gave the window a name, under which the function gets the whole session with each row."""

    def of_session(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        session, k = key
        assert all(w == session for w in rows["w"])
        length = int((session["end"] - session["start"]).total_seconds())
        return pd.DataFrame({"k": [k], "seconds": [sorted(rows["second"])], "length": [length]})

    def run(*batches: list[tuple[int, int]]) -> list[tuple[Any, ...]]:
        for batch in batches:
            ks, seconds = (pa.array(values, pa.int64()) for values in zip(*batch, strict=True))
            times = pa.array([second * 1_000_000 for _, second in batch], pa.timestamp("us", "UTC"))
            write_batches(tmp_path / "rows", [pa.table({"k": ks, "second": seconds, "ts": times})])
        rows = read_stream(spark, tmp_path / "rows", "k long, second long, ts timestamp")
        windows = rows.withWatermark("ts", "20 seconds").select(
            "*", F.session_window("ts", F.expr(gap)).alias("w")
        )
        given: list[tuple[Any, ...]] = []
        query = (
            mp.stream(windows)
            .groupBy("w", "k")
            .applyInPandas(of_session, "k long, seconds array<long>, length long")
            .writeStream.foreachBatch(lambda batch, _: given.extend(map(tuple, batch.collect())))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return given

    assert run([(1, 0), (1, 4), (1, 21)]) == []
    # The second row of key 1 comes after its own session has ended, though the one that holds it has not.
    given = run([(1, 12), (2, 21), (2, 40), (2, 31)], [(1, 5), (2, 55)], [(2, 100)])
    assert sorted(given) == [(1, [0, 4, 12, 21], 31), (2, [21, 31, 40], 29), (2, [55], 10)]


def the_window_of_each_row(rows: StreamFrame) -> StreamFrame:
    windows = rows.withWatermark("ts", "5 seconds").select("*", F.session_window("ts", "1 second").alias("w"))
    return windows.groupBy("g", "w").agg(F.collect_list("w.start"))


def test_what_can_not_be_kept_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    message = "looks at the session window of each row"
    assert_refused(spark, tmp_path, "append", message, the_window_of_each_row)
