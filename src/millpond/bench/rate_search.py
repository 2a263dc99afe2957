"""Looks for the highest rate that an engine keeps up with: short runs in one process, each with data of its own."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.bench.arrivals import batch_end_s
from millpond.bench.job import Job, Outcome, Probe
from millpond.bench.latency import Counting, delay_percentiles
from millpond.bench.live import Live
from millpond.bench.live_run import run_live
from millpond.bench.papers import Paper
from millpond.bench.rates import EXPECTED_PROBES, is_sustained, next_rate, too_far_behind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["find_rate"]

WARMUP_BATCHES = 2


def find_rate(spark: SparkSession, job: Job, workload: Paper) -> Outcome:
    """Begins at the workload's own rate, whose data are there already."""
    assert workload.live is not None
    probes: list[Probe] = []
    last: Outcome | None = None
    while (rate := next_rate(probes, workload.live.rate)) is not None:
        directory = Path(job.directory, f"probe-{len(probes):02}")
        directory.mkdir()
        at_rate = workload.at_rate(rate)
        data = Path(job.data)
        if rate != workload.live.rate:
            data = directory / "data"
            at_rate.prepare(data)
        attempt = msgspec.structs.replace(job, workload=at_rate, data=str(data), directory=str(directory))
        assert at_rate.live is not None
        probe, outcome = _probe(spark, attempt, at_rate, at_rate.live)
        if outcome is not None and outcome.error is not None:
            return outcome
        probes.append(probe)
        last = outcome or last
        with job.notes.open("a") as notes:
            verdict = "keeps up" if probe.sustained else "falls behind"
            expected = max(EXPECTED_PROBES, len(probes))
            notes.write(f"{rate:,} events/s: {verdict} (run {len(probes)} of about {expected})\n")
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome(
        probes=tuple(probes),
        state_rows=last.state_rows if last else None,
        state_bytes=last.state_bytes if last else None,
    )


def _probe(spark: SparkSession, job: Job, workload: Paper, live: Live) -> tuple[Probe, Outcome | None]:
    # The rows that close windows are for results, which nobody looks at here.
    def goes_on(query: StreamingQuery, began_s: float) -> bool:
        last = query.lastProgress
        ended_s = began_s if last is None else max(began_s, batch_end_s(last))
        return not too_far_behind(time.time() - ended_s - live.trigger_seconds, live.trigger_seconds)

    outcome = run_live(spark, job, workload, live, goes_on, close=False)
    if outcome is None:
        return Probe(rate=live.rate, sustained=False, delay_p95_ms=None), None
    measured = Counting(WARMUP_BATCHES, live).of(outcome.batches)
    delays = delay_percentiles(measured)
    sustained = is_sustained(measured, live.trigger_seconds)
    return Probe(rate=live.rate, sustained=sustained, delay_p95_ms=delays["p95"] if delays else None), outcome
