"""Custom windows, with late rows and rows out of order, against Spark's own result batch by batch: to Spark, a window
is a column that a watermark follows, made by the same function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.custom_windows import CustomWindow
from millpond.spark.frame import StreamFrame
from tests.oracle_data import KEYS, VALUES, Shape, schema_of, shapes, tables
from tests.oracle_run import (
    Outputs,
    assert_refused,
    assert_same,
    check,
    named,
    own_directory,
    run_both,
    stream,
    try_shapes,
)
from tests.streams import read_stream, write_batches

COLUMNS = {
    **{name: VALUES[name] for name in ("i32", "f64", "d18", "t", "b")},
    **{name: KEYS[name] for name in ("k_t", "k_b")},
}
MERGED = ["count(*)", "sum(i32)", "avg(d18)", "min(t)", "max_by(i32, u)", "sum(f64) filter (where b)"]
UNMERGED = ["median(i32)", "sort_array(collect_list(t))", "percentile(f64, 0.25)", "count(*)"]
ROWS_ON_DISK = {"millpond.read.batchRatio": "0.5", "millpond.write.bufferBytes": "64k"}


def by_group(times: pa.Array, groups: pa.Array) -> tuple[Any, Any]:
    """Windows of another length, and from another start on, for each group."""
    micros = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
    group = groups.to_numpy(zero_copy_only=False)
    size = (2 + group % 4) * 1_500_000
    start = micros - (micros - group * 333_333) % size
    return tuple(pa.array(bound).cast(pa.timestamp("us")).cast(times.type) for bound in (start, start + size))


def of_its_own(times: pa.Array) -> tuple[Any, Any]:
    """Every time has a window of its own, up to the end of the next even second."""
    micros = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
    end = (micros // 2_000_000 + 2) * 2_000_000 + micros % 7
    return times, pa.array(end).cast(times.type)


def window(*columns: str) -> CustomWindow:
    assign = by_group if len(columns) == 2 else of_its_own
    return mp.window_function(assign)(*columns).alias("w")


def timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds")


def both(
    rows: DataFrame, custom: CustomWindow, keys: list[Any], functions: list[str]
) -> tuple[DataFrame, StreamFrame]:
    """For Spark and for Millpond."""
    with_window = custom.rows(rows).select("*", custom.column(rows))
    theirs = with_window.groupBy(*keys, custom.name).agg(*named(functions))
    return theirs, mp.stream(rows).groupBy(*keys, custom).agg(*named(functions))


CASES: list[tuple[str, list[str], list[Any], OutputMode, list[str]]] = [
    ("merged", ["ts", "g"], ["g"], "append", MERGED),
    ("merged so far", ["ts", "g"], ["g"], "update", MERGED),
    ("merged, all", ["ts", "g"], ["g"], "complete", MERGED),
    ("merged, without keys", ["ts"], [], "append", MERGED),
    ("rows", ["ts", "g"], ["g"], "append", UNMERGED),
    ("rows, without keys", ["ts"], [], "append", UNMERGED),
    ("rows, several keys", ["ts"], ["k_t", "half", "k_b"], "append", UNMERGED),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_windows_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, case: tuple[str, list[str], list[Any], OutputMode, list[str]]
) -> None:
    name, columns, keys, mode, functions = case

    def compare(shape: Shape) -> None:
        rows = timed(stream(spark, shape, COLUMNS, tmp_path)).withColumn("half", F.col("g") % 2)
        theirs, ours = both(rows, window(*columns), keys, functions)
        check(spark, theirs, mode, tmp_path, own=ours, **ROWS_ON_DISK)

    try_shapes(shapes(), compare, f"custom windows, {name}")


@pytest.mark.parametrize("functions", [MERGED, UNMERGED], ids=["merged", "rows"])
def test_a_row_without_a_time_is_in_no_window(
    spark: SparkSession, tmp_path: Path, functions: list[str]
) -> None:
    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withColumn("ts", F.expr("if(u % 5 = 0, null, ts)"))
        theirs, ours = both(timed(rows), window("ts", "g"), ["g"], functions)
        check(spark, theirs, "append", tmp_path, own=ours)

    try_shapes(shapes(), compare, "custom windows, some without time")


def test_what_stands_above_sees_start_and_end(spark: SparkSession, tmp_path: Path) -> None:
    def compare(shape: Shape) -> None:
        theirs, ours = both(
            timed(stream(spark, shape, COLUMNS, tmp_path)), window("ts", "g"), ["g"], ["count(*)"]
        )
        above = ["g", "w.end", "`count(*)`"]
        check(
            spark,
            theirs.where("w.start > '2024-01-01'").select(*above),
            "append",
            tmp_path,
            own=ours.where("w.start > '2024-01-01'").select(*above),
        )

    try_shapes(shapes(), compare, "custom windows, above")


@pytest.mark.parametrize("functions", [MERGED, UNMERGED], ids=["merged", "rows"])
def test_a_restart_in_the_middle_changes_nothing(
    spark: SparkSession, tmp_path: Path, functions: list[str]
) -> None:
    def compare(shape: Shape) -> None:
        scratch = own_directory(tmp_path)
        rows = timed(stream(spark, shape, COLUMNS, scratch))
        theirs, ours = both(rows, window("ts", "g"), ["g"], functions)
        _, expected = run_both(spark, theirs, "append", scratch, own=ours)
        given = Outputs()
        of_batches = tables(shape, COLUMNS)
        for part in (of_batches[:2], of_batches[2:]):
            write_batches(scratch / "again", part)
            again = timed(read_stream(spark, scratch / "again", schema_of(COLUMNS)))
            run_to_end(both(again, window("ts", "g"), ["g"], functions)[1], given, scratch)
        assert expected.total()
        assert_same(given.total(), expected.total(), given.schema, "all batches")

    try_shapes(shapes(), compare, "custom windows, restart")


def run_to_end(frame: StreamFrame, given: Outputs, scratch: Path, **options: str) -> None:
    writer = frame.writeStream.outputMode("append").foreachBatch(given)
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint")).options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()


def test_functions_of_groups_get_the_rows_of_a_window(spark: SparkSession, tmp_path: Path) -> None:
    """Spark runs them on a stream only batch by batch; an aggregate of its own gives the same."""

    def of_group(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        assert list(rows.columns) == ["g", "u", "ts"]
        return pd.DataFrame({"g": [key[0]], "start": [key[1]["start"]], "us": [sorted(rows["u"])]})

    def compare(shape: Shape) -> None:
        rows = timed(stream(spark, shape, COLUMNS, tmp_path)).select("g", "u", "ts")
        theirs, _ = both(rows, window("ts", "g"), ["g"], ["sort_array(collect_list(u))"])
        expected = theirs.select("g", "w.start", F.col("`sort_array(collect_list(u))`").alias("us"))
        groups = mp.stream(rows).groupBy("g", window("ts", "g"))
        own = groups.applyInPandas(of_group, "g int, start timestamp, us array<bigint>")
        check(spark, expected, "append", tmp_path, own=own)

    try_shapes(shapes(), compare, "custom windows, applied function")


def _shifted(times: pa.Array, micros: int) -> Any:
    return pa.array(times.cast(pa.int64()).to_numpy() + micros).cast(times.type)


WRONG: list[tuple[str, Callable[[pa.Array], Any], str]] = [
    ("nulls", lambda t: (t, pa.nulls(len(t), t.type)), r"returned \d+ nulls among the ends"),
    ("too few", lambda t: (t[1:], _shifted(t, 1)), r"returned starts for \d+ rows, but \d+ of them"),
    ("an end before the start", lambda t: (t, _shifted(t, -1)), "end is not after its start"),
    ("an empty window", lambda t: (t, t), "end is not after its start"),
    ("no pair", lambda t: t, "has to return two arrays"),
    ("texts", lambda t: (t, ["soon"] * len(t)), "ends that are no times"),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("local_rows", ["0", "20000"], ids=["tasks", "driver"])
@pytest.mark.parametrize(("wrong", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_window_is_an_error_that_names_operator_and_batch_and_leaves_the_state(
    spark: SparkSession, tmp_path: Path, wrong: Callable[[pa.Array], Any], message: str, local_rows: str
) -> None:
    given = Outputs()
    batches = []
    for seconds in ([1, 2, 3], [4, 11, 12], [30, 31]):
        times = pa.array([second * 10**6 for second in seconds]).cast(pa.timestamp("us", "UTC"))
        batches.append(pa.table({"k": pa.array([1] * len(seconds), pa.int32()), "ts": times}))
    write_batches(tmp_path / "rows", batches)

    def tens(times: pa.Array) -> Any:
        start = times.cast(pa.int64()).to_numpy() // 10**7 * 10**7
        return pa.array(start).cast(times.type), pa.array(start + 10**7).cast(times.type)

    def wrong_later(times: pa.Array) -> Any:
        late = np.any(times.cast(pa.int64()).to_numpy() >= 4 * 10**6)
        return wrong(times) if late else tens(times)

    def counts(assign: Callable[[pa.Array], Any]) -> StreamFrame:
        rows = read_stream(spark, tmp_path / "rows", "k int, ts timestamp").withWatermark("ts", "0 seconds")
        return mp.stream(rows).groupBy("k", mp.window_function(assign)("ts")).count()

    with pytest.raises(
        InvalidQuery, match=rf"aggregate-0, batch 1: window_function\(wrong_later\).*{message}"
    ):
        run_to_end(counts(wrong_later), given, tmp_path, **{"millpond.ingest.localRows": local_rows})
    run_to_end(counts(tens), given, tmp_path, **{"millpond.ingest.localRows": local_rows})
    counted = [row[-1] for row in given.total()]
    assert counted == [4, 2]


REFUSED: list[tuple[str, str, str, Callable[[StreamFrame], Any]]] = [
    (
        "no watermark",
        "append",
        "withWatermark",
        lambda rows: rows.groupBy("g", mp.window_function(of_its_own)("ts")).count(),
    ),
    (
        "a function of groups without a watermark",
        "append",
        "withWatermark",
        lambda rows: rows.groupBy("g", mp.window_function(of_its_own)("ts")).applyInPandas(
            lambda f: f, "g long"
        ),
    ),
    (
        "no time",
        "append",
        "windows are made of a time, and v is of the type bigint",
        lambda rows: rows.groupBy("g", mp.window_function(of_its_own)("v")).count(),
    ),
    ("no function", "append", "takes a function", lambda _: mp.window_function("ts")),  # type: ignore[arg-type]
    (
        "two windows",
        "append",
        "one window",
        lambda rows: rows.groupBy(mp.count_window(3), mp.window_function(of_its_own)("ts")),
    ),
]


@pytest.mark.parametrize(
    ("mode", "message", "query"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_what_can_not_be_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, mode: str, message: str, query: Callable[[StreamFrame], Any]
) -> None:
    assert_refused(spark, tmp_path, mode, message, query)
