"""Where time and CPU time went: read from progress, added up to the whole, and shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from millpond.bench import plots, report
from millpond.bench.compare import Comparison, EngineRun, Plan
from millpond.bench.figures import means
from millpond.bench.job import BatchTime, Outcome
from millpond.bench.keyed import Keyed
from millpond.bench.page import _split_lines
from millpond.bench.runner import Measured
from millpond.bench.split import millpond_split, phases, spark_split, with_query
from millpond.bench.tables import print_run

DURATIONS = {
    "triggerExecution": 100,
    "millpond.seal": 30,
    "millpond.time.state_write": 20.5,
    "millpond.cpu.state_write": 41.0,
    "millpond.time.query": 79.5,
}


def operator(commit_ms: int, removals_ms: int = 0, **metrics: int) -> Any:
    return SimpleNamespace(commitTimeMs=commit_ms, allRemovalsTimeMs=removals_ms, customMetrics=metrics)


def test_millponds_parts_are_those_of_its_progress() -> None:
    times, cpu = millpond_split(DURATIONS)
    assert times == {"state_write": 20.5, "query": 79.5}
    assert cpu == {"state_write": 41.0}
    assert phases(DURATIONS) == {"triggerExecution": 100.0, "millpond.seal": 30.0}


def test_sparks_parts_are_shared_by_the_tasks_that_run_side_by_side() -> None:
    found = spark_split(
        [
            operator(
                80,
                removals_ms=10,
                rocksdbGetLatency=40,
                rocksdbPutLatency=20,
                rocksdbCommitFileSyncLatencyMs=50,
                rocksdbCommitCompactLatency=10,
                rocksdbWriterStallLatencyMs=2,
            )
        ],
        total_ms=200,
        side_by_side=2,
    )
    assert found == {
        "query": 124.0,
        "state_write": 20.0,
        "state_read": 20.0,
        "removal": 5.0,
        "compaction": 5.0,
        "io_wait": 26.0,
    }


def test_what_a_store_does_not_tell_is_absent() -> None:
    assert spark_split([operator(30)], total_ms=100, side_by_side=1) == {"query": 70.0, "state_write": 30.0}
    assert spark_split([], total_ms=100, side_by_side=1) == {"query": 100.0}


def test_the_parts_are_never_more_than_the_batch() -> None:
    found = spark_split([operator(300, rocksdbGetLatency=100)], total_ms=100, side_by_side=1)
    assert found == {"query": 0.0, "state_write": 75.0, "state_read": 25.0}


def test_the_rest_is_the_querys() -> None:
    assert with_query({"io_wait": 1.0, "encoding": 2.0, "query": 50.0}, 10.0) == {
        "query": 7.0,
        "encoding": 2.0,
        "io_wait": 1.0,
    }


def test_a_mean_shows_what_happens_in_few_batches() -> None:
    assert means([{"query": 10.0}, {"query": 20.0}, {"query": 30.0, "compaction": 9.0}]) == {
        "query": 20.0,
        "compaction": 3.0,
    }


def entry() -> dict[str, Any]:
    split = {"query": 6.0, "state_write": 4.0}
    told = tuple(BatchTime(100, 10.0, {}, split, {"state_write": 3.0}) for _ in range(3))
    silent = tuple(BatchTime(100, 10.0, {}) for _ in range(3))
    runs = (
        EngineRun("millpond", Measured(Outcome(told), 1.0, 10), "d"),
        EngineRun("flink-rocksdb", Measured(Outcome(silent), 1.0, 10), "d"),
        EngineRun(
            "spark-tws", Measured(Outcome(error="not done after 5 s (1 batches were written)"), 1.0, 1), None
        ),
        EngineRun("lmdb", Measured(Outcome(error="ValueError: not supported: no"), 1.0, 1), None),
    )
    plan = Plan(
        workload=Keyed(rows=300, keys=10, batch_rows=100),
        engines=tuple(run.engine for run in runs),
        repeat=1,
        warmup_batches=1,
        time_limit_s=60,
    )
    return report.run_entry(Comparison(plan, 3, {}, runs, None))


def test_the_report_has_both_splits_where_an_engine_tells_them() -> None:
    engines = entry()["engines"]
    assert engines["millpond"]["time_split_ms"] == {"query": 6.0, "state_write": 4.0}
    assert engines["millpond"]["cpu_split_ms"] == {"state_write": 3.0}
    assert not {"time_split_ms", "cpu_split_ms"} & set(engines["flink-rocksdb"])


def test_the_table_says_why_an_engine_has_no_figures(tmp_path: Path) -> None:
    with (tmp_path / "printed").open("w") as file:
        print_run(Console(file=file, width=160), entry())
    text = (tmp_path / "printed").read_text()
    assert "timed out" in text
    assert "not supported" in text
    assert ["millpond", "CPU", "3.0"] in [line.split() for line in text.splitlines()]


def test_the_page_has_the_parts_as_a_table_and_a_plot(tmp_path: Path) -> None:
    lines = _split_lines(entry()["engines"], tmp_path, "split.png")
    assert "| millpond | time | 6.0 |  | 4.0 |  |  |  |  |" in lines
    assert "| millpond | CPU |  |  | 3.0 |  |  |  |  |" in lines
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")
    assert _split_lines({"flink-rocksdb": {"rows_per_s": 1.0}}, tmp_path, "none.png") == []


def test_parts_of_a_bar_begin_where_the_one_before_ends() -> None:
    split = {"query": 5.0, "state_write": 3.0, "io_wait": 1.0}
    assert [plots._before(split, part) for part in split] == [0.0, 5.0, pytest.approx(8.0)]
