"""The generator's benchmark, small: its figures are there and all ways of reading give the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_report_has_a_rate_for_kernel_source_and_parquet(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("millpond")), "bench", "generator"]
    figures = tmp_path / "generator.json"
    arguments = ["--events", "30000", "--repeat", "3", "--json", str(figures)]
    subprocess.run([*command, *arguments], check=True, timeout=300)
    (entry,) = json.loads(figures.read_text())["runs"]
    assert entry["workload"] == "generator"
    assert entry["params"]["events"] == 30_000
    assert entry["results_equal"] is True
    engines = entry["engines"]
    assert engines.keys() == {"kernel", "source", "parquet", "plain-parquet"}
    assert engines["kernel"]["cores"] == 1
    for measured in engines.values():
        assert measured["rows_per_s"] == round(30_000 / (measured["run_ms"]["p50"] / 1_000), 1)
