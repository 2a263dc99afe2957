"""The report: one JSON shape for every benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millpond.bench.compare import Comparison, EngineRun, Plan
from millpond.bench.figures import above_floor, means, medians
from millpond.bench.job import BatchTime
from millpond.bench.latency import (
    Counting,
    live_figures,
    search_entry,
    state_figures,
)
from millpond.bench.machine import machine, versions
from millpond.bench.repeats import speeds
from millpond.bench.settings import FLOOR
from millpond.bench.workload import StreamingWorkload
from millpond.service.spent import PARTS

__all__ = ["report", "run_entry", "write"]


def report(*runs: dict[str, Any], invocation: Mapping[str, str]) -> dict[str, Any]:
    engines = {engine for run in runs for engine in run["engines"]}
    return {**invocation, "runs": list(runs), "machine": machine(), "versions": versions(engines)}


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
    """The middle of the repeats, the largest memory; parts of time and what is told of state are of all together."""
    failed = [run.measured.outcome.error for run in runs if run.measured.outcome.error is not None]
    if failed:
        return {"error": failed[0]}
    if plan.find_rate:
        return search_entry([run.measured.outcome for run in runs])
    traces = [run.measured.outcome.batches for run in runs]
    if plan.traffic is None:
        counted: list[Sequence[BatchTime]] = [trace[measured] for trace in traces]
        speed = speeds(counted, _busy_ms)
    else:
        counting = Counting(plan.warmup_batches, plan.traffic, plan.memory_bytes)
        counted = [counting.of(trace) for trace in traces]
        if not all(counted):
            return {
                "error": "no batch was measured: the traffic ends before the warm-up does; more --seconds"
            }
        speed = live_figures(traces, counting)
    batches = [batch for run in counted for batch in run]
    last, filling = runs[-1], measured.start - plan.warmup_batches
    return speed | {
        "runs": [told | {"cpu_s": run.measured.cpu_s} for told, run in zip(speed["runs"], runs, strict=True)],
        "trace_ms": [batch.ms for batch in last.measured.outcome.batches[filling:]],
        "phases_ms": medians([batch.phases_ms for batch in batches]),
        **_splits(batches),
        "state_rows": last.measured.outcome.state_rows,
        "state_bytes": last.measured.outcome.state_bytes,
        "cpu_s": round(statistics.median(run.measured.cpu_s for run in runs), 2),
        "peak_memory_bytes": max(run.measured.peak_memory_bytes for run in runs),
        "result_digest": last.digest,
        **state_figures(batches, None if last.engine == FLOOR else plan.memory_bytes),
    }


def _busy_ms(batches: Sequence[BatchTime]) -> float:
    return sum(batch.ms for batch in batches)


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
