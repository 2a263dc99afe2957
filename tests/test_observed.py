"""Operators of unknown pattern on Spark: rows begin in memory and move to the store that fits while batches go on,
which changes no batch's result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.spark.frame import StreamFrame
from millpond.spark.query import MillpondQuery
from tests.oracle_run import Outputs
from tests.streams import read_stream, write_batches

SCHEMA = "k long, v long, ts timestamp"
BATCHES, ROWS, KEYS = 14, 120, 40
OBSERVED = {"millpond.observe.bytes": "12k", "millpond.read.batchRatio": "0.5"}


def half_minutes(times: pa.Array, _keys: pa.Array) -> Any:
    """Of all keys together."""
    start = times.cast(pa.int64()).to_numpy() // 30_000_000 * 30_000_000
    return _times(start, times), _times(start + 30_000_000, times)


def one_by_one(times: pa.Array, keys: pa.Array) -> Any:
    """Of each key and second its own."""
    start = times.cast(pa.int64()).to_numpy() // 1_000_000 * 1_000_000
    end = start + 25_000_000 + keys.to_numpy() * 101_003
    return _times(start, times), _times(end, times)


def _times(micros: Any, like: pa.Array) -> pa.Array:
    return pa.array(micros).cast(like.type)


FUNCTIONS = {"append_aligned": half_minutes, "append_unaligned": one_by_one}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds a batch; every tenth row is five seconds older than the others."""
    directory = tmp_path_factory.mktemp("observed") / "rows"
    for batch in range(BATCHES):
        at = [1_000 + 4 * batch + 4 * n / ROWS - 5 * (n % 10 == 0) for n in range(ROWS)]
        rows = {
            "k": pa.array([n * 7 % KEYS for n in range(ROWS)], pa.int64()),
            "v": pa.array(range(ROWS), pa.int64()),
            "ts": pa.array([round(second * 1_000_000) for second in at], pa.timestamp("us", "UTC")),
        }
        write_batches(directory, [pa.table(rows)])
    return directory


def rows_of_windows(spark: SparkSession, source: Path, pattern: Any, hint: Any) -> StreamFrame:
    rows = read_stream(spark, source, SCHEMA).withWatermark("ts", "2 seconds")
    window = mp.window_function(FUNCTIONS[pattern], pattern=hint)("ts", "k")
    return mp.stream(rows).groupBy("k", window).agg(F.sort_array(F.collect_list("v")).alias("vs"))


def run(frame: StreamFrame, given: Outputs, checkpoint: Path, **options: Any) -> MillpondQuery:
    writer = frame.writeStream.foreachBatch(given).queryName("observed")
    writer = writer.options(checkpointLocation=str(checkpoint), shards=2, **{**OBSERVED, **options})
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def metrics(query: MillpondQuery, name: str) -> list[int]:
    """After each batch."""
    return [progress["stateOperators"][0]["customMetrics"][name] for progress in query.recentProgress]


@pytest.mark.parametrize("pattern", FUNCTIONS)
def test_rows_move_to_the_store_that_fits_and_no_result_changes(
    spark: SparkSession, source: Path, tmp_path: Path, pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hinted, seen = Outputs(), Outputs()
    fixed = run(rows_of_windows(spark, source, pattern, pattern), hinted, tmp_path / "hinted")
    query = run(rows_of_windows(spark, source, pattern, None), seen, tmp_path / "seen")
    assert sum(map(len, hinted.batches.values())) >= 2 * KEYS
    assert seen.batches == hinted.batches

    observing, unmoved = metrics(query, "observingShards"), metrics(query, "unmovedRows")
    assert (observing[0], observing[-1]) == (2, 0)
    # Batches went on while rows were in both places, and the last of them are where they belong.
    assert len([rows for rows in unmoved if rows]) >= 3
    assert unmoved[-1] == 0
    shards = {"append_aligned": "alignedShards", "append_unaligned": "unalignedShards"}[pattern]
    assert metrics(query, shards)[-1] == 2

    ((operator,), (wanted,)) = (each.explain(as_dict=True) for each in (query, fixed))
    assert (operator["pattern"], operator["store"]) == (wanted["pattern"], wanted["store"])
    assert "windows that were seen end at" in operator["why"]
    assert ("its end says when" in operator["why"]) == (pattern == "append_unaligned")
    query.explain()
    assert "windows that were seen end at" in " ".join(capsys.readouterr().out.split())


def test_what_is_small_stays_in_memory_and_says_so(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    given = Outputs()
    frame = rows_of_windows(spark, source, "append_unaligned", None)
    query = run(frame, given, tmp_path, **{"millpond.observe.bytes": "1m"})
    (operator,) = query.explain(as_dict=True)
    assert (operator["pattern"], operator["unmovedRows"]) == ("UNKNOWN", 0)
    assert operator["store"].startswith("memory")
    assert sum(map(len, given.batches.values())) > 200


@pytest.mark.parametrize("pattern", FUNCTIONS)
def test_a_restart_amid_the_move_goes_on_with_it(
    spark: SparkSession, source: Path, tmp_path: Path, pattern: str
) -> None:
    hinted, seen = Outputs(), Outputs()
    run(rows_of_windows(spark, source, pattern, pattern), hinted, tmp_path / "hinted")
    files = sorted(source.iterdir())
    left = []
    for number in range(0, BATCHES, 5):
        (tmp_path / "part").mkdir(exist_ok=True)
        for file in files[number : number + 5]:
            shutil.copy2(file, tmp_path / "part")
        frame = rows_of_windows(spark, tmp_path / "part", pattern, None)
        left.append(metrics(run(frame, seen, tmp_path / "seen"), "unmovedRows")[-1])
    assert left[0] > 0, "the first restart comes too late"
    assert left[-1] == 0
    assert seen.total() == hinted.total()


def test_a_hint_on_an_old_checkpoint_is_refused(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    run(rows_of_windows(spark, source, "append_aligned", None), Outputs(), tmp_path)
    with pytest.raises(InvalidQuery, match="custom windows without a pattern"):
        run(rows_of_windows(spark, source, "append_aligned", "append_aligned"), Outputs(), tmp_path)
