"""The demo: an auction's bids counted per bidder and window, on Spark, with the state in Millpond."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond.spark.query import MillpondQuery

__all__ = ["run"]

_ROWS_PER_BATCH = 200_000
_MILLISECONDS_PER_BATCH = 2_500
_SAMPLE_ROWS = 8


class _Results:
    """The first windows that closed, and how many rows came out."""

    def __init__(self) -> None:
        self.rows = 0
        self.sample: list[Any] = []
        self._lock = threading.Lock()

    def take(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002
        from pyspark.sql import functions as F

        batch = batch.persist()
        try:
            count = batch.count()
            sample = batch.orderBy(F.desc("n"), "bidder").limit(_SAMPLE_ROWS).collect() if count else []
        finally:
            batch.unpersist()
        with self._lock:
            self.rows += count
            self.sample = self.sample or sample


def run(seconds: float, state: Path | None, checkpoint: Path | None) -> None:
    console = Console()
    with _session(console) as spark, _directory(checkpoint) as checkpoint_directory:
        results = _Results()
        console.print(
            f"Counting bids per bidder in windows of 10 s every 5 s for {seconds:.0f} s. "
            f"State: {state or checkpoint_directory / 'millpond'}"
        )
        query = _start(spark, results, state, checkpoint_directory)
        started = time.monotonic()
        try:
            _watch(console, query, results, started, seconds)
        finally:
            query.stop()
        _summary(console, query, results, time.monotonic() - started)


def _start(spark: SparkSession, results: _Results, state: Path | None, checkpoint: Path) -> MillpondQuery:
    from pyspark.sql import functions as F

    import millpond as mp
    from millpond.workloads.auctions import bids

    stream = bids(spark, rows_per_batch=_ROWS_PER_BATCH, milliseconds_per_batch=_MILLISECONDS_PER_BATCH)
    counts = (
        mp.stream(stream)
        .withWatermark("ts", "4 seconds")
        .groupBy("bidder", F.window("ts", "10 seconds", "5 seconds"))
        .agg(F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price").alias("highest"))
    )
    writer = (
        counts.where(counts["n"] > 3)
        .writeStream.outputMode("append")
        .foreachBatch(results.take)
        .option("checkpointLocation", str(checkpoint))
    )
    if state is not None:
        writer = writer.option("stateLocation", str(state))
    query: MillpondQuery = writer.start()
    return query


def _watch(console: Console, query: MillpondQuery, results: _Results, started: float, seconds: float) -> None:
    """Shows the newest batches until the time is up; a failed query raises its error here."""
    live = Live(console=console, refresh_per_second=4) if console.is_terminal else contextlib.nullcontext()
    shown = -1
    with live as display:
        while (passed := time.monotonic() - started) < seconds:
            if query.awaitTermination(min(1, max(0.05, seconds - passed))):  # type: ignore[arg-type]
                return
            recent = [progress for progress in query.recentProgress if progress["numInputRows"]]
            if display is not None:
                display.update(_batches(recent[-8:], results, seconds - passed))
            elif recent and recent[-1]["batchId"] != shown:
                shown = recent[-1]["batchId"]
                console.print(_line(recent[-1], seconds - passed))


def _line(progress: Any, left: float) -> str:
    operator = progress["stateOperators"][0] if progress["stateOperators"] else None
    state = f", state {operator['numRowsTotal']:,} groups" if operator else ""
    return (
        f"batch {progress['batchId']}: {progress['numInputRows']:,} rows, "
        f"{progress['durationMs']['triggerExecution']} ms{state}, {max(0, left):.0f} s left"
    )


def _batches(recent: list[Any], results: _Results, left: float) -> Table:
    table = Table(title=f"{max(0, left):.0f} s left, {results.rows:,} results so far", title_justify="left")
    for name in (
        "batch",
        "rows",
        "rows/s",
        "ms",
        "ingest",
        "seal",
        "emit",
        "commit",
        "groups",
        "memory",
        "late",
    ):
        table.add_column(name, justify="right")
    table.add_column("watermark")
    for progress in recent:
        spent = progress["durationMs"]
        operators = progress["stateOperators"]
        operator = operators[0] if operators else None
        table.add_row(
            str(progress["batchId"]),
            f"{progress['numInputRows']:,}",
            f"{progress['numInputRows'] / max(spent['triggerExecution'], 1) * 1000:,.0f}",
            str(spent["triggerExecution"]),
            *(str(spent.get(f"millpond.{part}", "")) for part in ("ingest", "seal", "emit", "commit")),
            f"{operator['numRowsTotal']:,}" if operator else "",
            f"{operator['memoryUsedBytes'] / 2**20:.1f} MiB" if operator else "",
            f"{operator['numRowsDroppedByWatermark']:,}" if operator else "",
            progress["eventTime"].get("watermark", ""),
        )
    return table


def _summary(console: Console, query: MillpondQuery, results: _Results, seconds: float) -> None:
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    if not batches:
        console.print("No batch ended in this time: give it more with --seconds.")
        return
    if results.sample:
        table = Table(title="First windows that closed", title_justify="left")
        for name in ("bidder", "window", "bids", "total", "highest"):
            table.add_column(name, justify="left" if name == "window" else "right")
        for row in results.sample:
            window = f"{row['window']['start']:%H:%M:%S} to {row['window']['end']:%H:%M:%S}"
            table.add_row(str(row["bidder"]), window, str(row["n"]), f"{row['total']:,}", str(row["highest"]))
        console.print(table)
    times = sorted(progress["durationMs"]["triggerExecution"] for progress in batches)
    # The first batches start Python workers and compile code; they are no measure of the rest.
    warm = batches[2:] or batches
    rows = sum(progress["numInputRows"] for progress in warm)
    spent = sum(progress["durationMs"]["triggerExecution"] for progress in warm) / 1000
    last = batches[-1]["stateOperators"]
    lines = [
        ("batches", f"{len(batches)} in {seconds:.0f} s, {sum(p['numInputRows'] for p in batches):,} rows"),
        ("throughput", f"{rows / max(spent, 0.001):,.0f} rows/s, the first two batches left out"),
        ("batch time", f"median {statistics.median(times):.0f} ms, longest {times[-1]} ms"),
        ("results", f"{results.rows:,} rows"),
    ]
    if last:
        files = int(last[0]["customMetrics"].get("fileBytes", 0))
        lines.append(
            (
                "state",
                f"{last[0]['numRowsTotal']:,} groups, {last[0]['memoryUsedBytes'] / 2**20:.1f} MiB in memory, "
                f"{files / 2**20:.1f} MiB in files",
            )
        )
    summary = Table(show_header=False, box=None)
    for name, text in lines:
        summary.add_row(f"[bold]{name}[/bold]", text)
    console.print(summary)


@contextlib.contextmanager
def _session(console: Console) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    with console.status("Starting Spark"):
        spark = (
            SparkSession.builder.appName("millpond demo")
            .master(f"local[{os.cpu_count() or 2}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The user's directory, or one that goes with the demo."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    made = Path(tempfile.mkdtemp(prefix="millpond-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
