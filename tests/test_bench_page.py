"""The page that people read: every run with its table and plots, failures shown as such, sweeps as curves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millpond.bench import plots
from millpond.bench.page import write_page
from millpond.bench.sweep_plots import curve, measures, places


def run(workload: str, rates: dict[str, float | None], **varied: str) -> dict[str, Any]:
    engines: dict[str, Any] = {}
    for name, rate in rates.items():
        if rate is None:
            engines[name] = {"error": "InvalidQuery: not yet\nand more"}
            continue
        engines[name] = {
            "rows_per_s": rate,
            "batch_ms": {"p50": 10.0, "p95": 20.0, "p99": 20.0, "p999": 20.0, "max": 20.0},
            "trace_ms": [10.0, 12.0, 20.0],
            "cpu_s": 3.5,
            "peak_memory_bytes": 1 << 30,
        }
    return {
        "workload": workload,
        "params": {"varied": varied},
        "engines": engines,
        "results_equal": None if None in rates.values() else True,
    }


def page_of(tmp_path: Path, *runs: dict[str, Any]) -> tuple[str, set[str]]:
    file = tmp_path / "figures.json"
    content = {
        "command": "millpond bench q12",
        "date": "2026-01-02T03:04:05+00:00",
        "runs": list(runs),
        "machine": {"cores": 2},
        "versions": {"pyspark": "4.3.0", "java": None},
    }
    file.write_bytes(msgspec.json.encode(content))
    page = write_page([file], tmp_path / "out")
    pictures = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    return page.read_text(), pictures


def test_a_run_has_its_ratios_and_plots(tmp_path: Path) -> None:
    text, pictures = page_of(
        tmp_path, run("q12", {"millpond": 4_000.0, "spark-rocksdb": 1_000.0, "passthrough": 5_000.0})
    )
    assert "| millpond | 4,000 | 4.00 | 0.80 | 10 | 20 | 20 | 20 | 3.5 | 1,024 |" in text
    assert "Results equal: yes." in text
    assert "`millpond bench q12`, 2026-01-02T03:04:05+00:00, cores 2, pyspark 4.3.0" in text
    assert pictures == {"throughput.png", "01-q12-batches.png", "01-q12-cdf.png"}
    assert all(name in text for name in pictures)


def test_an_engine_that_failed_is_shown_with_its_reason(tmp_path: Path) -> None:
    text, _ = page_of(tmp_path, run("q8", {"millpond": None, "spark-rocksdb": 1_000.0}))
    assert "| millpond | failed |" in text
    assert "- millpond failed: InvalidQuery: not yet\n" in text
    assert "Results equal: not compared." in text


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ("not done after 600 s (3 batches were written)", "timed out"),
        ("ValueError: not supported: no join", "not supported"),
        ("out of memory", "failed"),
    ],
)
def test_a_failure_has_the_same_word_in_table_list_and_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, word: str
) -> None:
    written: list[str] = []
    monkeypatch.setattr(plots, "write_word", lambda _axes, _at, text, _colour: written.append(text))
    broken = run("q8", {"millpond": None, "spark-rocksdb": 1_000.0})
    broken["engines"]["millpond"] = {"error": error}
    text, _ = page_of(tmp_path, broken)
    assert f"| millpond | {word} |" in text
    assert f"- millpond {word}: {error}\n" in text
    assert written == [word, ""]


def test_what_lies_above_the_floor_has_its_columns(tmp_path: Path) -> None:
    full, live = run("q8", {"millpond": 1_000.0, "passthrough": 5_000.0}), live_run(1_500, 20.0)
    for each in (full, live):
        each["engines"]["millpond"]["above_floor_ms"] = {"p50": 3.0, "p95": 7.0}
    text, _ = page_of(tmp_path, full, live)
    assert text.count("| p50 above floor | p95 above floor |") == 2
    assert text.count("| 3 | 7 |") == 2


def test_an_engines_own_settings_are_on_the_page(tmp_path: Path) -> None:
    tuned = run("q8", {"spark-rocksdb": 1_000.0, "passthrough": 5_000.0})
    tuned["params"]["engine_settings"] = {"spark-rocksdb": {"a": "1", "b": "2"}, "passthrough": {}}
    text, _ = page_of(tmp_path, tuned)
    assert "- spark-rocksdb with a=1, b=2\n" in text
    assert "passthrough with" not in text


def test_the_generator_is_held_against_parquet(tmp_path: Path) -> None:
    made = {"rows_per_s": 2e6, "run_ms": {"p50": 1.0}, "cores": 1}
    measured = {
        "workload": "generator",
        "params": {"events": 10},
        "engines": {"kernel": made, "source": made},
        "results_equal": True,
        "source_to_parquet": 0.91,
        "source_to_plain_parquet": 0.82,
    }
    text, _ = page_of(tmp_path, measured)
    assert "0.91 × the speed of Parquet, 0.82 × that of plain Parquet" in text


def test_a_sweep_is_a_curve(tmp_path: Path) -> None:
    rates = {"millpond": 4_000.0, "spark-rocksdb": 1_000.0}
    text, pictures = page_of(tmp_path, run("q7", rates, window="10"), run("q7", rates, window="60"))
    assert "## q7, window 10" in text
    assert "## q7 over window" in text
    assert {"throughput.png", "sweep-q7-window-throughput.png"} <= pictures


def test_swept_values_stand_where_their_numbers_are() -> None:
    assert places(["16m", "1k", "256"]) == [16 << 20, 1 << 10, 256]
    assert places(["0", "0.02", "1"]) == [0, 0.02, 1]
    assert places(["hdfs", "object-store"]) == [0, 1]


def test_a_value_at_which_an_engine_failed_is_a_gap_in_its_curve(tmp_path: Path) -> None:
    rates = (("16m", None), ("64m", 2_000.0), ("1m", 3_000.0))
    runs = [run("q7", {"spark-memory": rate, "millpond": 4_000.0}, memory=at) for at, rate in rates]
    (throughput,) = measures(runs)
    figures = [each["engines"]["spark-memory"] for each in runs]
    at, sizes = curve(places([value for value, _ in rates]), figures, throughput)
    assert at == [1 << 20, 16 << 20, 64 << 20]
    assert sizes == [3.0, pytest.approx(math.nan, nan_ok=True), 2.0]
    _, pictures = page_of(tmp_path, *runs)
    assert "sweep-q7-memory-throughput.png" in pictures


@pytest.mark.parametrize(
    ("option", "told", "label"),
    [
        ("keys", {"largest_state_bytes": 3 << 20}, "MiB of state, at most"),
        ("window", {"largest_state_bytes": 3 << 20}, "MiB of state, at most"),
        ("memory", {"read_hit_ratio": 0.5}, "share of reads from memory"),
        ("write-buffer", {"largest_file_bytes": 3 << 20}, "MiB of files, at most"),
    ],
)
def test_a_sweep_draws_what_its_option_is_about(option: str, told: dict[str, Any], label: str) -> None:
    swept = run("q7", {"millpond": 4_000.0}, **{option: "10"})
    swept["engines"]["millpond"] |= told
    assert [each.label for each in measures([swept])] == ["thousand rows a second", label]


def live_run(rate: int, p95: float, varied: dict[str, str] | None = None) -> dict[str, Any]:
    shares = {"p50": 10.0, "p95": p95, "p99": 30.0, "p999": 40.0, "max": 50.0}
    figures = {
        "rows_per_s": 900.0,
        "batch_ms": shares,
        "delay_ms": shares,
        "delay_cdf": {"share": [0.5, 1.0], "ms": [10.0, 50.0]},
        "trace_ms": [99.0, 10.0, 20.0],
        "counted_ms": [10.0, 20.0],
        "state_wait_ms": shares,
        "read_hit_ratio": 0.925,
        "state_outgrew_memory": False,
        "cpu_s": 3.5,
        "peak_memory_bytes": 1 << 30,
    }
    live = {"rate": rate, "seconds": 60.0, "warmup_seconds": 14.0, "trigger_seconds": 3.0, "normal": True}
    return {
        "workload": "q5",
        "params": {"varied": varied or {}, "live": live, "state_latency": "hdfs", "find_rate": False},
        "engines": {"millpond": figures, "spark-rocksdb": {"error": "too slow"}},
        "results_equal": None,
    }


def test_live_traffic_has_its_delays_and_says_what_it_was(tmp_path: Path) -> None:
    text, pictures = page_of(tmp_path, live_run(1_500, 20.0))
    assert "1,500 events a second, drawn from a normal distribution each second, for 60 s that count" in text
    assert "a batch every 3 s" in text
    assert "14 s fill the windows" in text
    assert "HDFS (1.5 ms)" in text
    assert "| millpond | 10 | 20 | 30 | 40 | 10 | 20 | 30 | 40 | 20 | 92.5% | 3.5 | 1,024 |" in text
    assert "| spark-rocksdb | failed |" in text
    assert pictures == {"01-q5-batches.png", "01-q5-cdf.png", "01-q5-delay-cdf.png"}


def test_a_sweep_over_the_rate_is_a_curve_of_delays(tmp_path: Path) -> None:
    runs = [live_run(rate, p95, {"rate": str(rate)}) for rate, p95 in ((1_000, 20.0), (2_000, 28.0))]
    (measure,) = measures(runs)
    assert measure.label == "delay, p95, milliseconds"
    assert measure.of(runs[1]["engines"]["millpond"]) == 28.0
    _, pictures = page_of(tmp_path, *runs)
    assert "sweep-q5-rate-delay.png" in pictures
    assert "throughput.png" not in pictures, "traffic at a given rate is no throughput"


def test_the_highest_rates_stand_with_the_rates_that_were_tried(tmp_path: Path) -> None:
    found = live_run(8_000, 20.0)
    found["params"]["find_rate"] = True
    probes = [
        {"rate": 8_000, "sustained": True, "delay_p95_ms": 900.0},
        {"rate": 16_000, "sustained": False, "delay_p95_ms": None},
    ]
    found["engines"] = {"millpond": {"max_rate": 8_000, "probes": probes}, "spark-memory": {"error": "no"}}
    text, pictures = page_of(tmp_path, found)
    assert "| millpond | 8,000 | 900 | 8,000 ✓, 16,000 ✗ |" in text
    assert pictures == {"max-rates.png"}
