"""The page that people read: every run with its table and plots, failures shown as such, sweeps as curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from millpond.bench.page import write_page
from millpond.cli.bench import _bytes, _variations


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
    content = {"runs": list(runs), "machine": {"cores": 2}, "versions": {"pyspark": "4.3.0", "flink": None}}
    file.write_bytes(msgspec.json.encode(content))
    page = write_page([file], tmp_path / "out")
    pictures = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    return page.read_text(), pictures


def test_a_run_has_its_ratios_and_plots(tmp_path: Path) -> None:
    text, pictures = page_of(
        tmp_path, run("q12", {"millpond": 4_000.0, "spark-rocksdb": 1_000.0, "passthrough": 5_000.0})
    )
    assert "| millpond | 4,000 | 4.00 | 0.80 | 10 | 20 | 20 | 3.5 | 1,024 |" in text
    assert "Results equal: yes." in text
    assert "cores 2, pyspark 4.3.0" in text
    assert pictures == {"01-q12-batches.png", "01-q12-cdf.png"}
    assert all(name in text for name in pictures)


def test_an_engine_that_failed_is_shown_with_its_reason(tmp_path: Path) -> None:
    text, _ = page_of(tmp_path, run("q8", {"millpond": None, "spark-rocksdb": 1_000.0}))
    assert "| millpond | failed |" in text
    assert "- millpond failed: InvalidQuery: not yet\n" in text
    assert "Results equal: not compared." in text


def test_a_sweep_is_a_curve(tmp_path: Path) -> None:
    rates = {"millpond": 4_000.0, "spark-rocksdb": 1_000.0}
    text, pictures = page_of(tmp_path, run("q7", rates, window="10"), run("q7", rates, window="60"))
    assert "## q7, window 10" in text
    assert "## q7 over window" in text
    assert {"throughput.png", "sweep-q7-window.png"} <= pictures


def test_a_sweep_names_an_option_and_its_values() -> None:
    assert _variations(None) == [{}]
    assert _variations("window=10, 60") == [{"window": "10"}, {"window": "60"}]
    assert _variations("write-buffer=16m,64m") == [{"write-buffer": "16m"}, {"write-buffer": "64m"}]


@pytest.mark.parametrize("wrong", ["window", "window=", "colour=1,2", "window=10s"])
def test_a_sweep_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(typer.BadParameter):
        _variations(wrong)


def test_sizes_have_units() -> None:
    assert [_bytes(text) for text in (None, "4096", "16k", "256m", "1g")] == [
        None,
        4096,
        16 << 10,
        256 << 20,
        1 << 30,
    ]
    for wrong in ("", "m", "1.5g", "0", "12t"):
        with pytest.raises(typer.BadParameter):
            _bytes(wrong)
