"""One comparison: every engine, as often as asked, in turn, on the same data."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from millpond.bench.digest import differences, digest, last_rows
from millpond.bench.job import Job, Outcome
from millpond.bench.kernel import KernelMerge
from millpond.bench.keyed import Keyed
from millpond.bench.live import Live
from millpond.bench.live_outputs import keep_live_outputs
from millpond.bench.papers import Paper
from millpond.bench.rates import MOST_PROBES
from millpond.bench.runner import Measured, run
from millpond.bench.settings import FLOOR, KEEPS_BATCHES, engine_settings, session_settings
from millpond.bench.slow_storage import LATENCIES_MS, StateLatency, compiled, slow_settings
from millpond.bench.trace import TraceReplay
from millpond.bench.workload import Prepared, StreamingWorkload, Workload, has_outputs, keep_outputs
from millpond.workloads.scales import CLOSED_BY

__all__ = ["Comparison", "EngineRun", "Plan", "Watcher", "compare"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared."""

    workload: Keyed | KernelMerge | Paper | TraceReplay
    engines: tuple[str, ...]
    repeat: int
    warmup_batches: int
    """The first batches of a run, left out of the figures."""
    rehearsal_batches: int = 0
    """Run once before, by the same processes."""
    time_limit_s: float
    memory_bytes: int | None = None
    """What the store of each engine may hold in memory; None: as much as the engine takes by itself."""
    write_buffer_bytes: int | None = None
    """What of it may be changes that are not in a file yet."""
    partitions: int | None = None
    """Shuffle partitions and shards; None: as many as cores."""
    shards: int | None = None
    """Of Millpond's state; None: as many as partitions."""
    space_amplification: float | None = None
    """At which Millpond rewrites its state; None: its own default."""
    read_batch_ratio: float | None = None
    """Least share of the open sessions that Millpond reads ahead; None: its own default."""
    state_latency: StateLatency | None = None
    """Whose requests to checkpoint and state storage take as long; None: the disk's own."""
    find_rate: bool = False
    """Looks for the highest rate of each engine, from that of the workload's traffic."""
    varied: dict[str, str] = {}
    """What differs between this and its neighbours in a sweep."""

    def settings_of(self, engine: str) -> dict[str, str]:
        settings = engine_settings(
            engine, self.workload, self.memory_bytes, self.write_buffer_bytes, self.partitions
        )
        own = {
            "spark.millpond.compaction.maxSpaceAmplification": self.space_amplification,
            "spark.millpond.read.batchRatio": self.read_batch_ratio,
        }
        if engine == "millpond":
            settings = settings | {name: str(value) for name, value in own.items() if value is not None}
        return settings

    @property
    def traffic(self) -> Live | None:
        return self.workload.traffic if isinstance(self.workload, StreamingWorkload) else None

    @property
    def run_limit_s(self) -> float:
        """For one run of one engine: the traffic takes its own time."""
        runs = MOST_PROBES if self.find_rate else 1
        return self.time_limit_s + (self.traffic.total_seconds * runs if self.traffic else 0)


class EngineRun(msgspec.Struct, frozen=True):
    """One engine's run and the digest of its output, None when it failed."""

    engine: str
    measured: Measured
    digest: str | None


class Comparison(msgspec.Struct, frozen=True):
    """All runs, in the order in which they ran, under the settings that they shared."""

    plan: Plan
    batches: int
    """Without those that fill the state or close what is open."""
    settings: dict[str, str]
    runs: tuple[EngineRun, ...]
    difference: str | None
    """The first rows in which two engines with state differ."""
    filling_batches: int = 0


class Watcher(Protocol):
    """Hears how a comparison goes."""

    def preparing(self) -> None: ...
    def prepared(self, runs: int, prepared: Prepared) -> None: ...
    def started(self, engine: str) -> None: ...
    def batches_done(self, batches: int) -> None: ...
    def noted(self, text: str) -> None: ...
    def ended(self, run: EngineRun) -> None: ...


def compare(plan: Plan, watcher: Watcher, run_job: Callable[..., Measured] = run) -> Comparison:
    """Repeats are interleaved (A B A B), so that a slow minute of the machine meets all engines."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
        data = Path(scratch, "data")
        watcher.preparing()
        prepared = plan.workload.prepare(data)
        watcher.prepared(plan.repeat * len(plan.engines), prepared)
        cores = len(os.sched_getaffinity(0))
        shared = (
            session_settings(cores, plan.partitions) if isinstance(plan.workload, StreamingWorkload) else {}
        )
        latency_ms = LATENCIES_MS[plan.state_latency] if plan.state_latency else 0.0
        if latency_ms:
            classes = Path(scratch, "classes")
            classes.mkdir()
            shared |= slow_settings(latency_ms, compiled(classes))
        results = _Results(plan.workload)
        runs: list[EngineRun] = []
        for attempt in range(plan.repeat):
            for engine in _floor_after_its_model(plan.engines):
                watcher.started(engine)
                directory = Path(scratch, f"{engine}-{attempt}")
                directory.mkdir()
                local = {"spark.local.dir": str(directory / "local")}
                settings = shared | local | plan.settings_of(engine)
                job = Job(
                    plan.workload,
                    engine,
                    str(data),
                    str(directory),
                    settings,
                    plan.rehearsal_batches,
                    shards=plan.shards,
                    state_latency_ms=latency_ms,
                    find_rate=plan.find_rate,
                )
                measured = run_job(job, plan.run_limit_s, watcher.batches_done, watcher.noted)
                if plan.traffic is None:
                    measured = _checked(measured, len(prepared.batches))
                compared = measured.outcome.error is None and not plan.find_rate
                found = results.add(engine, job.output) if compared else None
                if (
                    found is not None
                    and FLOOR in plan.engines
                    and engine in KEEPS_BATCHES
                    and not has_outputs(data)
                ):
                    if plan.traffic is None:
                        keep_outputs(data, job.output)
                    else:
                        keep_live_outputs(
                            data, job.output, [batch.rows for batch in measured.outcome.batches]
                        )
                runs.append(EngineRun(engine, measured, found))
                watcher.ended(runs[-1])
                shutil.rmtree(directory, ignore_errors=True)
        filling = prepared.filling_batches
        batches = len(prepared.batches) - prepared.closing_batches - filling
        return Comparison(plan, batches, shared, tuple(runs), results.difference, filling)


def _floor_after_its_model(engines: tuple[str, ...]) -> list[str]:
    """The floor sends back what another engine put out, so one whose output is known by batch runs before it."""
    order = [engine for engine in engines if engine != FLOOR]
    if FLOOR in engines:
        first = next((place for place, engine in enumerate(order) if engine in KEEPS_BATCHES), len(order) - 1)
        order.insert(first + 1, FLOOR)
    return order


def _checked(measured: Measured, batches: int) -> Measured:
    if measured.outcome.error is None and len(measured.outcome.batches) != batches:
        error = f"{len(measured.outcome.batches)} batches ran instead of {batches}"
        return msgspec.structs.replace(measured, outcome=Outcome(error=error))
    return measured


class _Results:
    """Digests of outputs, and the rows of the first engine with state for the others to be held against."""

    def __init__(self, workload: Workload) -> None:
        self._keys = workload.key_columns
        self._complete = isinstance(workload, StreamingWorkload) and workload.mode == "complete"
        self._reference: tuple[str, str, pa.Table] | None = None
        self.difference: str | None = None

    def add(self, engine: str, output: Path) -> str:
        rows = last_rows(output, self._keys, only_last_batch=self._complete, ended_by=CLOSED_BY)
        found = digest(rows)
        if engine == FLOOR:
            return found
        if self._reference is None:
            self._reference = (engine, found, rows)
            return found
        other, expected, expected_rows = self._reference
        if found != expected and self.difference is None:
            first = differences(expected_rows, rows, self._keys)
            self.difference = f"left {other}, right {engine}:\n{first.to_pandas().to_string(index=False)}"
        return found
