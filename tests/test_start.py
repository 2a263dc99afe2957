"""Starting a query: one that is refused leaves the running one alone and nothing behind; formats know no case."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import InvalidQuery, MillpondError
from millpond.spark.query import MillpondQuery
from millpond.spark.writer import StreamWriter
from millpond.storage.local import LocalStorage
from millpond.storage.slotlog import SlotLog
from tests.kill_queries import SCHEMA, bids, totals, windows
from tests.streams import read_stream, write_batches


class Running:
    """A query with a name, over a directory that more batches come to."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.batches: list[int] = []
        self.query = self.writer().foreachBatch(self._write).queryName("running").start()

    def _write(self, _frame: DataFrame, batch_id: int) -> None:
        self.batches.append(batch_id)

    def writer(self) -> StreamWriter:
        """Of the same query, on the same checkpoint."""
        return (
            totals(read_stream(self.spark, self.root / "source", SCHEMA))
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(self.root / "checkpoint"))
        )

    def add_batch(self) -> None:
        write_batches(self.root / "source", bids(1))
        self.query.processAllAvailable()

    def owner_slot(self) -> int:
        owner = SlotLog(LocalStorage(self.root / "checkpoint" / "millpond")).head().owner
        assert owner is not None
        return owner.slot


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[Running]:
    write_batches(tmp_path / "source", bids(1))
    running = Running(spark, tmp_path)
    try:
        running.query.processAllAvailable()
        yield running
    finally:
        running.query.stop()


def ignore(_frame: DataFrame, _batch_id: int) -> None: ...


REFUSED: dict[str, tuple[Callable[[StreamWriter], Any], str]] = {
    "its name is taken": (
        lambda w: w.foreachBatch(ignore).queryName("running").start(),
        "query with name running .* already active in this SparkSession",
    ),
    "no path": (lambda w: w.format("parquet").start(), "needs a path"),
    "a mode that the sink lacks": (
        lambda w: w.format("parquet").start("/nowhere"),
        "takes output mode append, not update",
    ),
    "a trigger that is no interval": (
        lambda w: w.foreachBatch(ignore).trigger(processingTime="soon").start(),
        "soon",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_start_leaves_the_running_query_alone(running: Running, case: str) -> None:
    start, message = REFUSED[case]
    slot = running.owner_slot()
    with pytest.raises((MillpondError, IllegalArgumentException), match=message):
        start(running.writer())
    assert running.owner_slot() == slot
    running.add_batch()
    assert running.query.isActive
    assert running.batches == [0, 1]


def test_where_spark_stops_no_active_run_neither_does_millpond(running: Running) -> None:
    setting = "spark.sql.streaming.stopActiveRunOnRestart"
    running.spark.conf.set(setting, "false")
    try:
        with pytest.raises(InvalidQuery, match=f"same id is already active.*{setting}"):
            running.writer().foreachBatch(ignore).start()
    finally:
        running.spark.conf.unset(setting)
    running.add_batch()
    assert running.batches == [0, 1]


def test_a_refused_start_leaves_the_table_of_the_memory_sink_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "source", bids(3))

    def start() -> MillpondQuery:
        return (
            windows(read_stream(spark, tmp_path / "source", SCHEMA))
            .writeStream.format("memory")
            .queryName("kept")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    start().awaitTermination()
    rows = spark.table("kept").count()
    assert rows > 0
    with pytest.raises(InvalidQuery, match="does not keep"):
        start()
    assert spark.table("kept").count() == rows


@pytest.mark.parametrize("late", [False, True], ids=["by Millpond", "by Spark"])
def test_a_refused_start_leaves_no_temporary_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    write_batches(tmp_path / "source", bids(1))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    writer = windows(read_stream(spark, tmp_path / "source", SCHEMA)).writeStream.format("memory")
    if late:
        monkeypatch.setattr("pyspark.sql.streaming.readwriter.DataStreamWriter.start", _refuse)
        writer.queryName("late")
    with pytest.raises(InvalidQuery):
        writer.start()
    assert not list((tmp_path / "temporary").iterdir())


def _refuse(_writer: Any) -> None:
    raise InvalidQuery("Spark says no")


@pytest.mark.parametrize("name", ["PARQUET", "Json"])
def test_file_sinks_are_known_in_any_case(spark: SparkSession, tmp_path: Path, name: str) -> None:
    run(spark, tmp_path, lambda w: w.format(name).option("path", str(tmp_path / "out")))
    # Only Spark's own file sink, which writes each batch once, has this log.
    assert (tmp_path / "out" / "_spark_metadata").is_dir()


def test_a_default_format_is_known_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.sources.default", "Parquet")
    try:
        run(spark, tmp_path, lambda w: w.option("path", str(tmp_path / "out")))
    finally:
        spark.conf.unset("spark.sql.sources.default")
    assert (tmp_path / "out" / "_spark_metadata").is_dir()


def test_the_memory_sink_is_known_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, lambda w: w.format("Memory").queryName("any_case"), checkpoint=False)
    assert spark.table("any_case").count() > 0


def test_the_console_sink_is_known_in_any_case(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(spark, tmp_path, lambda w: w.format("Console"), checkpoint=False)
    assert "Batch: 0" in capsys.readouterr().out


def run(
    spark: SparkSession,
    root: Path,
    to_sink: Callable[[StreamWriter], StreamWriter],
    *,
    checkpoint: bool = True,
) -> None:
    write_batches(root / "source", bids(3))
    writer = to_sink(windows(read_stream(spark, root / "source", SCHEMA)).writeStream)
    if checkpoint:
        writer.option("checkpointLocation", str(root / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
