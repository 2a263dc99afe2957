"""The report has one shape, merges repeats, and says what failed."""

from __future__ import annotations

import json
from pathlib import Path

from millpond.bench import report
from millpond.bench.compare import Comparison, EngineRun, Plan
from millpond.bench.job import BatchTime, Outcome
from millpond.bench.keyed import Keyed
from millpond.bench.runner import Measured

WORKLOAD = Keyed(rows=400, keys=10, batch_rows=100)


def ran(
    engine: str, times_ms: list[float], digest: str = "d", cpu_s: float = 1.0, memory: int = 10
) -> EngineRun:
    batches = tuple(BatchTime(100, ms, {}) for ms in times_ms)
    return EngineRun(engine, Measured(Outcome(batches, 7, 70), cpu_s, memory), digest)


def failed(engine: str, error: str) -> EngineRun:
    return EngineRun(engine, Measured(Outcome(error=error), 0.0, 0), None)


def entry(*runs: EngineRun, warmup: int = 1, repeat: int = 1) -> dict[str, object]:
    plan = Plan(
        workload=WORKLOAD,
        engines=tuple(dict.fromkeys(run.engine for run in runs)),
        repeat=repeat,
        warmup_batches=warmup,
        time_limit_s=60,
    )
    return report.run_entry(Comparison(plan, 4, {"spark.master": "local[2]"}, runs, None))


def engines(found: dict[str, object]) -> dict[str, dict[str, object]]:
    value = found["engines"]
    assert isinstance(value, dict)
    return value


def test_the_file_has_the_shape_that_readers_rely_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    run = entry(
        ran("millpond", [9, 1, 2, 3]), ran("spark-rocksdb", [9, 4, 5, 6]), ran("passthrough", [9, 1, 1, 1])
    )
    report.write(path, report.report(run))
    found = json.loads(path.read_text())
    assert found.keys() == {"runs", "machine", "versions"}
    assert found["runs"][0].keys() == {"workload", "params", "engines", "results_equal"}
    assert found["runs"][0]["workload"] == "keyed"
    assert found["runs"][0]["params"]["settings"] == {"spark.master": "local[2]"}
    assert found["runs"][0]["engines"]["millpond"] == {
        "rows_per_s": 50_000.0,
        "batch_ms": {"p50": 2.0, "p95": 3.0, "p99": 3.0, "p999": 3.0, "max": 3.0},
        "trace_ms": [9.0, 1.0, 2.0, 3.0],
        "phases_ms": {},
        "state_rows": 7,
        "state_bytes": 70,
        "cpu_s": 1.0,
        "peak_memory_bytes": 10,
        "result_digest": "d",
        "above_floor_ms": {"p50": 1.0, "p95": 2.0, "p99": 2.0, "p999": 2.0, "max": 2.0},
    }
    assert {"cores", "memory_bytes", "cpu", "kernel"} == found["machine"].keys()
    programs = {"python", "pyspark", "pyarrow", "java", "flink", "millpond", "git_commit"}
    assert found["versions"].keys() == programs


def test_without_the_floor_nothing_is_said_about_it() -> None:
    assert "above_floor_ms" not in engines(entry(ran("millpond", [1, 1, 1, 1])))["millpond"]


def test_repeats_are_one_run_of_all_their_measured_batches() -> None:
    found = entry(
        ran("millpond", [900, 1, 1, 1], cpu_s=1, memory=10),
        ran("millpond", [900, 3, 3, 3], cpu_s=3, memory=30),
        ran("millpond", [900, 2, 2, 2], cpu_s=2, memory=20),
        repeat=3,
    )
    figures = engines(found)["millpond"]
    assert figures["rows_per_s"] == 50_000.0
    assert figures["batch_ms"] == {"p50": 2.0, "p95": 3.0, "p99": 3.0, "p999": 3.0, "max": 3.0}
    assert (figures["cpu_s"], figures["peak_memory_bytes"]) == (2, 30)


def test_a_failed_engine_has_its_error_alone() -> None:
    found = entry(failed("spark-memory", "out of memory"), ran("passthrough", [1, 1, 1, 1]))
    assert engines(found)["spark-memory"] == {"error": "out of memory"}


def test_results_are_compared_between_engines_with_state() -> None:
    a, b = ran("millpond", [1, 1, 1, 1], "x"), ran("spark-rocksdb", [1, 1, 1, 1], "x")
    floor = ran("passthrough", [1, 1, 1, 1], "y")
    assert entry(a, b, floor)["results_equal"] is True
    assert entry(a, ran("spark-rocksdb", [1, 1, 1, 1], "z"))["results_equal"] is False
    assert entry(a, floor)["results_equal"] is None
    assert entry(a, failed("spark-rocksdb", "no"))["results_equal"] is None


def test_a_repeat_with_another_result_is_a_difference() -> None:
    runs = (ran("millpond", [1, 1], "x"), ran("spark-rocksdb", [1, 1], "x"), ran("millpond", [1, 1], "y"))
    assert entry(*runs, repeat=2)["results_equal"] is False
