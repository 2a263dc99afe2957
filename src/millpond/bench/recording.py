"""Runs a workload with Millpond once, to record its state accesses."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millpond.bench.job import Job
from millpond.bench.keyed import Keyed
from millpond.bench.papers import Paper
from millpond.bench.runner import run
from millpond.bench.settings import session_settings
from millpond.bench.trace import kept_recording
from millpond.service.trace import TraceReader

__all__ = ["Recording", "record_trace"]


class Recording(msgspec.Struct, frozen=True):
    """What was recorded, or why nothing was."""

    batches: int = 0
    rows: int = 0
    error: str | None = None


def record_trace(
    workload: Keyed | Paper, out: Path, scratch: Path, time_limit_s: float, *, cores: int
) -> Recording:
    """One shard, so that the order of the rows is one; a replay is on one core as well."""
    data, directory = scratch / "data", scratch / "run"
    directory.mkdir()
    filling_batches = workload.prepare(data).filling_batches
    trace = scratch / "trace.arrow"
    settings = session_settings(cores, partitions=1) | {"spark.local.dir": str(directory / "local")}
    job = Job(workload, "millpond", str(data), str(directory), settings, trace_file=str(trace))
    outcome = run(job, time_limit_s, lambda _: None).outcome
    if outcome.error is not None:
        return Recording(error=outcome.error)
    batches = kept_recording(trace, out, workload.name, workload.params(), filling_batches)
    merged = (recorded.access.rows for recorded in TraceReader(out))
    return Recording(batches, sum(rows.num_rows for rows in merged if rows is not None))
