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
    """So many of the first batches are run once before the run that counts, half of them in small pieces, so that the
    JVM has compiled its code."""
    shards: int | None = None
    """Of Millpond's state; None: as many as shuffle partitions."""
    state_latency_ms: float = 0.0
    """What each request to checkpoint and state storage costs beside the disk."""
    find_rate: bool = False
    """Looks for the highest rate that the engine keeps up with; that of the workload is where it begins."""
    trace_file: str | None = None
    """Where Millpond records its state accesses."""

    @property
    def output(self) -> Path:
        """One directory `batch=<id>` of Parquet files per batch."""
        return Path(self.directory, "output")

    @property
    def watched(self) -> Path:
        """Where live traffic arrives: a directory for each stream."""
        return Path(self.directory, "traffic")

    @property
    def notes(self) -> Path:
        """Lines for whoever waits for the run."""
        return Path(self.directory, "notes.txt")

    @property
    def outcome(self) -> Path:
        """Appears, complete, when the run is over."""
        return Path(self.directory, "outcome.json")


class StateReads(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch asked of its state, as far as the engine tells."""

    reads: int = 0
    from_memory: int = 0
    wait_ms: float | None = None
    """What threads waited for storage and for blocks that were not in memory, all of them together."""
    wanted_ahead: int = 0
    """Reads that reading ahead could have served, and those that it did."""
    from_ahead: int = 0
    state_bytes: int | None = None
    """All state, in memory or not."""
    file_bytes: int | None = None
    """Files of the state, with what of them is dead."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Live traffic that a batch took in."""

    started_s: float
    """From the beginning of the traffic."""
    delays: tuple[tuple[float, int], ...]
    """Milliseconds from the moment when events were due to the end of the batch, and how many events."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A short run at one rate, in the search for the highest."""

    rate: int
    sustained: bool
    delay_p95_ms: float | None
    """None where the run was given up."""


class BatchTime(msgspec.Struct, frozen=True):
    """One batch as its progress tells it."""

    rows: int
    ms: float
    phases_ms: dict[str, float]
    time_split_ms: dict[str, float] = {}
    cpu_split_ms: dict[str, float] = {}
    """By part, as `bench.split` says; empty where the engine tells nothing."""
    state: StateReads | None = None
    arrivals: Arrivals | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended. `error` is None when all went well."""

    batches: tuple[BatchTime, ...] = ()
    state_rows: int | None = None
    state_bytes: int | None = None
    probes: tuple[Probe, ...] = ()
    error: str | None = None


def write_outcome(job: Job, outcome: Outcome) -> None:
    partial = job.outcome.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(outcome))
    partial.rename(job.outcome)
