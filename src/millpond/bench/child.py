"""The process that runs one engine once: `python -m millpond.bench.child JOB.json`."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millpond.bench.flink.settings import FLINK_ENGINES
from millpond.bench.job import Job, Outcome, write_outcome
from millpond.bench.kernel import KernelMerge
from millpond.bench.papers import Paper
from millpond.bench.settings import FLOOR
from millpond.bench.trace import TraceReplay
from millpond.bench.workload import StreamingWorkload, load
from millpond.errors import InvalidQuery

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
                outcome = _run_spark(spark, job, streaming)
    except InvalidQuery as error:
        outcome = Outcome(error=f"not supported: {error}")
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
    write_outcome(job, outcome)
    # Only now: a state store that hangs while it closes must not cost the figures.
    if spark is not None:
        spark.stop()


def _run_spark(spark: SparkSession, job: Job, workload: StreamingWorkload) -> Outcome:
    from millpond.bench.engines import rehearse
    from millpond.bench.live_run import run_live
    from millpond.bench.rate_search import find_rate

    if job.find_rate and job.engine == FLOOR:
        return Outcome(error="not supported: the floor sends back what an engine put out at one rate")
    rehearse(spark, job, workload)
    if job.find_rate and isinstance(workload, Paper):
        return find_rate(spark, job, workload)
    if workload.traffic is not None:
        return run_live(spark, job, workload, workload.traffic) or Outcome(error="the run was given up")
    return _run(spark, job, workload)


def _run_flink(job: Job, workload: StreamingWorkload) -> Outcome:
    from millpond.bench.flink.run import run_flink

    if workload.traffic is not None or job.state_latency_ms:
        return Outcome(error="not supported: Flink runs at full speed and on local storage here")
    if workload.in_lines:
        return Outcome(error="not supported: Flink reads columns here, not JSON lines")
    query = workload.flink_query()
    if query is None:
        return Outcome(error=f"not supported: {workload.name} is not written in Flink's SQL")
    return run_flink(query, workload.streams, job)


def _session(job: Job) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"millpond bench {job.engine}")
    for name, value in job.settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run(spark: SparkSession, job: Job, workload: StreamingWorkload) -> Outcome:
    from millpond.bench.batch_notes import BatchNotes
    from millpond.bench.engines import running
    from millpond.bench.state_reads import state_totals

    expected = load(Path(job.data)).batches
    notes = BatchNotes(spark, job)
    with running(spark, job, workload, after_batch=notes.note) as query:
        query.awaitTermination()
        progress = {report.batchId: report for report in query.recentProgress if report.numInputRows > 0}
    missing = set(range(len(expected))) - progress.keys()
    if missing:
        return Outcome(error=f"no progress for batches {sorted(missing)[:5]} of {len(expected)}")
    reports = [progress[number] for number in range(len(expected))]
    states = notes.states(reports)
    batches = tuple(
        # Spark counts a row once per evaluation of the batch, so the file's own count is taken.
        notes.batch_time(report, batch.rows, state)
        for report, batch, state in zip(reports, expected, states, strict=True)
    )
    state_rows, state_bytes = state_totals(reports[-1].stateOperators)
    return Outcome(batches=batches, state_rows=state_rows, state_bytes=state_bytes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
