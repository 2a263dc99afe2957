"""Runs one engine in fresh processes, watches them, and ends them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from millpond.bench.job import Job, Outcome
from millpond.bench.measure import ProcessTree

__all__ = ["Measured", "run"]

SAMPLE_EVERY_S = 0.25
SAMPLING_SHARE = 0.03
"""Reading the memory map of a large process takes a while; samples are spaced so as to cost no more."""
EXIT_WITHIN_S = 10.0
LOG_TAIL_LINES = 15


class Measured(msgspec.Struct, frozen=True):
    """One engine's run with what its processes used."""

    outcome: Outcome
    cpu_s: float
    peak_memory_bytes: int


def run(
    job: Job,
    time_limit_s: float,
    on_batches: Callable[[int], None],
    on_note: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Runs to the outcome or the time limit; `on_batches` hears how many batches are done, or files of live traffic
    have arrived, `on_note` what the run has to say."""
    directory = Path(job.directory)
    job_file = directory / "job.json"
    job_file.write_bytes(msgspec.json.encode(job))
    log = directory / "log.txt"
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "millpond.bench.child", str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    tree = ProcessTree(child.pid)
    try:
        in_time = _watch(child, job, tree, time_limit_s, on_batches, on_note)
        outcome = _outcome(job, child, log, None if in_time else time_limit_s)
        measured = Measured(
            outcome=outcome, cpu_s=round(tree.cpu_s, 2), peak_memory_bytes=tree.peak_memory_bytes
        )
        if in_time:
            _await_exit(child)
        return measured
    finally:
        tree.kill()
        child.wait()


def _watch(
    child: subprocess.Popen[bytes],
    job: Job,
    tree: ProcessTree,
    time_limit_s: float,
    on_batches: Callable[[int], None],
    on_note: Callable[[str], None],
) -> bool:
    """Samples until the run is over. False: the time was."""
    deadline = time.monotonic() + time_limit_s
    heard = 0
    while True:
        tree.sample()
        on_batches(_done(job))
        notes = job.notes.read_text().splitlines() if job.notes.exists() else []
        for note in notes[heard:]:
            on_note(note)
        heard = len(notes)
        if job.outcome.exists() or child.poll() is not None:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(max(SAMPLE_EVERY_S, tree.sampling_s / SAMPLING_SHARE))


def _done(job: Job) -> int:
    """Files of live traffic that have arrived, of the newest try where there are several; else batches written."""
    tries = sorted(Path(job.directory).glob("probe-*/traffic"))
    watched = tries[-1] if tries else job.watched
    try:
        return max((sum(1 for _ in stream.iterdir()) for stream in watched.iterdir()), default=0)
    except FileNotFoundError:
        # No live traffic, or a try that is over.
        return _batches_written(job)


def _batches_written(job: Job) -> int:
    return sum(1 for _ in job.output.glob("batch=*"))


def _outcome(job: Job, child: subprocess.Popen[bytes], log: Path, exceeded_s: float | None) -> Outcome:
    if exceeded_s is not None:
        return Outcome(
            error=f"not done after {exceeded_s:.0f} s ({_batches_written(job)} batches were written)"
        )
    if job.outcome.exists():
        return msgspec.json.decode(job.outcome.read_bytes(), type=Outcome)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    return Outcome(
        error=f"the process ended with code {child.returncode} and no outcome; its last lines:\n{tail}"
    )


def _await_exit(child: subprocess.Popen[bytes]) -> None:
    """Spark's RocksDB provider is known to hang at exit: then the process is ended from outside."""
    try:
        child.wait(timeout=EXIT_WITHIN_S)
    except subprocess.TimeoutExpired:
        return
