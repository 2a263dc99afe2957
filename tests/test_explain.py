"""`query.explain()`: the access pattern of each operator, why, its store and its figures."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.semantics.operator import OperatorSpec
from millpond.semantics.patterns import AccessPattern, choice
from millpond.service.messages import StatsReply
from millpond.spark.explain import as_text, explained
from millpond.spark.plan import cut
from millpond.spark.query import MillpondQuery
from tests.streams import read_stream, write_batches

SCHEMA = "k long, v long, ts timestamp"
BATCHES, KEYS = 6, 50


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each key has a row a second; all of it is there twice."""
    directory = tmp_path_factory.mktemp("explain") / "rows"
    for batch in range(BATCHES):
        seconds = [1_000 + 10 * batch + n // KEYS % 10 for n in range(20 * KEYS)]
        rows = {
            "k": pa.array([n % KEYS for n in range(20 * KEYS)], pa.int64()),
            "v": pa.array(range(20 * KEYS), pa.int64()),
            "ts": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
        }
        write_batches(directory, [pa.table(rows)])
    return directory


def timed(spark: SparkSession, source: Path) -> DataFrame:
    return read_stream(spark, source, SCHEMA).withWatermark("ts", "3 seconds")


def once_in_sessions(rows: DataFrame) -> DataFrame:
    """A key's session never ends, except that of every fifth key, which has a row in ten seconds."""
    once = rows.where("k % 5 > 0 or second(ts) % 10 = 0").dropDuplicates(["k", "ts"])
    return once.groupBy("k", F.session_window("ts", "5 seconds")).agg(F.median("v").alias("m"))


def run(frame: DataFrame, checkpoint: Path, **options: Any) -> MillpondQuery:
    query = (
        mp.stream(frame)
        .writeStream.foreachBatch(lambda rows, _: rows.collect())
        .queryName("explained")
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_figures_are_those_of_the_stores(
    spark: SparkSession, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = once_in_sessions(timed(spark, source))
    query = run(frame, tmp_path / "c", **{"millpond.read.batchRatio": 0.5})
    keys, sessions = query.explain(as_dict=True)
    assert (keys["pattern"], keys["operator"], keys["keys"]) == ("RMW", "deduplicate-0", ["k", "ts"])
    assert (sessions["pattern"], sessions["keys"]) == ("AUR", ["k", "session_window"])
    assert "median needs all rows of a session" in sessions["why"]
    # Forty keys have a row of each second; the sessions of the others are over.
    assert sessions["rows"] == 40 * 10 * BATCHES
    assert sessions["fileBytes"] > sessions["liveBytes"] > 8 * sessions["rows"]
    assert sessions["spaceAmplification"] == pytest.approx(
        sessions["fileBytes"] / sessions["liveBytes"], abs=1e-3
    )
    assert sessions["lookups"] == 10 * BATCHES
    assert 0 < sessions["readAheadHitRatio"] <= 1
    assert sessions["readAmplification"] >= 1
    progress = query.lastProgress
    assert progress is not None
    figures = progress["stateOperators"][1]
    assert (figures["numRowsTotal"], figures["memoryUsedBytes"]) == (
        sessions["rows"],
        sessions["memoryBytes"],
    )

    query.explain()
    printed = capsys.readouterr().out
    assert printed.startswith(f"explained: the state after batch {BATCHES}\n\ndeduplicate-0 by k, ts\n")
    assert "  pattern   AUR: append, unaligned read\n" in printed
    assert f"  size      {sessions['rows']:,} rows, " in printed
    assert "Physical Plan" not in printed
    query.explain(extended=True)
    assert "Physical Plan" in capsys.readouterr().out


def test_a_restarted_query_explains_what_it_found(
    spark: SparkSession, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = timed(spark, source).groupBy("k", F.window("ts", "1 hour")).agg(F.count("*"), F.avg("v"))
    assert run(frame, tmp_path / "c").explain(as_dict=True)[0]["rows"] == KEYS
    again = run(frame, tmp_path / "c")
    (found,) = again.explain(as_dict=True)
    assert (found["pattern"], found["rows"], found["readAhead"]) == ("RMW", KEYS, False)
    assert found["fileBytes"] > 0
    again.explain()
    assert f"the state after batch {BATCHES - 1}\n" in capsys.readouterr().out


def spec_of(frame: DataFrame, mode: Any = "append") -> OperatorSpec:
    return cut(frame, mode).operators[-1]


def test_the_pattern_follows_from_aggregate_and_window(spark: SparkSession, source: Path) -> None:
    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    rows = timed(spark, source)
    other = rows.toDF("ok", "ov", "ots")
    near = F.expr("k = ok and ts between ots and ots + interval 1 second")
    window, session = F.window("ts", "10 seconds"), F.session_window("ts", "1 second")
    frames = {
        "sum(v) bigint can be merged": rows.groupBy("k", window).agg(F.sum("v")),
        "a key's sessions are one value": rows.groupBy("k", session).agg(F.sum("v")),
        "that it was seen": rows.dropDuplicatesWithinWatermark(["k"]),
        "mode needs all rows of a window": rows.groupBy("k", window).agg(F.mode("v")),
        "count distinct, mode needs all rows of a window": rows.groupBy("k", window).agg(
            F.count_distinct("v"), F.max("v"), F.mode("v")
        ),
        "mode needs all rows of a session": rows.groupBy("k", session).agg(F.mode("v")),
        "applyInPandas needs all rows of a session": rows.groupBy("k", session).applyInPandas(same, SCHEMA),
        "same key, within bounds of time": rows.join(other, near),
        "same key, of any time": rows.join(other, F.expr("k = ok")),
    }
    chosen = {why: choice(spec_of(frame)) for why, frame in frames.items()}
    expected = ["RMW"] * 3 + ["AAR"] * 2 + ["AUR"] * 2 + ["RANGE"] * 2
    assert [found.pattern.name for found in chosen.values()] == expected
    for why, found in chosen.items():
        assert why in found.why


def test_every_kind_of_operator_names_its_store_and_its_windows(spark: SparkSession, source: Path) -> None:
    rows = timed(spark, source)
    own = mp.window_function(lambda ts: (ts, pc.add(ts, pa.scalar(timedelta(seconds=10)))))
    other = rows.toDF("ok", "ov", "ots")
    windows = {
        "window": F.window("ts", "10 seconds"),
        "session_window": F.session_window("ts", "1 second"),
        "count_window": mp.count_window(3),
        "own": own("ts").alias("own"),
    }
    groups = [(name, mp.stream(rows).groupBy("k", window)) for name, window in windows.items()]
    frames = [
        (["k", name], grouped.agg(value)) for name, grouped in groups for value in (F.sum("v"), F.median("v"))
    ]
    frames += [
        (["k"], rows.dropDuplicates(["k"])),
        (["k"], rows.join(other, F.expr("k = ok"))),
        (["k"], mp.stream(rows).groupBy("k").latest(by="v")),
        (["k"], rows.groupBy("k").agg(F.median("v"))),
    ]
    kinds = set()
    for place, (keys, frame) in enumerate(frames):
        spec = spec_of(mp.stream(frame).unwrapped, "append" if place < len(frames) - 2 else "update")
        operator = explained(spec, StatsReply())
        assert operator["keys"] == keys
        assert operator["store"] in as_text("q", None, [operator]).replace("\n            ", " ")
        kinds.add(type(spec))
    assert kinds == set(get_args(OperatorSpec))


def test_a_store_that_did_nothing_yet_has_no_ratios(spark: SparkSession, source: Path) -> None:
    spec = spec_of(timed(spark, source).groupBy("k", F.window("ts", "10 seconds")).agg(F.median("v")))
    operator = explained(spec, StatsReply())
    assert [operator[name] for name in ("readAmplification", "spaceAmplification", "memoryHitRatio")] == [
        None
    ] * 3
    text = as_text("q", None, [operator])
    assert text.startswith("q: the state before the first batch\n")
    assert "amplification - (bytes read per byte given out); - of 0 look-ups in memory" in text
    assert AccessPattern.AAR.value in text
    assert max(map(len, text.splitlines())) <= 110
