"""What every store has taken in survives a kill of driver, worker and service, as in
`test_kill.py` for aggregates."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millpond.service import process as service_process
from millpond.spark import emit, ingest, ingester
from tests import crashing_service
from tests.kill_queries import Results
from tests.kill_stores import BATCHES, QUERIES, results, start_query, write_input
from tests.test_kill import ROOT, die_at_point, driver, dying

SERVICE_POINTS = {
    "join": ["after-shard:3", "before-pack:2", "after-told:2"],
    "lookback": ["before-shard:4", "after-pack:2", "before-manifest:2"],
    "window-rows": ["after-shard:4", "before-manifest:2", "before-told:2"],
    "session-rows": ["after-shard:4", "before-pack:2", "after-manifest:2", "before-told:2"],
    # Rows are on their way to their store from the second or third batch on.
    "observed-rows": ["after-shard:7", "before-pack:2", "after-manifest:2", "before-told:2"],
    "dedup": ["after-stage:2", "after-shard:3", "after-pack:2", "after-told:2"],
    "group-rows": ["after-shard:3", "before-merge:1", "after-merge:1", "after-told:2"],
    "sessions": ["before-shard:4", "after-pack:2", "before-merge:1", "after-manifest:2"],
    "count-windows": ["after-shard:4", "after-merge:1", "before-manifest:2"],
    "top": ["before-pack:2", "before-merge:2", "after-merge:1", "before-told:2"],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kill") / "source"
    write_input(directory)
    return directory


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("undisturbed")
    run_all(spark, source, root)
    wanted = results(root)
    for name in QUERIES:
        rows = [batch.total() for batch_name, batch in wanted.items() if batch_name.startswith(name)]
        assert len(rows) >= BATCHES  # one without rows may follow
        assert sum(rows) > 40
    return wanted


def run_all(spark: SparkSession, source: Path, root: Path, **options: Any) -> None:
    queries = [start_query(name, spark, source, root, **options) for name in QUERIES]
    for query in queries:
        query.awaitTermination()


@pytest.mark.timeout(900)
def test_a_killed_driver_goes_on_where_it_was(source: Path, undisturbed: Results, tmp_path: Path) -> None:
    # The first kill falls into the look-back, the other one into rows that are on their way to their store.
    for point in (f"after-seal:{BATCHES + 6}", f"after-record:{4 * BATCHES - 6}"):
        die_at_point(source, tmp_path, point, *QUERIES)
    with driver(source, tmp_path, *QUERIES) as last:
        assert last.process.wait(timeout=300) == 0, last.log()
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize("name", QUERIES)
def test_a_killed_service_is_replaced(
    spark: SparkSession,
    source: Path,
    undisturbed: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(service_process, "_COMMAND", (sys.executable, "-m", "tests.crashing_service"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    plan = tmp_path / "plan"
    monkeypatch.setenv(crashing_service.PLAN, str(plan))
    plan.write_text("".join(f"{point}\n" for point in SERVICE_POINTS[name]))
    options = {"millpond.batch.maxTries": 8, "millpond.compaction.maxRuns": 2, "millpond.memory.bytes": "1m"}
    query = start_query(name, spark, source, tmp_path, **options)
    query.awaitTermination()
    assert plan.read_text() == "", "not every point was reached"
    assert results(tmp_path) == of_query(undisturbed, name)
    if name == "observed-rows":
        # A batch that was done before its service died tells nothing.
        moving = [
            operator["customMetrics"]["unmovedRows"] > 0
            for progress in query.recentProgress
            for operator in progress["stateOperators"]
        ]
        assert sum(moving) >= 5, f"not every service died while rows were on their way: {moving}"


def test_a_killed_worker_costs_a_try(
    spark: SparkSession,
    source: Path,
    undisturbed: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = partial(dying, markers=tmp_path / "markers")
    (tmp_path / "markers").mkdir()
    monkeypatch.setattr(ingester, "ingest_task", made(ingest.ingest_task))
    monkeypatch.setattr(emit, "emit_task", made(ingest.emit_task))
    for name in ("join", "session-rows"):
        # One after the other, each with deaths of its own.
        for marker in (tmp_path / "markers").iterdir():
            marker.unlink()
        start_query(name, spark, source, tmp_path, **{"millpond.emit.localRows": 0}).awaitTermination()
        died = {marker.name for marker in (tmp_path / "markers").iterdir()}
        assert {f"{batch}-ingest_task" for batch in range(0, BATCHES, 2)} <= died
    wanted = of_query(undisturbed, "join") | of_query(undisturbed, "session-rows")
    assert results(tmp_path) == wanted


def of_query(found: Results, name: str) -> Results:
    return {batch: rows for batch, rows in found.items() if batch.rpartition(" ")[0] == name}
