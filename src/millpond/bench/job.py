"""What goes to the process that runs one engine, and what comes back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millpond.bench.kernel import KernelMerge
from millpond.bench.keyed import Keyed
from millpond.bench.papers import Paper
from millpond.bench.trace import TraceReplay

__all__ = ["BatchTime", "Job", "Outcome", "write_outcome"]


class Job(msgspec.Struct, frozen=True):
    """One run of one engine. Paths are absolute; `directory` is empty and belongs to the run."""

    workload: Keyed | KernelMerge | Paper | TraceReplay
    engine: str
    data: str
    directory: str
    settings: dict[str, str]
    rehearsal_batches: int = 0
    """So many of the first batches are run once before the run that counts, so that the JVM has compiled its code."""

    trace_file: str | None = None
    """Where Millpond records its state accesses."""

    @property
    def output(self) -> Path:
        """One directory `batch=<id>` of Parquet files per batch."""
        return Path(self.directory, "output")

    @property
    def outcome(self) -> Path:
        """Appears, complete, when the run is over."""
        return Path(self.directory, "outcome.json")


class BatchTime(msgspec.Struct, frozen=True):
    """One batch as its progress tells it."""

    rows: int
    ms: float
    phases_ms: dict[str, float]
    time_split_ms: dict[str, float] = {}
    cpu_split_ms: dict[str, float] = {}
    """By part, as `bench.split` says; empty where the engine tells nothing."""


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended. `error` is None when all went well."""

    batches: tuple[BatchTime, ...] = ()
    state_rows: int | None = None
    state_bytes: int | None = None
    error: str | None = None


def write_outcome(job: Job, outcome: Outcome) -> None:
    partial = job.outcome.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(outcome))
    partial.rename(job.outcome)
