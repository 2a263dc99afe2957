"""The parts of the page that are about live traffic: what was run, tables of delays and of highest rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["is_live", "is_search", "latency_cells", "live_words", "search_rows"]

Run = Mapping[str, Any]
_SHOWN = ("p50", "p95", "p99", "p999")


def is_live(run: Run) -> bool:
    return bool(run["params"].get("live"))


def is_search(run: Run) -> bool:
    return bool(run["params"].get("find_rate"))


def live_words(run: Run) -> str:
    """A sentence or two for whoever was not there."""
    live = run["params"]["live"]
    traffic = "drawn from a normal distribution each second" if live["normal"] else "the same each second"
    if is_search(run):
        said = f"Each engine's highest rate without a growing backlog, from tries of {live['seconds']:g} s"
    else:
        said = f"{live['rate']:,} events a second, {traffic}, for {live['seconds']:g} s that count"
    said += f"; a batch every {live['trigger_seconds']:g} s."
    if live["warmup_seconds"]:
        said += f" Before them, {live['warmup_seconds']:g} s fill the windows."
    latency = run["params"].get("state_latency")
    if latency:
        said += f" Each request to checkpoint and state storage takes as long as one to {_PLACES[latency]}."
    small = [name for name, each in run["engines"].items() if each.get("state_outgrew_memory") is False]
    if small:
        said += f" The state did not outgrow the memory of {', '.join(small)}, or they don't tell."
    return said


_PLACES = {"hdfs": "HDFS (1.5 ms)", "object-store": "an object store (23 ms)"}


def latency_cells(engines: Mapping[str, Any]) -> list[list[str]]:
    """Headings, then a row for each engine."""
    waits = any("state_wait_ms" in each for each in engines.values())
    headings = ["engine", *(f"batch {name} ms" for name in _SHOWN), *(f"delay {name} ms" for name in _SHOWN)]
    rows = [[*headings, *(["state wait p95 ms"] if waits else []), "reads from memory", "CPU s", "peak MiB"]]
    for name, figures in engines.items():
        if "delay_ms" not in figures:
            rows.append([name, "failed", *[""] * (len(rows[0]) - 2)])
            continue
        cells = [f"{figures[part][share]:,.0f}" for part in ("batch_ms", "delay_ms") for share in _SHOWN]
        if waits:
            cells.append(f"{figures['state_wait_ms']['p95']:,.0f}" if "state_wait_ms" in figures else "")
        ratio = figures.get("read_hit_ratio")
        cells.append("" if ratio is None else f"{ratio:.1%}")
        rows.append(
            [name, *cells, f"{figures['cpu_s']:,.1f}", f"{figures['peak_memory_bytes'] / (1 << 20):,.0f}"]
        )
    return rows


def search_rows(engines: Mapping[str, Any]) -> list[list[str]]:
    rows = [["engine", "highest rate, events/s", "delay p95 there, ms", "rates tried"]]
    for name, figures in engines.items():
        if "probes" not in figures:
            rows.append([name, "failed", "", ""])
            continue
        rate = figures["max_rate"]
        best = next((each for each in figures["probes"] if each["rate"] == rate), None)
        delay = f"{best['delay_p95_ms']:,.0f}" if best else ""
        rows.append([name, "none" if rate is None else f"{rate:,}", delay, _tried(figures["probes"])])
    return rows


def _tried(probes: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(probes, key=lambda each: each["rate"])
    return ", ".join(f"{each['rate']:,} {'✓' if each['sustained'] else '✗'}" for each in ordered)
