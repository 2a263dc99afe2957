"""Hints: which store they choose, that wrong ones change nothing but that, and what is refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.hints import Hint, Pattern, hint_on
from millpond.semantics.operator import (
    AggregateSpec,
    ObservedRowsSpec,
    UnalignedRowsSpec,
    WindowRowsSpec,
)
from millpond.semantics.patterns import choice
from millpond.spark.frame import StreamFrame
from millpond.spark.plan import cut
from tests.oracle_data import VALUES, Shape, shapes
from tests.oracle_run import Outputs, check, named, stream, try_shapes
from tests.sampling import FUZZ_SEED
from tests.streams import read_stream, write_batches

COLUMNS = {name: VALUES[name] for name in ("i32", "t")}
PATTERNS = get_args(Pattern)
_cases = itertools.count()


def tens(times: pa.Array) -> Any:
    start = times.cast(pa.int64()).to_numpy(zero_copy_only=False) // 10**7 * 10**7
    return pa.array(start).cast(times.type), pa.array(start + 10**7).cast(times.type)


def soon(keys: pa.Array, windows: pa.Array, last_times: pa.Array) -> Any:
    """A time that has little to do with when a window is read, and none at all for some."""
    assert len(keys) == len(windows) == len(last_times)
    micros = last_times.cast(pa.int64()).to_numpy(zero_copy_only=False)
    times = micros + (micros * 7919) % 60_000_000
    return pa.array(times, mask=np.asarray(micros % 3 == 0)).cast(last_times.type)


def rate(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.selectExpr("timestamp as ts", "value % 3 as g", "value as v").withWatermark("ts", "1 second")


CHOICES: list[tuple[str, Callable[[DataFrame, Any], Any], dict[Any, type]]] = [
    (
        "custom, merged",
        lambda rows, p: mp.stream(rows).groupBy("g", mp.window_function(tens, pattern=p)("ts")).count(),
        {None: AggregateSpec, "append_aligned": WindowRowsSpec, "append_unaligned": UnalignedRowsSpec,
         "point_update": AggregateSpec, "range": AggregateSpec},
    ),
    (
        "custom, rows",
        lambda rows, p: (
            mp.stream(rows).groupBy("g", mp.window_function(tens, pattern=p)("ts")).agg(F.median("v"))
        ),
        {None: ObservedRowsSpec, "append_aligned": WindowRowsSpec, "append_unaligned": UnalignedRowsSpec,
         "point_update": ObservedRowsSpec, "range": UnalignedRowsSpec},
    ),
    (
        "count, merged",
        lambda rows, p: mp.stream(rows).groupBy("g", mp.count_window(3, pattern=p)).count(),
        {None: AggregateSpec, "append_aligned": UnalignedRowsSpec, "append_unaligned": UnalignedRowsSpec,
         "point_update": AggregateSpec, "range": AggregateSpec},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "stores"), [case[1:] for case in CHOICES], ids=[case[0] for case in CHOICES]
)
def test_a_hint_chooses_the_store(
    spark: SparkSession, query: Callable[[DataFrame, Any], StreamFrame], stores: dict[Any, type]
) -> None:
    for pattern, store in stores.items():
        (spec,) = cut(query(rate(spark), pattern).unwrapped, "append").operators
        assert type(spec) is store, pattern


def test_a_decorated_function_of_groups_or_udf_has_its_hint_in_the_plan(spark: SparkSession) -> None:
    @mp.hint(pattern="append_aligned")
    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    @mp.hint(pattern="append_aligned")
    @F.pandas_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def total(values: pd.Series) -> int:
        return int(values.sum())

    groups = mp.stream(rate(spark)).groupBy("g", mp.window_function(tens)("ts"))
    applied = groups.applyInPandas(same, "ts timestamp, g long, v long")
    summed = groups.agg(total("v"))
    assert summed.columns == ["g", "window", "total(v)"]
    for frame in (applied, summed, groups.agg(total("v").alias("sum"))):
        (spec,) = cut(frame.unwrapped, "append").operators
        assert isinstance(spec, WindowRowsSpec)


def test_what_is_said_nearer_counts_more() -> None:
    @mp.hint(pattern="range")
    @mp.hint(pattern="point_update", next_read=soon)
    def assign(times: pa.Array) -> Any:
        return tens(times)

    assert hint_on(assign) == Hint("range", soon)
    window = mp.window_function(assign, pattern="append_aligned")("ts")
    assert window.hint == Hint("append_aligned", soon)
    assert mp.count_window(3).hint is None


def test_groups_by_sparks_windows_take_a_hint(spark: SparkSession) -> None:
    @mp.hint(pattern="append_unaligned")
    @F.pandas_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def total(values: pd.Series) -> int:
        return int(values.sum())

    @mp.hint(next_read=soon)
    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    rows = mp.stream(rate(spark))
    window, session = F.window("ts", "10 seconds"), F.session_window("ts", "10 seconds")
    hinted = rows.groupBy("g", session).hint(pattern="append_unaligned", next_read=soon)
    plain = rows.groupBy("g", session)
    for own, of_spark in (
        (hinted.count(), plain.count()),
        (hinted.agg(F.max("v"), F.sum("v")), plain.agg(F.max("v"), F.sum("v"))),
        (hinted.agg({"v": "min"}), plain.agg({"v": "min"})),
        (hinted.sum("v"), plain.sum("v")),
    ):
        assert own.columns == of_spark.columns
        (spec,) = cut(own.unwrapped, "append").operators
        assert isinstance(spec, UnalignedRowsSpec)
        assert spec.next_read is not None
        assert isinstance(cut(of_spark.unwrapped, "append").operators[0], AggregateSpec)
    aligned = rows.groupBy("g", window).hint(pattern="append_aligned").count()
    assert isinstance(cut(aligned.where("count > 1").unwrapped, "append").operators[0], WindowRowsSpec)
    own_window = rows.groupBy("g", mp.window_function(tens)("ts")).hint(pattern="append_aligned")
    assert isinstance(cut(own_window.agg(F.median("v")).unwrapped, "append").operators[0], WindowRowsSpec)
    assert isinstance(cut(own_window.agg(total("v")).unwrapped, "append").operators[0], UnalignedRowsSpec)
    applied = own_window.applyInPandas(same, "ts timestamp, g long, v long")
    assert isinstance(cut(applied.unwrapped, "append").operators[0], WindowRowsSpec)
    counted = rows.groupBy("g", mp.count_window(3)).hint(pattern="append_unaligned").count()
    assert isinstance(cut(counted.unwrapped, "append").operators[0], UnalignedRowsSpec)


def test_the_reason_names_the_hint_where_it_decided(spark: SparkSession) -> None:
    rows, window = mp.stream(rate(spark)), F.window("ts", "10 seconds")
    own = mp.window_function(tens)("ts")
    decided = [
        ("append_aligned", rows.groupBy("g", window).hint(pattern="append_aligned").count()),
        ("append_unaligned", rows.groupBy("g", mp.count_window(3)).hint(pattern="append_unaligned").count()),
        ("range", rows.groupBy("g", own).hint(pattern="range").agg(F.median("v"))),
        ("append_aligned", rows.groupBy("g", own).hint(pattern="append_aligned").agg(F.median("v"))),
    ]
    for pattern, frame in decided:
        assert choice(cut(frame.unwrapped, "append").operators[0]).why.startswith(f"by the hint {pattern}, ")
    for frame in (
        rows.groupBy("g", window).hint(pattern="append_aligned").agg(F.median("v")),
        rows.groupBy("g", window).hint(pattern="point_update").count(),
    ):
        assert "hint" not in choice(cut(frame.unwrapped, "append").operators[0]).why


def median_of(window: Callable[[], Any]) -> Callable[[DataFrame], StreamFrame]:
    return lambda rows: mp.stream(rows).groupBy("g", window()).agg(F.median("v"))


def count_of(window: Callable[[], Any]) -> Callable[[DataFrame], StreamFrame]:
    return lambda rows: mp.stream(rows).groupBy("g", window()).count()


def full() -> Any:
    return mp.count_window(3, next_read=soon)


def custom(pattern: Any) -> Callable[[], Any]:
    return lambda: mp.window_function(tens, pattern=pattern, next_read=soon)("ts")


def in_sessions(rows: DataFrame) -> StreamFrame:
    @mp.hint(next_read=soon)
    @F.pandas_udf("double")  # type: ignore[call-overload, untyped-decorator]
    def middle(values: pd.Series) -> float:
        return float(values.median())

    return mp.stream(rows).groupBy("g", F.session_window("ts", "3 seconds")).agg(middle("v"))


def in_functions(window: Callable[[], Any]) -> Callable[[DataFrame], StreamFrame]:
    @mp.hint(next_read=soon)
    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    schema = "ts timestamp, g long, v long"
    return lambda rows: mp.stream(rows).groupBy("g", window()).applyInPandas(same, schema)


PREDICTED: dict[str, tuple[Callable[[DataFrame], StreamFrame], bool]] = {
    "count windows": (median_of(full), True),
    "custom windows": (median_of(custom(None)), True),
    "custom windows by themselves": (median_of(custom("append_unaligned")), True),
    "merged, but for a hint": (count_of(custom("append_unaligned")), True),
    "sessions": (in_sessions, True),
    "functions of groups": (in_functions(lambda: mp.window_function(tens)("ts")), True),
    "functions of sessions": (in_functions(lambda: F.session_window("ts", "3 seconds")), True),
    "custom windows that end together": (median_of(custom("append_aligned")), False),
    "merged": (count_of(custom(None)), False),
    "merged in count windows": (count_of(full), False),
}


@pytest.mark.parametrize("case", PREDICTED)
def test_next_read_reaches_the_store_where_each_window_is_read_by_itself(
    spark: SparkSession, case: str
) -> None:
    query, is_used = PREDICTED[case]
    (spec,) = cut(query(rate(spark)).unwrapped, "append").operators
    assert (getattr(spec, "next_read", None) is not None) == is_used


FUNCTIONS = ["count(*)", "sum(i32)", "max(t)"]
UNMERGED = ["median(i32)", "sort_array(collect_list(t))"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("functions", [FUNCTIONS, UNMERGED], ids=["merged", "rows"])
@pytest.mark.parametrize("kind", ["custom", "tumbling", "sliding", "session"])
def test_wrong_hints_cost_no_result(
    spark: SparkSession, tmp_path: Path, kind: str, functions: list[str]
) -> None:
    pattern = random.Random(f"{next(_cases)}{FUZZ_SEED}").choice(PATTERNS)

    def compare(shape: Shape) -> None:
        rows = stream(spark, shape, COLUMNS, tmp_path).withWatermark("ts", "5 seconds")
        if kind == "custom":
            window = mp.window_function(tens, pattern=pattern, next_read=soon)("ts")
            theirs = window.rows(rows).select("*", window.column(rows)).groupBy("g", "window")
            own = mp.stream(rows).groupBy("g", window).agg(*named(functions))
        else:
            of_spark = {
                "tumbling": F.window("ts", "10 seconds"),
                "sliding": F.window("ts", "10 seconds", "4 seconds"),
                "session": F.session_window("ts", "3 seconds"),
            }[kind]
            theirs = rows.groupBy("g", of_spark)
            groups = mp.stream(rows).groupBy("g", of_spark).hint(pattern=pattern, next_read=soon)
            own = groups.agg(*named(functions))
        options = {"millpond.read.batchRatio": "0.5"}
        check(spark, theirs.agg(*named(functions)), "append", tmp_path, own=own, **options)

    try_shapes(shapes(), compare, f"hints, {kind}, {functions[0]}")


@pytest.mark.parametrize("functions", [FUNCTIONS, UNMERGED], ids=["merged", "rows"])
def test_wrong_hints_on_count_windows_cost_no_result(
    spark: SparkSession, tmp_path: Path, functions: list[str]
) -> None:
    """Against the same windows without a hint."""
    outputs = []
    shape = Shape(seed=5, rows=(40, 30, 0, 50), groups=5, nulls=0.1, disorder_s=3.0)
    for pattern, predict in (
        (None, None),
        ("range", soon),
        ("append_aligned", soon),
        ("append_unaligned", None),
    ):
        given = Outputs()
        scratch = tmp_path / str(pattern)
        rows = stream(spark, shape, COLUMNS, scratch).withWatermark("ts", "5 seconds")
        window = mp.count_window(3, pattern=pattern, next_read=predict)  # type: ignore[arg-type]
        run(mp.stream(rows).groupBy("g", window).agg(*named(functions)), given, scratch)
        outputs.append(given.batches)
    assert sum(map(len, outputs[0].values())) > 20
    assert outputs[1:] == outputs[:1] * 3


def run(frame: StreamFrame, given: Outputs, scratch: Path) -> None:
    writer = frame.writeStream.outputMode("append").foreachBatch(given)
    writer = writer.option("checkpointLocation", str(scratch / "checkpoint"))
    writer.options(**{"millpond.read.batchRatio": "0.5"}).trigger(
        availableNow=True
    ).start().awaitTermination()


WRONG: list[tuple[str, Callable[[pa.Array], Any], str]] = [
    ("in the past", lambda t: pa.array(t.cast(pa.int64()).to_numpy() - 1).cast(t.type), "lies in the past"),
    ("too few", lambda t: t[1:], r"returned times for \d+ rows, but \d+ of them"),
    ("texts", lambda t: ["soon"] * len(t), "times that are no times"),
]


@pytest.mark.parametrize(("wrong", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_time_is_an_error_that_names_operator_and_batch(
    spark: SparkSession, tmp_path: Path, wrong: Callable[[pa.Array], Any], message: str
) -> None:
    def later(_keys: pa.Array, _windows: pa.Array, times: pa.Array) -> Any:
        return wrong(times) if times.cast(pa.int64())[0].as_py() > 10**7 else times

    batches = []
    for second in (1, 11):
        times = pa.array([second * 10**6, second * 10**6 + 1]).cast(pa.timestamp("us", "UTC"))
        batches.append(pa.table({"k": pa.array([1, 2], pa.int32()), "ts": times}))
    write_batches(tmp_path / "rows", batches)
    rows = read_stream(spark, tmp_path / "rows", "k int, ts timestamp").withWatermark("ts", "0 seconds")
    window = mp.window_function(tens, next_read=later)("ts")
    frame = mp.stream(rows).groupBy("k", window).agg(F.collect_list("ts"))
    with pytest.raises(InvalidQuery, match=rf"rows-0, batch 1: hint\(next_read=later\).*{message}"):
        run(frame, Outputs(), tmp_path)


REFUSED: list[tuple[str, str, Callable[[DataFrame], Any]]] = [
    ("an unknown pattern", "a pattern is one of point_update", lambda _: mp.hint(pattern="append")),  # type: ignore[arg-type]
    ("no function", "takes a function", lambda _: mp.hint(next_read=3)),  # type: ignore[arg-type]
    ("nothing", "say a pattern or next_read", lambda _: mp.hint()),
    (
        "a class",
        "hint on the class Hint: .* does not take processors yet",
        lambda _: mp.hint(pattern="range")(Hint),
    ),
    (
        "groups, nothing",
        r"groupBy\(\.\.\.\)\.hint\(\): say",
        lambda rows: mp.stream(rows).groupBy("g").hint(),
    ),
    ("an argument", "a pattern is one of", lambda _: mp.count_window(3, pattern="x")),  # type: ignore[arg-type]
    (
        "no event time",
        "there is none; call withWatermark",
        lambda rows: (
            mp.stream(rows.withColumn("ts", F.expr("ts + interval 1 second")))
            .groupBy("g", mp.count_window(3, next_read=soon))
            .agg(F.median("v"))
            .writeStream.format("noop")
            .start()
        ),
    ),
]


@pytest.mark.parametrize(
    ("message", "query"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_can_not_be_is_refused_by_name(
    spark: SparkSession, message: str, query: Callable[[DataFrame], Any]
) -> None:
    with pytest.raises(InvalidQuery, match=message):
        query(rate(spark))
