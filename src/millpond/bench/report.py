"""The report: one JSON shape for every benchmark, and a table of it for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from millpond.bench.compare import Comparison, EngineRun, Plan
from millpond.bench.figures import above_floor, means, medians, percentiles, rows_per_s
from millpond.bench.job import BatchTime
from millpond.bench.latency import (
    Counting,
    live_figures,
    print_live_table,
    search_entry,
    state_figures,
    state_words,
)
from millpond.bench.machine import machine, versions
from millpond.bench.settings import BASELINES, FLOOR
from millpond.bench.workload import StreamingWorkload
from millpond.service.spent import PARTS

__all__ = ["print_table", "report", "run_entry", "write"]


def report(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"runs": list(runs), "machine": machine(), "versions": versions()}


def write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def run_entry(comparison: Comparison) -> dict[str, Any]:
    """A comparison as one entry of `runs`, its repeats merged."""
    plan = comparison.plan
    filling = comparison.filling_batches
    measured = slice(filling + plan.warmup_batches, filling + comparison.batches)
    engines = {
        engine: _engine_entry([run for run in comparison.runs if run.engine == engine], measured, plan)
        for engine in plan.engines
    }
    floor = engines.get(FLOOR, {}).get("batch_ms")
    if floor is not None:
        for entry in engines.values():
            if "batch_ms" in entry:
                entry["above_floor_ms"] = above_floor(entry["batch_ms"], floor)
    params = plan.workload.params() | {
        "batches": comparison.batches if plan.traffic is None else None,
        "filling_batches": filling,
        "warmup_batches": plan.warmup_batches,
        "rehearsal_batches": plan.rehearsal_batches,
        "repeat": plan.repeat,
        "time_limit_s": plan.time_limit_s,
        "memory_bytes": plan.memory_bytes,
        "write_buffer_bytes": plan.write_buffer_bytes,
        "partitions": plan.partitions,
        "shards": plan.shards,
        "space_amplification": plan.space_amplification,
        "read_batch_ratio": plan.read_batch_ratio,
        "state_latency": plan.state_latency,
        "find_rate": plan.find_rate,
        "varied": plan.varied,
        "settings": comparison.settings,
        "engine_settings": {engine: plan.settings_of(engine) for engine in plan.engines},
    }
    return {
        "workload": plan.workload.name,
        "params": params,
        "engines": engines,
        "results_equal": _results_equal(comparison),
    }


def _engine_entry(runs: list[EngineRun], measured: slice, plan: Plan) -> dict[str, Any]:
    """Batches of all repeats together; CPU time of the middle one, the largest memory."""
    failed = [run.measured.outcome.error for run in runs if run.measured.outcome.error is not None]
    if failed:
        return {"error": failed[0]}
    if plan.find_rate:
        return search_entry([run.measured.outcome for run in runs])
    traces = [run.measured.outcome.batches for run in runs]
    if plan.traffic is None:
        batches = [batch for trace in traces for batch in trace[measured]]
        batch_ms = [batch.ms for batch in batches]
        speed = {
            "rows_per_s": rows_per_s(sum(batch.rows for batch in batches), sum(batch_ms)),
            "batch_ms": percentiles(batch_ms),
        }
    else:
        counting = Counting(plan.warmup_batches, plan.traffic, plan.memory_bytes)
        batches = [batch for trace in traces for batch in counting.of(trace)]
        if not batches:
            return {
                "error": "no batch was measured: the traffic ends before the warm-up does; more --seconds"
            }
        speed = live_figures(traces, counting)
    last, filling = runs[-1], measured.start - plan.warmup_batches
    return speed | {
        "trace_ms": [batch.ms for batch in last.measured.outcome.batches[filling:]],
        "phases_ms": medians([batch.phases_ms for batch in batches]),
        **_splits(batches),
        "state_rows": last.measured.outcome.state_rows,
        "state_bytes": last.measured.outcome.state_bytes,
        "cpu_s": round(statistics.median(run.measured.cpu_s for run in runs), 2),
        "peak_memory_bytes": max(run.measured.peak_memory_bytes for run in runs),
        "result_digest": last.digest,
        **state_figures(batches),
    }


def _splits(batches: Sequence[BatchTime]) -> dict[str, dict[str, float]]:
    """Means a batch; without what the engine does not tell."""
    splits = {
        "time_split_ms": _in_order(means([batch.time_split_ms for batch in batches])),
        "cpu_split_ms": _in_order(means([batch.cpu_split_ms for batch in batches])),
    }
    return {name: split for name, split in splits.items() if split}


def _in_order(parts: Mapping[str, float]) -> dict[str, float]:
    return {part: parts[part] for part in PARTS if part in parts}


def _results_equal(comparison: Comparison) -> bool | None:
    """Over the engines with state that finished, all their repeats; None when fewer than two did, or when the
    result depends on the clock."""
    workload = comparison.plan.workload
    if isinstance(workload, StreamingWorkload) and not workload.comparable:
        return None
    finished = [run for run in comparison.runs if run.engine != FLOOR and run.digest is not None]
    if len({run.engine for run in finished}) < 2:
        return None
    return len({run.digest for run in finished}) == 1


def print_table(console: Console, entry: Mapping[str, Any]) -> None:
    if entry["params"].get("live"):
        print_live_table(console, entry)
        _print_splits(console, entry["engines"])
        return
    varied = "".join(f", {name} {value}" for name, value in entry["params"].get("varied", {}).items())
    title = f"{entry['workload']}{varied}: results equal: {_said(entry['results_equal'])}"
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column("engine", no_wrap=True)
    speed = ("rows/s", "× rocksdb", "× floor", "p50 ms", "p95 ms", "max ms", "p95 above floor")
    for heading in (*speed, "CPU s", "peak MiB", "state rows"):
        table.add_column(heading, justify="right")
    engines: Mapping[str, Any] = entry["engines"]
    baseline = next((engines[name] for name in BASELINES if name in engines), None)
    for name, figures in engines.items():
        if "error" in figures:
            table.add_row(name, f"[red]{_short(figures['error'])}[/]")
            continue
        batch_ms = figures["batch_ms"]
        above = figures.get("above_floor_ms")
        state_rows = figures["state_rows"]
        table.add_row(
            name,
            f"{figures['rows_per_s']:,.0f}",
            _ratio(figures, baseline),
            _ratio(figures, engines.get(FLOOR)),
            f"{batch_ms['p50']:,.0f}",
            f"{batch_ms['p95']:,.0f}",
            f"{batch_ms['max']:,.0f}",
            "" if above is None else f"{above['p95']:,.0f}",
            f"{figures['cpu_s']:,.1f}",
            f"{figures['peak_memory_bytes'] / (1 << 20):,.0f}",
            "" if state_rows is None else f"{state_rows:,}",
        )
    console.print(table)
    _print_splits(console, engines)
    for line in state_words(engines):
        console.print(line, style="dim", highlight=False)
    for name, figures in engines.items():
        if "error" in figures:
            console.print(f"{name}: {figures['error']}", style="red", markup=False)


def _print_splits(console: Console, engines: Mapping[str, Any]) -> None:
    rows = [
        (name, said, figures[key])
        for name, figures in engines.items()
        for key, said in (("time_split_ms", "time"), ("cpu_split_ms", "CPU"))
        if key in figures
    ]
    if not rows:
        return
    table = Table(title="ms a batch, by part", title_justify="left", box=None, header_style="bold")
    table.add_column("engine", no_wrap=True)
    table.add_column("")
    for part in PARTS:
        table.add_column(part.replace("_", " "), justify="right")
    for name, said, split in rows:
        table.add_row(name, said, *(f"{split[part]:,.1f}" if part in split else "" for part in PARTS))
    console.print(table)


def _short(error: str) -> str:
    """What kind of failure it is, for a cell of a table."""
    if error.startswith("not done after"):
        return "timed out"
    return "not supported" if "not supported:" in error else "failed"


def _ratio(figures: Mapping[str, Any], other: Mapping[str, Any] | None) -> str:
    if other is None or "rows_per_s" not in other:
        return ""
    return f"{figures['rows_per_s'] / other['rows_per_s']:.2f}"


def _said(equal: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not compared"}[equal]
