"""Runs one engine under live traffic, inside the process that measures it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.bench.arrivals import TickReads, batch_end_s, batch_start_s, ticks_of_batches, took_files
from millpond.bench.batch_notes import BatchNotes
from millpond.bench.engines import checkpoint_directory, running
from millpond.bench.feeder import Feeder
from millpond.bench.job import Arrivals, Job, Outcome
from millpond.bench.live import Live
from millpond.bench.state_reads import state_totals
from millpond.bench.workload import StreamingWorkload, stream_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["run_live"]


def run_live(
    spark: SparkSession,
    job: Job,
    workload: StreamingWorkload,
    live: Live,
    goes_on: Callable[[StreamingQuery, float], bool] | None = None,
    *,
    close: bool = True,
) -> Outcome | None:
    """Feeds the traffic, waits until all of it is done, and with `close` fires what is open. `goes_on` is asked after
    every tick, with the query and when the traffic began; when it says no the run is given up: None."""
    feeder = Feeder(Path(job.data), job.watched, workload.streams)
    notes = BatchNotes(spark, job)
    with running(spark, job, workload, live=live, after_batch=notes.note) as query:

        def still_worth_it() -> bool:
            return bool(query.isActive) and (goes_on is None or goes_on(query, feeder.began_s))

        due_s = [live.due_s(tick) for tick in range(live.ticks)]
        if not feeder.feed(due_s, still_worth_it) and query.isActive:
            query.stop()
            return None
        # Raises what ended the query, if something did.
        query.processAllAvailable()
        closing = workload.closing_batches if close else 0
        for number in range(live.ticks, live.ticks + closing):
            feeder.put(number)
            query.processAllAvailable()
        progress = [report for report in query.recentProgress if took_files(report)]
        query.stop()
    return _outcome(job, workload, live, feeder.began_s, progress, notes, files=live.ticks + closing)


def _outcome(
    job: Job,
    workload: StreamingWorkload,
    live: Live,
    began_s: float,
    progress: Sequence[Any],
    notes: BatchNotes,
    files: int,
) -> Outcome:
    rows = stream_rows(Path(job.data), workload.streams)
    reads = ticks_of_batches(checkpoint_directory(job), progress, workload.streams)
    read = {(each.stream, tick) for batch in reads for each in batch for tick in each.ticks}
    missing = sorted(file for file in rows.keys() - read if file[1] < files)
    if missing:
        return Outcome(error=f"no batch tells that it read {missing[:3]} of {files} files")
    states = notes.states(progress)
    batches = tuple(
        notes.batch_time(
            report,
            sum(rows[each.stream, tick] for each in ticks for tick in each.ticks),
            state,
            Arrivals(
                started_s=round(batch_start_s(report) - began_s, 3),
                delays=tuple(_delays(batch_end_s(report) - began_s, ticks, live, rows)),
            ),
        )
        for report, ticks, state in zip(progress, reads, states, strict=True)
    )
    state_rows, state_bytes = state_totals(progress[-1].stateOperators)
    return Outcome(batches=batches, state_rows=state_rows, state_bytes=state_bytes)


def _delays(
    end_s: float, ticks: Sequence[TickReads], live: Live, rows: dict[tuple[str, int], int]
) -> list[tuple[float, int]]:
    """Closing files are no traffic."""
    return [
        (round((end_s - live.due_s(tick)) * 1_000, 3), rows[each.stream, tick])
        for each in ticks
        for tick in each.ticks
        if tick < live.ticks and rows[each.stream, tick] > 0
    ]
