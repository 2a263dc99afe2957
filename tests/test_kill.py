"""Driver and state service are killed at steps of the protocol, Spark's Python workers before and after their work,
services and workers also at random moments; what reaches the sink is what an undisturbed run gives."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import Fenced
from millpond.service import process as service_process
from millpond.spark import emit, ingest, ingester
from tests import crashing_service
from tests.crash import DRIVER_STEPS
from tests.kill_queries import SCHEMA, Results, results, start_totals, start_windows, totals, write_input
from tests.streams import read_stream

ROOT = Path(__file__).parent.parent
BATCHES = 12
SEED = 20240101
SECONDS_TO_DIE = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kill") / "source"
    write_input(directory, BATCHES)
    return directory


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("undisturbed")
    run_both(spark, source, root)
    wanted = results(spark, root)
    assert len(wanted) == 1 + BATCHES
    assert sum(wanted["windows"].values()) > 400
    return wanted


def run_both(spark: SparkSession, source: Path, root: Path, **options: Any) -> list[dict[str, Any]]:
    """Both queries to their end, side by side; gives the figures of all batches."""
    queries = [start(spark, source, root, **options) for start in (start_windows, start_totals)]
    for query in queries:
        query.awaitTermination()
    return [
        operator["customMetrics"]
        for query in queries
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    ]


# The driver


# Each costs a start of Spark, so of points that leave the same behind there is one: nothing but staged rows, a
# manifest that no record names, rows in the sink without a record, a record that Spark does not know of.
DRIVER_POINTS = ["after-ingest:3", "after-save:3", "after-sink:3", "after-record:3"]
DRIVER_QUERIES = ("windows", "totals")


@pytest.mark.timeout(1800)
def test_a_killed_driver_goes_on_where_it_was(
    spark: SparkSession, source: Path, undisturbed: Results, tmp_path: Path
) -> None:
    dice = random.Random()  # The points are named where the test fails.
    when, step = dice.choice(["before", "after"]), dice.choice(sorted(DRIVER_STEPS.keys() - {"take"}))
    # At a random one only the Python process is killed, and its JVM has to notice by itself.
    points = [*DRIVER_POINTS, f"alone-{when}-{step}:{dice.randint(1, 3)}"]
    dice.shuffle(points)
    for number, point in enumerate(points):
        # By turns the one and the other query is the one that dies.
        die_at_point(source, tmp_path, point, *(DRIVER_QUERIES if number % 2 else DRIVER_QUERIES[::-1]))
    with driver(source, tmp_path, *DRIVER_QUERIES) as last:
        assert last.process.wait(timeout=300) == 0, last.log()
    assert results(spark, tmp_path) == undisturbed, points


class Driver:
    """A driver program in a session of its own, and everything that it started."""

    def __init__(self, source: Path, root: Path, *queries_and_point: str) -> None:
        self._log = root / "driver.log"
        self.services: list[psutil.Process] = []
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kill_driver", str(source), str(root), *queries_and_point],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("service "):
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.services.append(psutil.Process(int(line.split()[1])))

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def remaining(self) -> list[psutil.Process]:
        """What still runs of its session, Spark's workers included, and of its services."""
        session: list[psutil.Process] = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if pid != self.process.pid and os.getsid(pid) == self.process.pid:
                    session.append(psutil.Process(pid))
        return [*session, *(service for service in self.services if service.is_running())]


@contextlib.contextmanager
def driver(source: Path, root: Path, *queries_and_point: str) -> Iterator[Driver]:
    """Checks afterwards that nothing survives its driver."""
    started = Driver(source, root, *queries_and_point)
    try:
        yield started
        _, alive = psutil.wait_procs(started.remaining(), timeout=SECONDS_TO_DIE)
        assert not alive, f"survived their driver: {[process.cmdline() for process in alive]}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.process.pid, signal.SIGKILL)
        started.process.wait()
        for process in started.remaining():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def die_at_point(source: Path, root: Path, point: str, *queries: str) -> None:
    with driver(source, root, *queries, point) as started:
        code = started.process.wait(timeout=300)
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{started.log()}"


def test_a_second_driver_takes_over(
    spark: SparkSession, source: Path, undisturbed: Results, tmp_path: Path
) -> None:
    in_sink, let_go = threading.Event(), threading.Event()
    seen: dict[str, Counter[Any]] = {}

    def write(frame: DataFrame, batch_id: int) -> None:
        if batch_id == 2:
            in_sink.set()
            let_go.wait(300)
        seen[f"totals {batch_id}"] = Counter(tuple(row) for row in frame.collect())

    older = (
        totals(read_stream(spark, source, SCHEMA))
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "totals-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert in_sink.wait(300)
    with driver(source, tmp_path, *DRIVER_QUERIES) as newer:
        assert newer.process.wait(timeout=300) == 0, newer.log()
    let_go.set()
    with pytest.raises(Fenced, match=r"taken over by .* process \d+.*must stop"):
        older.awaitTermination()
    # The newer one began where the older had committed; what the older put out besides is the same.
    found = results(spark, tmp_path)
    assert found == {name: rows for name, rows in undisturbed.items() if name not in ("totals 0", "totals 1")}
    assert seen == {f"totals {batch}": undisturbed[f"totals {batch}"] for batch in range(3)}


# The state service


SERVICE_POINTS = [
    "before-stage:2",
    "after-stage:2",
    "before-shard:3",
    "after-shard:2",
    "before-pack:2",
    "after-pack:2",
    "before-manifest:2",
    "after-manifest:2",
    "before-told:2",
    "after-told:2",
    "after-open:1",
    "before-merge:1",
    "after-merge:1",
]


def test_a_killed_service_is_replaced(
    spark: SparkSession,
    source: Path,
    undisturbed: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = SERVICE_POINTS.copy()
    random.Random(SEED).shuffle(points)
    monkeypatch.setattr(service_process, "_COMMAND", (sys.executable, "-m", "tests.crashing_service"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plan = tmp_path / "plan"
    monkeypatch.setenv(crashing_service.PLAN, str(plan))
    # One query at a time, because a plan is for one service at a time. Merging early puts merges into the plan.
    options = {"millpond.batch.maxTries": 8, "millpond.compaction.maxRuns": 2}
    for start, mine in ((start_windows, points[::2]), (start_totals, points[1::2])):
        # The first service of each dies before the query has begun.
        plan.write_text("".join(f"{point}\n" for point in ["before-open:1", *mine]))
        query = start(spark, source, tmp_path, **options)
        query.awaitTermination()
        assert plan.read_text() == "", "not every point was reached"
    assert results(spark, tmp_path) == undisturbed


# Spark's Python workers


def dying(make: Callable[..., Any], markers: Path) -> Callable[..., Any]:
    """Makes tasks of which one kills its worker in batches 0, 4, 8... before its work, in 2, 6, 10... after it but
    before its result.

    The inner function travels to the workers by value, so it takes along all that it needs.
    """

    def made(*args: Any) -> Any:
        run = make(*args)
        # Ingest tasks have an order, emit tasks an endpoint before the batch.
        at = args[0].at if len(args) == 1 else args[1]
        marker = str(markers / f"{at.batch}-{make.__name__}")
        place = at.batch % 4

        def task(batches: Any) -> Any:
            import os
            import signal

            def die_once() -> None:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

            if place == 0:
                die_once()
            for rows in run(batches):
                if place == 2:
                    die_once()
                yield rows

        return task

    return made


def test_a_killed_worker_costs_a_try(
    spark: SparkSession,
    source: Path,
    undisturbed: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    monkeypatch.setattr(ingester, "ingest_task", dying(ingest.ingest_task, markers))
    monkeypatch.setattr(emit, "emit_task", dying(ingest.emit_task, markers))
    # Without local rows, outputs are read by tasks as well.
    tries = run_both(spark, source, tmp_path, **{"millpond.emit.localRows": 0})
    died = {marker.name for marker in markers.iterdir()}
    assert {f"{batch}-ingest_task" for batch in range(0, BATCHES, 2)} <= died
    assert {"4-emit_task", "6-emit_task"} <= died
    assert sum(figures["tries"] - 1 for figures in tries) >= len(died)
    assert results(spark, tmp_path) == undisturbed


# Anything, at any time


def test_workers_and_services_killed_at_random_moments(
    spark: SparkSession, source: Path, undisturbed: Results, tmp_path: Path
) -> None:
    dice = random.Random(SEED)
    ended = threading.Event()
    killed: list[str] = []

    def kill() -> None:
        while len(killed) < 12 and not ended.wait(dice.uniform(0.1, 1.5)):
            wanted = dice.choice(["millpond.service", "pyspark.daemon"])
            victims = [
                process for process in psutil.Process().children(recursive=True) if is_victim(process, wanted)
            ]
            if victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    dice.choice(sorted(victims, key=lambda process: process.pid)).kill()
                    killed.append(wanted)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run_both(spark, source, tmp_path, **{"millpond.batch.maxTries": 20, "millpond.emit.localRows": 0})
    finally:
        ended.set()
        killer.join()
    assert set(killed) == {"millpond.service", "pyspark.daemon"}
    assert results(spark, tmp_path) == undisturbed


def is_victim(process: psutil.Process, wanted: str) -> bool:
    """A state service, or a worker: a fork of Spark's `pyspark.daemon`, which itself is left alone."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        if wanted not in process.cmdline():
            return False
        parent = process.parent()
        return wanted == "millpond.service" or (parent is not None and wanted in parent.cmdline())
    return False
