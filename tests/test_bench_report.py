"""The report has one shape, merges repeats, and says what failed."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from millpond.bench import plots, report
from millpond.bench.compare import Comparison, EngineRun, Plan
from millpond.bench.job import Arrivals, BatchTime, Outcome, Probe, StateReads
from millpond.bench.keyed import Keyed
from millpond.bench.live import Live
from millpond.bench.machine import invocation, versions
from millpond.bench.papers import Paper
from millpond.bench.runner import Measured
from millpond.bench.tables import print_run

PROGRAMS = {"python", "pyspark", "pyarrow", "java", "millpond", "git_commit"}
WORKLOAD = Keyed(rows=400, keys=10, batch_rows=100)


def ran(
    engine: str, times_ms: list[float], digest: str = "d", cpu_s: float = 1.0, memory: int = 10
) -> EngineRun:
    batches = tuple(BatchTime(100, ms, {}) for ms in times_ms)
    return EngineRun(engine, Measured(Outcome(batches, 7, 70), cpu_s, memory), digest)


def failed(engine: str, error: str) -> EngineRun:
    return EngineRun(engine, Measured(Outcome(error=error), 0.0, 0), None)


def entry(*runs: EngineRun, warmup: int = 1, repeat: int = 1) -> dict[str, Any]:
    plan = Plan(
        workload=WORKLOAD,
        engines=tuple(dict.fromkeys(run.engine for run in runs)),
        repeat=repeat,
        warmup_batches=warmup,
        time_limit_s=60,
    )
    return report.run_entry(Comparison(plan, 4, {"spark.master": "local[2]"}, runs, None))


def test_batches_that_fill_the_state_are_not_in_the_figures() -> None:
    run = ran("millpond", [900, 900, 9, 1, 2, 3])
    plan = Plan(workload=WORKLOAD, engines=("millpond",), repeat=1, warmup_batches=1, time_limit_s=60)
    found = report.run_entry(Comparison(plan, 4, {}, (run,), None, filling_batches=2))
    assert engines(found)["millpond"]["batch_ms"]["max"] == 3
    assert engines(found)["millpond"]["trace_ms"] == [9, 1, 2, 3]
    assert found["params"]["filling_batches"] == 2


def engines(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    value = found["engines"]
    assert isinstance(value, dict)
    return value


def test_the_file_has_the_shape_that_readers_rely_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    run = entry(
        ran("millpond", [9, 1, 2, 3]), ran("spark-rocksdb", [9, 4, 5, 6]), ran("passthrough", [9, 1, 1, 1])
    )
    asked = invocation(["bench", "q5 q8"], datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    report.write(path, report.report(run, invocation=asked))
    found = json.loads(path.read_text())
    assert found.keys() == {"command", "date", "runs", "machine", "versions"}
    assert found["command"] == "millpond bench 'q5 q8'"
    assert found["date"] == "2026-01-02T03:04:05+00:00"
    assert found["runs"][0].keys() == {"workload", "params", "engines", "results_equal"}
    assert found["runs"][0]["workload"] == "keyed"
    assert found["runs"][0]["params"]["settings"] == {"spark.master": "local[2]"}
    assert found["runs"][0]["engines"]["millpond"] == {
        "rows_per_s": 50_000.0,
        "batch_ms": {"p50": 2.0, "p95": 3.0, "p99": 3.0, "p999": 3.0, "max": 3.0},
        "runs": [{"rows_per_s": 50_000.0, "p50": 2.0, "p95": 3.0, "cpu_s": 1.0}],
        "counted_ms": [1.0, 2.0, 3.0],
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
    assert found["versions"].keys() == PROGRAMS


def test_peers_have_their_versions_where_they_took_part() -> None:
    assert versions({"millpond", "rocksdb", "lmdb"}).keys() == PROGRAMS | {"rocksdict", "lmdb"}
    assert versions({"flink-hashmap", "spark-rocksdb"}).keys() == PROGRAMS | {"flink"}


def test_without_the_floor_nothing_is_said_about_it() -> None:
    assert "above_floor_ms" not in engines(entry(ran("millpond", [1, 1, 1, 1])))["millpond"]


def repeated() -> dict[str, Any]:
    return entry(
        ran("millpond", [900, 1, 1, 1], cpu_s=1, memory=10),
        ran("millpond", [900, 10, 10, 20], cpu_s=3, memory=30),
        ran("millpond", [900, 2, 2, 2], cpu_s=2, memory=20),
        repeat=3,
    )


def test_repeats_are_told_by_the_middle_one_and_each() -> None:
    figures = engines(repeated())["millpond"]
    assert figures["rows_per_s"] == 50_000.0
    assert set(figures["batch_ms"].values()) == {2.0}
    assert (figures["cpu_s"], figures["peak_memory_bytes"]) == (2, 30)
    assert figures["runs"] == [
        {"rows_per_s": 100_000.0, "p50": 1, "p95": 1, "cpu_s": 1},
        {"rows_per_s": 7_500.0, "p50": 10, "p95": 20, "cpu_s": 3},
        {"rows_per_s": 50_000.0, "p50": 2, "p95": 2, "cpu_s": 2},
    ]


def test_the_spread_of_repeats_is_shown_where_there_are_some() -> None:
    assert "7,500-100,000" in printed(repeated())
    assert "of runs" not in printed(entry(ran("millpond", [900, 1, 1, 1])))


def test_no_digit_is_lost_on_a_narrow_console() -> None:
    console = Console(file=io.StringIO(), width=60)
    print_run(console, repeated())
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_distribution_is_of_the_batches_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {}
    monkeypatch.setattr(plots, "_shares", lambda curves, *_: drawn.update(curves))
    plots.distribution(engines(entry(ran("millpond", [900, 3, 1, 2]))), tmp_path / "none.png")
    assert drawn == {"millpond": ([1, 2, 3], [1 / 3, 2 / 3, 1.0])}


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


LIVE = Live(rate=1_000, seconds=4, trigger_seconds=1)
PAPER = Paper(query_name="q12", size="small", live=LIVE)


def live_comparison(*runs: EngineRun, find_rate: bool = False) -> dict[str, Any]:
    plan = Plan(
        workload=PAPER,
        engines=tuple(dict.fromkeys(run.engine for run in runs)),
        repeat=1,
        warmup_batches=1,
        time_limit_s=60,
        find_rate=find_rate,
    )
    return report.run_entry(Comparison(plan, 20, {}, runs, None))


def ran_live(engine: str, digest: str) -> EngineRun:
    batches = tuple(
        BatchTime(
            1_000,
            200.0,
            {},
            state=StateReads(reads=4, from_memory=3, wait_ms=7.0),
            arrivals=Arrivals(started_s=float(at), delays=((300.0, 1_000),)),
        )
        for at in range(4)
    )
    return EngineRun(engine, Measured(Outcome(batches, 7, 70), 1.0, 10), digest)


def printed(found: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_run(console, found)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_live_traffic_is_told_by_batch_times_and_delays() -> None:
    found = live_comparison(ran_live("millpond", "x"), ran_live("spark-memory", "x"))
    figures = found["engines"]["millpond"]
    assert figures["batch_ms"]["p999"] == 200.0
    assert figures["delay_ms"]["p999"] == 300.0
    assert figures["rows_per_s"] == 1_000.0
    assert (figures["state_wait_ms"]["p50"], figures["read_hit_ratio"]) == (7.0, 0.75)
    assert found["results_equal"] is True
    assert found["params"]["live"]["rate"] == 1_000
    assert "events" not in found["params"], "what is about full speed alone is no parameter here"
    text = printed(json.loads(msgspec.json.encode(found)))
    assert "1,000 events/s, trigger 1 s; results equal: yes" in text
    assert "75.0%" in text


def test_waiting_for_storage_is_told_at_full_speed_too() -> None:
    batches = tuple(
        BatchTime(100, 5.0, {}, state=StateReads(reads=4, from_memory=3, wait_ms=7.0)) for _ in range(4)
    )
    run = EngineRun("millpond", Measured(Outcome(batches, 7, 70), 1.0, 10), "d")
    found = entry(run)
    assert "waited 7 ms a batch for storage (p95 7), all threads; 75.0% of reads from memory" in printed(
        found
    )


def outgrown(state_bytes: int | None, engine: str = "millpond") -> dict[str, Any]:
    batches = tuple(BatchTime(100, 5.0, {}, state=StateReads(state_bytes=state_bytes)) for _ in range(4))
    plan = Plan(
        workload=WORKLOAD,
        engines=(engine,),
        repeat=1,
        warmup_batches=1,
        time_limit_s=60,
        memory_bytes=100,
    )
    run = EngineRun(engine, Measured(Outcome(batches, 7, 70), 1.0, 10), "d")
    return report.run_entry(Comparison(plan, 4, {}, (run,), None))


@pytest.mark.parametrize(
    ("state_bytes", "ratio", "said"),
    [
        (450, 4.5, "4.5 × the memory given"),
        (50, 0.5, "the state did not outgrow the memory given (0.50 of it)"),
        (None, None, "does not tell whether the state outgrew the memory given"),
    ],
)
def test_state_is_held_against_the_memory_given(
    state_bytes: int | None, ratio: float | None, said: str
) -> None:
    found = outgrown(state_bytes)
    assert engines(found)["millpond"]["state_to_memory"] == ratio
    assert said in printed(found)


def test_the_floor_has_no_state_to_hold_against_memory() -> None:
    assert "state_to_memory" not in engines(outgrown(None, "passthrough"))["passthrough"]


def test_traffic_that_ends_before_its_warm_up_is_an_error_that_says_what_to_do() -> None:
    few = ran_live("millpond", "x")
    outcome = Outcome(few.measured.outcome.batches[:1], 7, 70)
    found = live_comparison(EngineRun("millpond", Measured(outcome, 1.0, 10), "x"))
    assert "more --seconds" in found["engines"]["millpond"]["error"]


def test_the_highest_rate_is_told_with_its_tries() -> None:
    probes = (
        Probe(rate=8_000, sustained=True, delay_p95_ms=900.0),
        Probe(rate=16_000, sustained=False, delay_p95_ms=None),
    )
    searched = EngineRun("millpond", Measured(Outcome(probes=probes), 1.0, 10), None)
    found = live_comparison(searched, failed("spark-memory", "no memory"), find_rate=True)
    assert found["engines"]["millpond"]["max_rate"] == 8_000
    assert [probe["rate"] for probe in found["engines"]["millpond"]["probes"]] == [8_000, 16_000]
    assert found["results_equal"] is None
    text = printed(json.loads(msgspec.json.encode(found)))
    assert "highest rate" in text
    assert "8,000" in text
    assert "no memory" in text
