"""What is noted at the end of each batch, while a query runs, for what its progress does not tell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from millpond.bench.job import Arrivals, BatchTime, Job, StateReads
from millpond.bench.measure import ProcessTree
from millpond.bench.settings import FLOOR
from millpond.bench.slow_storage import Waits
from millpond.bench.split import millpond_split, phases, spark_split, with_query
from millpond.bench.state_reads import state_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BatchNotes"]


class BatchNotes:
    """CPU time and waiting for slow storage; made before the query starts."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._job = job
        self._waits = Waits(spark, job)
        self._cpu = _CpuOfBatches()

    def note(self, batch_id: int) -> None:
        """The batch has been written."""
        self._waits.note(batch_id)
        self._cpu.note(batch_id)

    def states(self, progress: Sequence[Any]) -> list[StateReads]:
        """How the batches read their state."""
        return state_reads(progress, self._waits.of(progress))

    def batch_time(
        self, report: Any, rows: int, state: StateReads, arrivals: Arrivals | None = None
    ) -> BatchTime:
        """A batch as its progress and the notes tell it."""
        times, cpu = self._splits(report)
        return BatchTime(
            rows=rows,
            ms=float(report.durationMs["triggerExecution"]),
            phases_ms=phases(report.durationMs),
            time_split_ms=times,
            cpu_split_ms=cpu,
            state=state,
            arrivals=arrivals,
        )

    def _splits(self, report: Any) -> tuple[dict[str, float], dict[str, float]]:
        """A batch's time and CPU time by part. Spark's state stores tell times and no CPU times, which are all the
        query's then; the floor has no state to tell of."""
        job = self._job
        total_ms, cpu_ms = float(report.durationMs["triggerExecution"]), self._cpu.ms(report.batchId)
        if job.engine == "millpond":
            times, cpu = millpond_split(report.durationMs)
            return with_query(times, total_ms), with_query(cpu, cpu_ms)
        if job.engine == FLOOR:
            return with_query({}, total_ms), with_query({}, cpu_ms)
        partitions = int(job.settings["spark.sql.shuffle.partitions"])
        cores = len(os.sched_getaffinity(0))
        times = spark_split(report.stateOperators, total_ms, min(partitions, cores))
        return times, with_query({}, cpu_ms)


class _CpuOfBatches:
    """CPU time of this process and all that it started, from one batch's end to the next's. It is read beside the
    batch, because looking through all processes takes milliseconds that would count as the batch's."""

    def __init__(self) -> None:
        self._tree = ProcessTree(os.getpid())
        self._sampler = ThreadPoolExecutor(1, thread_name_prefix="cpu")
        self._seen: dict[int, Future[float]] = {}
        self.note(-1)
        self._seen[-1].result()

    def note(self, batch: int) -> None:
        self._seen[batch] = self._sampler.submit(self._tree.sample_cpu_s)

    def ms(self, batch: int) -> float:
        before = max(number for number in self._seen if number < batch)
        return (self._seen[batch].result() - self._seen[before].result()) * 1_000
