"""The process that runs one engine once: `python -m millpond.bench.child JOB.json`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.bench.flink.settings import FLINK_ENGINES
from millpond.bench.job import BatchTime, Job, Outcome, write_outcome
from millpond.bench.kernel import KernelMerge
from millpond.bench.measure import ProcessTree
from millpond.bench.settings import FLOOR
from millpond.bench.split import millpond_split, phases, spark_split, with_query
from millpond.bench.trace import TraceReplay
from millpond.bench.workload import StreamingWorkload, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main"]


def main(path: Path) -> None:
    job = msgspec.json.decode(path.read_bytes(), type=Job)
    spark = None
    try:
        match job.workload:
            case KernelMerge():
                from millpond.bench.contenders import run_kernel

                outcome = run_kernel(job.workload, job)
            case TraceReplay():
                from millpond.bench.replay import run_replay

                outcome = run_replay(job.workload, job)
            case streaming if job.engine in FLINK_ENGINES:
                outcome = _run_flink(job, streaming)
            case streaming if job.engine == "spark-tws" and streaming.tws_query() is None:
                outcome = Outcome(
                    error=f"not supported: {streaming.name} is not written with transformWithState"
                )
            case streaming:
                spark = _session(job)
                outcome = _run(spark, job, streaming)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
    write_outcome(job, outcome)
    # Only now: a state store that hangs while it closes must not cost the figures.
    if spark is not None:
        spark.stop()


def _run_flink(job: Job, workload: StreamingWorkload) -> Outcome:
    from millpond.bench.flink.run import run_flink

    query = workload.flink_query()
    if query is None:
        return Outcome(error=f"not supported: {workload.name} is not written in Flink's SQL")
    return run_flink(query, workload.streams[0], job)


def _session(job: Job) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"millpond bench {job.engine}")
    for name, value in job.settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run(spark: SparkSession, job: Job, workload: StreamingWorkload) -> Outcome:
    from millpond.bench.engines import rehearse, running

    rehearse(spark, job, workload)
    expected = load(Path(job.data)).batches
    cpu = _CpuOfBatches()
    with running(spark, job, workload, cpu.note) as query:
        query.awaitTermination()
        progress = {report.batchId: report for report in query.recentProgress if report.numInputRows > 0}
    missing = set(range(len(expected))) - progress.keys()
    if missing:
        return Outcome(error=f"no progress for batches {sorted(missing)[:5]} of {len(expected)}")
    batches = tuple(
        BatchTime(
            # Spark counts a row once per evaluation of the batch, so the file's own count is taken.
            rows=batch.rows,
            ms=float(progress[number].durationMs["triggerExecution"]),
            phases_ms=phases(progress[number].durationMs),
            **_splits(job, progress[number], cpu.ms(number)),
        )
        for number, batch in enumerate(expected)
    )
    state_rows, state_bytes = _state(progress[len(expected) - 1].stateOperators)
    return Outcome(batches=batches, state_rows=state_rows, state_bytes=state_bytes)


class _CpuOfBatches:
    """CPU time of this process and all that it started, from one batch's end to the next's."""

    def __init__(self) -> None:
        self._tree = ProcessTree(os.getpid())
        self._seen = {-1: self._tree.sample_cpu_s()}

    def note(self, batch: int) -> None:
        self._seen[batch] = self._tree.sample_cpu_s()

    def ms(self, batch: int) -> float:
        return (self._seen[batch] - self._seen[batch - 1]) * 1_000


def _splits(job: Job, progress: Any, cpu_ms: float) -> dict[str, dict[str, float]]:
    """Spark's state stores tell times and no CPU times; the floor has no state to tell of."""
    total_ms = float(progress.durationMs["triggerExecution"])
    if job.engine == "millpond":
        times, cpu = millpond_split(progress.durationMs)
        return {"time_split_ms": with_query(times, total_ms), "cpu_split_ms": with_query(cpu, cpu_ms)}
    if job.engine == FLOOR:
        return {"time_split_ms": with_query({}, total_ms), "cpu_split_ms": with_query({}, cpu_ms)}
    partitions = int(job.settings["spark.sql.shuffle.partitions"])
    cores = len(os.sched_getaffinity(0))
    return {"time_split_ms": spark_split(progress.stateOperators, total_ms, min(partitions, cores))}


def _state(operators: list[Any]) -> tuple[int | None, int | None]:
    """State rows and bytes after the last batch; None where the engine does not say."""
    if not operators:
        return None, None
    rows = [operator.numRowsTotal for operator in operators]
    # With row tracking off, Spark's RocksDB provider does not know its rows.
    known = all(count > 0 for count in rows)
    return sum(rows) if known else None, sum(operator.memoryUsedBytes for operator in operators)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
