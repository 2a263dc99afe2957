"""`lookback` against what Spark's own join gives for the same condition, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import JoinSpec, JoinTime
from millpond.spark.frame import StreamFrame
from millpond.spark.plan import cut
from tests.join_run import SCHEMA, compare_by_batch, random_batches, run_both, start_millpond
from tests.oracle_run import Outputs, assert_same
from tests.streams import read_stream, write_batches

CASES = {
    "a while back": ("25 seconds", "10 seconds"),
    "up to now": ("20 seconds", "0 seconds"),
    "one moment": ("10 seconds", "10 seconds"),
    "long ago": ("1 minute", "45 seconds 500 milliseconds"),
}


def streams(spark: SparkSession, scratch: Path, seed: str) -> list[DataFrame]:
    frames = []
    for name, delay in (("a", "8 seconds"), ("b", "5 seconds")):
        directory = scratch / name
        if not directory.exists():
            write_batches(directory, random_batches(name + seed, batches=9))
        frames.append(read_stream(spark, directory, SCHEMA).withWatermark("ts", delay))
    return frames


def in_spark(a: DataFrame, b: DataFrame, keys: list[str], between: tuple[str, str], how: str) -> DataFrame:
    """As one would write it for Spark."""
    past = b.toDF(*(f"past_{name}" for name in b.columns))
    furthest, nearest = between
    bounds = f"past_ts between ts - interval {furthest} and ts - interval {nearest}"
    condition = " and ".join([*(f"{key} = past_{key}" for key in keys), bounds])
    joined = a.join(past, F.expr(condition), "left_outer" if how == "left" else how)
    return joined.drop(*(f"past_{key}" for key in keys))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a while back", "inner"),
        ("a while back", "left"),
        ("up to now", "inner"),
        ("up to now", "left"),
        ("one moment", "inner"),
        ("long ago", "left"),
    ],
)
def test_a_lookback_gives_what_sparks_join_gives(
    spark: SparkSession, name: str, how: Any, tmp_path: Path
) -> None:
    a, b = streams(spark, tmp_path, name)
    own = mp.stream(a).lookback(mp.stream(b), on="k", between=CASES[name], how=how)
    theirs = in_spark(a, b, ["k"], CASES[name], how)
    compare_by_batch(*run_both(spark, theirs, tmp_path, own=own, shards="2"))


def test_a_stream_looks_back_into_itself(spark: SparkSession, tmp_path: Path) -> None:
    a, _ = streams(spark, tmp_path, "self")
    own = mp.stream(a).lookback(a, on=["k", "g"], between=("30 seconds", "1 second"))
    theirs = in_spark(a, a, ["k", "g"], ("30 seconds", "1 second"), "inner")
    compare_by_batch(*run_both(spark, theirs, tmp_path, own=own))


def test_the_store_knows_which_range_of_the_past_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    a, b = streams(spark, tmp_path, "range")
    frame = mp.stream(a).lookback(b, on="k", between=("30 days", "29 days")).unwrapped
    (spec,) = cut(frame, "append").operators
    day_us = 86_400_000_000
    assert isinstance(spec, JoinSpec)
    assert isinstance(spec.time, JoinTime)
    # Spark is a millisecond more careful than need be.
    assert spec.time.offsets_us == (29 * day_us - 1_000, -30 * day_us - 1_000)
    assert abs(spec.time.slice_us - day_us) <= 2_000
    assert (spec.sides[0].times, spec.sides[1].times) == ((), (0, 1))
    assert spec.sides[1].expires_after_us == 30 * day_us + 1_000


def test_little_memory_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    a, b = streams(spark, tmp_path, "memory")
    own = mp.stream(a).lookback(b, on="k", between=("40 seconds", "15 seconds"), how="left")
    theirs = in_spark(a, b, ["k"], ("40 seconds", "15 seconds"), "left")
    options = {"millpond.memory.bytes": "1m", "millpond.write.bufferBytes": "1m"}
    compare_by_batch(*run_both(spark, theirs, tmp_path, own=own, **options))


def test_a_restarted_lookback_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    def query(root: Path) -> StreamFrame:
        frames = [read_stream(spark, root / name, SCHEMA).withWatermark("ts", "5 seconds") for name in "ab"]
        return mp.stream(frames[0]).lookback(
            frames[1], on="k", between=("30 seconds", "10 seconds"), how="left"
        )

    batches = {name: random_batches(f"restart {name}") for name in "ab"}
    for name in "ab":
        write_batches(tmp_path / "whole" / name, batches[name])
    whole, parts = Outputs(), Outputs()
    start_millpond(query(tmp_path / "whole"), whole, tmp_path / "whole-state")
    for start, end in ((0, 2), (2, 5), (5, 6)):
        for name in "ab":
            write_batches(tmp_path / "parts" / name, batches[name][start:end])
        start_millpond(query(tmp_path / "parts"), parts, tmp_path / "parts-state")
    assert whole.total()
    assert_same(parts.total(), whole.total(), whole.schema, "all batches")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"between": ("29 days", "30 days")}, "further back comes first"),
        ({"between": ("1 month", "29 days")}, "give it in days"),
        ({"between": ("2 days", "-1 days")}, "looks back only"),
        ({"between": ("a while", "1 day")}, "no length of time"),
        ({"between": "30 days"}, "two lengths of time"),
        ({"on": "nothing"}, "has the columns"),
        ({"on": []}, "at least one column"),
        ({"how": "outer"}, "'inner' or 'left'"),
        ({"prefix": ""}, "another prefix"),
    ],
)
def test_what_a_lookback_can_not_be_is_said_by_name(
    spark: SparkSession, given: dict[str, Any], named: str, tmp_path: Path
) -> None:
    a, b = streams(spark, tmp_path, "bad")
    arguments: dict[str, Any] = {"on": "k", "between": ("30 days", "29 days"), **given}
    with pytest.raises(InvalidQuery, match=named):
        mp.stream(a).lookback(b, **arguments)


def test_a_lookback_without_an_event_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    a, _ = streams(spark, tmp_path, "none")
    plain = read_stream(spark, tmp_path / "b", SCHEMA)
    with pytest.raises(InvalidQuery, match="withWatermark"):
        mp.stream(a).lookback(plain, on="k", between=("2 days", "1 day"))
    with pytest.raises(InvalidQuery, match="withWatermark"):
        mp.stream(plain).lookback(a, on="k", between=("2 days", "1 day"))
