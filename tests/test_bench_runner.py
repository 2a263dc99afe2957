"""A run is watched from outside: its processes are measured, and none of them outlives it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond.bench.compare import EngineRun, Plan, compare
from millpond.bench.job import Job
from millpond.bench.kernel import KernelMerge
from millpond.bench.keyed import Keyed
from millpond.bench.measure import ProcessTree
from millpond.bench.papers import Paper
from millpond.bench.runner import run
from millpond.bench.settings import session_settings
from millpond.bench.workload import Prepared

HOLDING_MIB = 64
# A child that starts a grandchild in a session of its own, which holds memory and burns CPU until it is ended.
GRANDCHILD = f"""
import sys, time
held = bytearray({HOLDING_MIB} << 20)
for at in range(0, len(held), 4096): held[at] = 1
print("ready", flush=True)
while True: pass
"""
CHILD = f"""
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", {GRANDCHILD!r}], start_new_session=True)
inner.wait()
"""


class Quiet:
    def preparing(self) -> None: ...
    def prepared(self, runs: int, prepared: Prepared) -> None: ...
    def started(self, engine: str) -> None: ...
    def batches_done(self, batches: int) -> None: ...
    def noted(self, text: str) -> None: ...
    def ended(self, run: EngineRun) -> None: ...


def test_a_tree_counts_and_kills_a_grandchild_that_left_the_session() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    tree = ProcessTree(child.pid)
    deadline = time.monotonic() + 60
    while tree.cpu_s < 0.2 and time.monotonic() < deadline:
        tree.sample()
    tree.kill()
    child.wait()
    assert tree.cpu_s >= 0.2
    assert tree.peak_memory_bytes > HOLDING_MIB << 20
    # Both held the pipe's other end: it is closed only when both are gone.
    assert child.stdout.read() == ""


def job(directory: Path, engine: str) -> Job:
    data = directory / "data"
    workload = Keyed(rows=200, keys=10, batch_rows=100)
    workload.prepare(data)
    place = directory / "run"
    place.mkdir()
    return Job(workload, engine, str(data), str(place), session_settings(1))


def test_an_engine_that_takes_too_long_is_an_error_with_the_limit_in_it(tmp_path: Path) -> None:
    measured = run(job(tmp_path, "spark-memory"), 0.1, lambda _: None)
    assert measured.outcome.error is not None
    assert "not done after 0 s" in measured.outcome.error


def test_what_an_engine_raises_is_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java here"))
    measured = run(job(tmp_path, "spark-memory"), 120, lambda _: None)
    assert measured.outcome.error is not None
    assert "JAVA_GATEWAY_EXITED" in measured.outcome.error


def test_the_kernel_and_rocksdb_agree() -> None:
    workload = KernelMerge(keys=5_000, batch_rows=1_000, measured_batches=5)
    plan = Plan(
        workload=workload,
        engines=("millpond", "rocksdb"),
        repeat=1,
        warmup_batches=workload.loading_batches,
        time_limit_s=120,
    )
    comparison = compare(plan, Quiet())
    assert [each.measured.outcome.error for each in comparison.runs] == [None, None]
    assert comparison.difference is None
    assert comparison.runs[0].digest == comparison.runs[1].digest
    assert comparison.runs[0].measured.outcome.state_rows == 5_000


def test_engines_agree_on_a_query_of_the_papers() -> None:
    plan = Plan(
        workload=Paper(query_name="q18", size="small", events=1_500, batch_events=500),
        engines=("millpond", "spark-tws"),
        repeat=1,
        warmup_batches=1,
        rehearsal_batches=1,
        time_limit_s=300,
    )
    comparison = compare(plan, Quiet())
    outcomes = [each.measured.outcome for each in comparison.runs]
    assert [outcome.error for outcome in outcomes] == [None] * 2
    assert comparison.difference is None
    assert len({each.digest for each in comparison.runs}) == 1
    # Where RocksDB does not count its rows there is no number.
    assert [bool(outcome.state_rows) for outcome in outcomes] == [True, False]
    for each in comparison.runs:
        assert len(each.measured.outcome.batches) == 3
        assert each.measured.cpu_s > 0
        assert each.measured.peak_memory_bytes > 100 << 20
    splits = [outcome.batches[-1].time_split_ms for outcome in outcomes]
    assert all("state_write" in split for split in splits)
    # Spark's stores tell no CPU time: all of it is the query's.
    assert outcomes[1].batches[-1].cpu_split_ms.keys() == {"query"}


def test_the_floor_takes_the_rows_of_all_streams() -> None:
    plan = Plan(
        workload=Paper(query_name="q8", size="small", events=6_000, batch_events=2_000),
        engines=("spark-memory", "passthrough"),
        repeat=1,
        warmup_batches=1,
        time_limit_s=300,
    )
    comparison = compare(plan, Quiet())
    model, floor = (each.measured.outcome for each in comparison.runs)
    assert (model.error, floor.error) == (None, None)
    assert [batch.rows for batch in floor.batches] == [batch.rows for batch in model.batches]
    assert comparison.runs[0].digest == comparison.runs[1].digest


def test_a_query_that_millpond_refuses_is_not_supported() -> None:
    plan = Plan(
        workload=Paper(query_name="q13", size="small", events=1_500, batch_events=500),
        engines=("millpond",),
        repeat=1,
        warmup_batches=1,
        time_limit_s=300,
    )
    (run,) = compare(plan, Quiet()).runs
    assert run.measured.outcome.error is not None
    assert run.measured.outcome.error.startswith("not supported: ")
