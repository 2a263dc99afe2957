"""Queries end, by a stop, an error or another driver, and go on: their results are those of one undisturbed run."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import CorruptState, Fenced, InvalidQuery
from millpond.spark.query import MillpondQuery
from millpond.storage.local import LocalStorage
from millpond.storage.records import CommitRecord
from millpond.storage.slotlog import SlotLog
from tests.kill_queries import (
    SCHEMA,
    START,
    Results,
    bids,
    results,
    start_totals,
    start_windows,
    totals,
    windows,
)
from tests.streams import read_stream, write_batches

BATCHES = 6
SECONDS_TO_STOP = 30


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("undisturbed")
    write_batches(root / "source", bids(BATCHES))
    for query in [start(spark, root / "source", root) for start in (start_windows, start_totals)]:
        query.awaitTermination()
    return results(spark, root)


def state_of(root: Path, name: str) -> CommitRecord | None:
    return SlotLog(LocalStorage(root / f"{name}-checkpoint" / "millpond")).head().newest


def await_that(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


# Stop and go on


def test_a_query_goes_on_after_its_end(spark: SparkSession, undisturbed: Results, tmp_path: Path) -> None:
    tables = bids(BATCHES)
    for part in (tables[:2], tables[2:5], tables[5:]):
        write_batches(tmp_path / "source", part)
        queries = [start(spark, tmp_path / "source", tmp_path) for start in (start_windows, start_totals)]
        for query in queries:
            query.awaitTermination()
    assert results(spark, tmp_path) == undisturbed
    last = queries[1].lastProgress
    assert last is not None
    assert last["batchId"] == BATCHES - 1
    assert last["stateOperators"][0]["numRowsTotal"] == len(pa.concat_tables(tables)["bidder"].unique())


def test_a_restart_without_news_changes_nothing(
    spark: SparkSession, undisturbed: Results, tmp_path: Path
) -> None:
    write_batches(tmp_path / "source", bids(BATCHES))
    for _ in range(2):
        for query in [start(spark, tmp_path / "source", tmp_path) for start in (start_windows, start_totals)]:
            query.awaitTermination()
    assert results(spark, tmp_path) == undisturbed


def test_a_running_query_takes_what_comes(spark: SparkSession, undisturbed: Results, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tables = bids(BATCHES)

    def start() -> MillpondQuery:
        return (
            windows(read_stream(spark, source, SCHEMA))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "windows-checkpoint"))
            .start(str(tmp_path / "windows"))
        )

    for part in (tables[:2], tables[2:]):
        query = start()
        assert query.isActive
        for table in part:
            write_batches(source, [table])
            query.processAllAvailable()
        query.stop()
        assert not query.isActive
        assert query.exception() is None
        assert query.awaitTermination(5) is True
    assert results(spark, tmp_path)["windows"] == undisturbed["windows"]


# Errors of the user's own


def test_an_error_in_the_sink_reaches_the_user_as_it_is(
    spark: SparkSession, undisturbed: Results, tmp_path: Path
) -> None:
    write_batches(tmp_path / "source", bids(BATCHES))
    out: dict[int, Counter[Any]] = {}
    boom = KeyError("no room at the inn")
    failing = {2, 4}

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = Counter(tuple(row) for row in frame.collect())
        if batch_id in failing:
            failing.remove(batch_id)
            raise boom
        out[batch_id] = rows

    def start() -> MillpondQuery:
        return (
            totals(read_stream(spark, tmp_path / "source", SCHEMA))
            .writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    for failed_batch in (2, 4):
        query = start()
        with pytest.raises(KeyError) as raised:
            query.awaitTermination()
        assert raised.value is boom
        assert query.exception() is boom
        assert not query.isActive
        newest = state_of(tmp_path, "totals")
        assert newest is not None and newest.batch_id == failed_batch - 1
    start().awaitTermination()
    assert {f"totals {batch}": rows for batch, rows in out.items()} == {
        name: rows for name, rows in undisturbed.items() if name != "windows"
    }


def test_process_all_available_raises_the_user_s_error(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "source", bids(1))
    boom = LookupError("nothing here")

    def write(frame: DataFrame, batch_id: int) -> None:
        raise boom

    query = (
        totals(read_stream(spark, tmp_path / "source", SCHEMA))
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .start()
    )
    with pytest.raises(LookupError) as raised:
        query.processAllAvailable()
    assert raised.value is boom


def test_an_overflow_leaves_the_state_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    fixed = str(tmp_path / "fixed")

    @F.udf("long")
    def repaired(value):
        return 1 if value > 100 and os.path.exists(fixed) else value  # noqa: PTH110

    def table(*prices: int) -> pa.Table:
        return pa.table(
            {
                "bidder": pa.array([1] * len(prices), pa.int64()),
                "price": pa.array(prices, pa.int64()),
                "ts": pa.array([START] * len(prices), pa.timestamp("us", "UTC")),
            }
        )

    out: dict[int, list[int]] = {}

    def start() -> MillpondQuery:
        stream = read_stream(spark, tmp_path / "source", SCHEMA).withColumn("price", repaired("price"))
        return (
            mp.stream(stream)
            .groupBy("bidder")
            .agg(F.sum("price").alias("total"))
            .writeStream.outputMode("update")
            .foreachBatch(
                lambda frame, batch_id: out.update({batch_id: [row.total for row in frame.collect()]})
            )
            .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    # The second batch overflows only together with the first, so in the store; the third in the ingest task.
    write_batches(tmp_path / "source", [table(100), table(2**63 - 50)])
    with pytest.raises(ArithmeticException, match=r"ARITHMETIC_OVERFLOW.*try_sum"):
        start().awaitTermination()
    newest = state_of(tmp_path, "totals")
    assert newest is not None and newest.batch_id == 0
    with pytest.raises(ArithmeticException, match="ARITHMETIC_OVERFLOW"):
        start().awaitTermination()
    assert out == {0: [100]}
    Path(fixed).touch()
    start().awaitTermination()
    assert out == {0: [100], 1: [101]}

    Path(fixed).unlink()
    write_batches(tmp_path / "source", [table(2**63 - 1, 2**63 - 1)])
    with pytest.raises(ArithmeticException, match="ARITHMETIC_OVERFLOW"):
        start().awaitTermination()
    Path(fixed).touch()
    start().awaitTermination()
    assert out == {0: [100], 1: [101], 2: [103]}


# Stop at any moment


class Gate:
    """Tasks that reach the gate wait there, until it is opened for good."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._reached, self._open = directory / "reached", directory / "open"

    def udf(self) -> Any:
        reached, opened = str(self._reached), str(self._open)

        def wait(value):
            import pathlib
            import time

            if not pathlib.Path(opened).exists():
                pathlib.Path(reached).touch()
            while not pathlib.Path(opened).exists():
                time.sleep(0.05)
            return value

        return F.udf(wait, "long")

    def await_reached(self) -> None:
        await_that(self._reached.exists, "a task at the gate")

    def open(self) -> None:
        self._open.touch()


@pytest.mark.parametrize("place", ["ingest", "sink"])
def test_stop_does_not_wait_for_the_batch(
    spark: SparkSession, undisturbed: Results, tmp_path: Path, place: str
) -> None:
    write_batches(tmp_path / "source", bids(BATCHES))
    gate = Gate(tmp_path / "gate")
    passing = gate.udf()
    out: dict[str, Counter[Any]] = {}

    def write(frame: DataFrame, batch_id: int) -> None:
        if place == "sink":
            frame = frame.withColumn("n", passing("n"))
        out[f"totals {batch_id}"] = Counter(tuple(row) for row in frame.collect())

    def start() -> MillpondQuery:
        stream = read_stream(spark, tmp_path / "source", SCHEMA)
        if place == "ingest":
            stream = stream.withColumn("price", passing("price"))
        return (
            totals(stream)
            .writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    query = start()
    gate.await_reached()
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < SECONDS_TO_STOP
    assert query.exception() is None
    assert query.awaitTermination(5) is True
    assert state_of(tmp_path, "totals") is None
    gate.open()
    start().awaitTermination()
    assert out == {name: rows for name, rows in undisturbed.items() if name != "windows"}


def test_stop_from_inside_the_sink_s_batch_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "source", bids(3))
    in_sink = threading.Event()
    stopping = threading.Event()

    def write(frame: DataFrame, batch_id: int) -> None:
        in_sink.set()
        stopping.wait(60)

    query = (
        totals(read_stream(spark, tmp_path / "source", SCHEMA))
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
        .start()
    )
    assert in_sink.wait(120)
    threading.Timer(0.2, stopping.set).start()
    query.stop()
    assert query.exception() is None
    newest = state_of(tmp_path, "totals")
    assert newest is None or newest.batch_id == 0


def test_a_stop_through_spark_s_own_list_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "source", bids(1))
    gate = Gate(tmp_path / "gate")
    stream = read_stream(spark, tmp_path / "source", SCHEMA).withColumn("price", gate.udf()("price"))
    query = (
        totals(stream)
        .writeStream.outputMode("update")
        .foreachBatch(lambda frame, _: frame.collect())
        .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
        .start()
    )
    gate.await_reached()
    for active in spark.streams.active:
        active.stop()
    gate.open()
    assert query.awaitTermination(SECONDS_TO_STOP) is True
    assert query.exception() is None


class EndedQuery:
    """Of Spark's, as a query of Millpond's sees it."""

    def awaitTermination(self) -> None: ...  # noqa: N802, Spark's name

    def stop(self) -> None: ...


class UnclosableLoop:
    stopping = threading.Event()

    def close(self) -> None:
        raise OSError("the service does not answer")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_query_whose_service_can_t_be_closed_ends_all_the_same(tmp_path: Path) -> None:
    temporary = tmp_path / "checkpoint"
    temporary.mkdir()
    query = MillpondQuery(EndedQuery(), UnclosableLoop(), temporary)  # type: ignore[arg-type]
    stop = threading.Thread(target=query.stop, daemon=True)
    stop.start()
    stop.join(SECONDS_TO_STOP)
    assert not stop.is_alive()
    assert not temporary.exists()


# Two drivers


def test_the_older_of_two_drivers_is_fenced(
    spark: SparkSession, undisturbed: Results, tmp_path: Path
) -> None:
    write_batches(tmp_path / "source", bids(BATCHES))
    storage = LocalStorage(tmp_path / "totals-checkpoint" / "millpond")
    out: dict[str, Counter[Any]] = {}

    def take_over_in_batch_2(frame: DataFrame, batch_id: int) -> None:
        out[f"totals {batch_id}"] = Counter(tuple(row) for row in frame.collect())
        if batch_id == 2:
            old = SlotLog(storage).head().owner
            assert old is not None
            SlotLog(storage).take(
                query_id=old.query_id,
                run_id="newer",
                driver="the newer driver",
                operators=old.operators,
                shard_starts=old.shard_starts,
                taken_at_ms=1,
            )

    def start(write: Callable[[DataFrame, int], None]) -> MillpondQuery:
        return (
            totals(read_stream(spark, tmp_path / "source", SCHEMA))
            .writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    older = start(take_over_in_batch_2)
    with pytest.raises(Fenced, match=r"taken over by the newer driver.*must stop"):
        older.awaitTermination()
    assert isinstance(older.exception(), Fenced)
    newest = state_of(tmp_path, "totals")
    assert newest is not None and newest.batch_id == 1

    def write(frame: DataFrame, batch_id: int) -> None:
        out[f"totals {batch_id}"] = Counter(tuple(row) for row in frame.collect())

    start(write).awaitTermination()
    assert out == {name: rows for name, rows in undisturbed.items() if name != "windows"}


# A batch that Spark did not hear of


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """What a crash between the commit record and Spark's own commit leaves behind."""
    for file in ((checkpoint / "commits" / str(batch_id)), (checkpoint / "commits" / f".{batch_id}.crc")):
        file.unlink()


def test_a_batch_that_spark_forgot_is_not_done_again(
    spark: SparkSession, undisturbed: Results, tmp_path: Path
) -> None:
    tables = bids(BATCHES)
    write_batches(tmp_path / "source", tables[:4])
    for query in [start(spark, tmp_path / "source", tmp_path) for start in (start_windows, start_totals)]:
        query.awaitTermination()
    forget_commit(tmp_path / "windows-checkpoint", 3)
    forget_commit(tmp_path / "totals-checkpoint", 3)
    (tmp_path / "totals" / "3.json").unlink()
    write_batches(tmp_path / "source", tables[4:])
    for query in [start(spark, tmp_path / "source", tmp_path) for start in (start_windows, start_totals)]:
        query.awaitTermination()
    wanted = {name: rows for name, rows in undisturbed.items() if name != "totals 3"}
    assert results(spark, tmp_path) == wanted


def test_late_rows_stay_late_after_a_batch_that_spark_forgot(spark: SparkSession, tmp_path: Path) -> None:
    def table(*seconds: int) -> pa.Table:
        return pa.table(
            {
                "bidder": pa.array([1] * len(seconds), pa.int64()),
                "price": pa.array([1] * len(seconds), pa.int64()),
                "ts": pa.array([START + timedelta(seconds=s) for s in seconds], pa.timestamp("us", "UTC")),
            }
        )

    write_batches(tmp_path / "source", [table(1, 2), table(30)])
    start_windows(spark, tmp_path / "source", tmp_path).awaitTermination()
    before = results(spark, tmp_path)["windows"]
    assert before
    forget_commit(tmp_path / "windows-checkpoint", 1)
    # The watermark is 26 s after the batch that is skipped: without it, this row would open a window again.
    write_batches(tmp_path / "source", [table(3), table(60)])
    query = start_windows(spark, tmp_path / "source", tmp_path)
    query.awaitTermination()
    dropped = [
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    ]
    assert sum(dropped) == 1
    after = results(spark, tmp_path)["windows"]
    assert before <= after
    assert {row[1] for row in before}.isdisjoint(row[1] for row in after - before)


def test_other_offsets_for_a_committed_batch_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "source", bids(2))
    start_totals(spark, tmp_path / "source", tmp_path).awaitTermination()
    checkpoint = tmp_path / "totals-checkpoint"
    forget_commit(checkpoint, 1)
    offsets = checkpoint / "offsets" / "1"
    offsets.write_text(offsets.read_text().replace('{"logOffset":1}', '{"logOffset":0}'))
    (checkpoint / "offsets" / ".1.crc").unlink()
    query = start_totals(spark, tmp_path / "source", tmp_path)
    with pytest.raises(CorruptState, match="batch 1 with offsets that differ"):
        query.awaitTermination()


# The memory sink


def test_the_memory_sink_holds_each_batch_once(
    spark: SparkSession, undisturbed: Results, tmp_path: Path
) -> None:
    write_batches(tmp_path / "source", bids(BATCHES))

    def start(mode: str, name: str, frame: Any) -> MillpondQuery:
        return (
            frame.writeStream.outputMode(mode)
            .format("memory")
            .queryName(name)
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    stream = read_stream(spark, tmp_path / "source", SCHEMA)
    start("append", "fired", windows(stream)).awaitTermination()
    assert Counter(tuple(row) for row in spark.table("fired").collect()) == undisturbed["windows"]
    # Its rows are gone with its query: going on would leave a table with holes. Spark refuses it as well.
    with pytest.raises(InvalidQuery, match=r"memory.*does not keep"):
        start("append", "fired", windows(stream))

    start("complete", "every", totals(stream)).awaitTermination()
    wanted = Counter(tuple(row) for row in spark.table("every").collect())
    assert sum(row[1] for row in wanted) == sum(table.num_rows for table in bids(BATCHES))
    write_batches(tmp_path / "source", bids(1))
    start("complete", "every", totals(stream)).awaitTermination()
    again = Counter(tuple(row) for row in spark.table("every").collect())
    assert sum(row[1] for row in again) == sum(row[1] for row in wanted) + bids(1)[0].num_rows
