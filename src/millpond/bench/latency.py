"""Figures of runs under live traffic: which batches count, and how long events waited.

A batch counts when the first batches and the warm-up of the traffic are over (for windows: one has passed), and,
where memory is bounded and the engine tells the size of its state, from the moment when the state has outgrown that
memory. Where that never happens, the figures count without it and say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from millpond.bench.figures import PERCENTILES, medians, percentiles
from millpond.bench.job import BatchTime, Outcome
from millpond.bench.live import Live
from millpond.bench.rates import max_rate
from millpond.bench.repeats import speeds
from millpond.bench.state_reads import ahead_ratio, hit_ratio

__all__ = [
    "Counting",
    "delay_percentiles",
    "live_figures",
    "search_entry",
    "state_figures",
]

CDF_SHARES = (*(number / 200 for number in range(1, 199)), 0.995, 0.999, 1.0)


class Counting(NamedTuple):
    """Which batches of a run count."""

    warmup_batches: int
    live: Live
    memory_bytes: int | None = None

    def of(self, batches: Sequence[BatchTime]) -> list[BatchTime]:
        """Traffic in steady state. Batches that only close windows bring none."""
        steady = [
            (number, batch)
            for number, batch in enumerate(batches)
            if number >= self.warmup_batches
            and batch.arrivals is not None
            and batch.arrivals.delays
            and batch.arrivals.started_s >= self.live.warmup_seconds
        ]
        outgrown = self.outgrown_from(batches)
        if outgrown is not None and any(number >= outgrown for number, _ in steady):
            return [batch for number, batch in steady if number >= outgrown]
        return [batch for _, batch in steady]

    def outgrown_from(self, batches: Sequence[BatchTime]) -> int | None:
        """The first batch after which the state was larger than the memory; None: never, or nobody says."""
        if self.memory_bytes is None:
            return None
        for number, batch in enumerate(batches):
            if batch.state is not None and (batch.state.state_bytes or 0) > self.memory_bytes:
                return number
        return None


def delay_percentiles(batches: Sequence[BatchTime]) -> dict[str, float] | None:
    """Over events: as for batches, always a delay that some event had."""
    ordered = _ordered_delays(batches)
    return (
        None
        if not ordered
        else dict(zip(PERCENTILES, _quantiles(ordered, PERCENTILES.values()), strict=True))
    )


def _ordered_delays(batches: Sequence[BatchTime]) -> list[tuple[float, int]]:
    return sorted(delay for batch in batches if batch.arrivals for delay in batch.arrivals.delays)


def _quantiles(ordered: Sequence[tuple[float, int]], shares: Any) -> list[float]:
    """For ascending shares."""
    total = sum(rows for _, rows in ordered)
    found: list[float] = []
    at, seen = -1, 0
    for share in shares:
        while seen < max(math.ceil(share * total - 1e-9), 1):
            at += 1
            seen += ordered[at][1]
        found.append(ordered[at][0])
    return found


def live_figures(traces: Sequence[Sequence[BatchTime]], counting: Counting) -> dict[str, Any]:
    """Of one engine's repeats. `rows_per_s`: what was done of the traffic while it was measured."""
    runs = [counting.of(trace) for trace in traces]
    batches = [batch for run in runs for batch in run]
    outgrown = all(counting.outgrown_from(trace) is not None for trace in traces)
    return {
        **speeds(runs, partial(_span_ms, live=counting.live)),
        "delay_ms": medians([delay_percentiles(run) or {} for run in runs]),
        "delay_cdf": {"share": list(CDF_SHARES), "ms": _quantiles(_ordered_delays(batches), CDF_SHARES)},
        "trace_s": [batch.arrivals.started_s for batch in traces[-1] if batch.arrivals],
        "counted_batches": len(batches),
        "state_outgrew_memory": None if counting.memory_bytes is None else outgrown,
    }


def search_entry(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The highest rate of the middle repeat, and the short runs of the last one."""
    rates = [max_rate(outcome.probes) for outcome in outcomes]
    found = sorted(rate for rate in rates if rate is not None)
    return {
        "max_rate": found[len(found) // 2] if found else None,
        "probes": [msgspec.to_builtins(probe) for probe in outcomes[-1].probes],
    }


def _span_ms(batches: Sequence[BatchTime], live: Live) -> float:
    """From the trigger of the first batch to that of the one after the last."""
    starts = [batch.arrivals.started_s for batch in batches if batch.arrivals]
    return (starts[-1] - starts[0]) * 1_000 + max(batches[-1].ms, live.trigger_seconds * 1_000)


def state_figures(batches: Sequence[BatchTime], memory_bytes: int | None = None) -> dict[str, Any]:
    """How large the state became, also beside the memory given, how it was read and, on slow storage, what batches
    waited for it."""
    found: dict[str, Any] = {}
    states = [batch.state for batch in batches if batch.state]
    for name in ("state_bytes", "file_bytes"):
        sizes = [getattr(state, name) for state in states if getattr(state, name) is not None]
        if sizes:
            found[f"largest_{name}"] = max(sizes)
    if memory_bytes is not None:
        largest = found.get("largest_state_bytes")
        found["state_to_memory"] = None if largest is None else round(largest / memory_bytes, 3)
    ahead = ahead_ratio(states)
    if ahead is not None:
        found["read_ahead_hit_ratio"] = ahead
    ratio = hit_ratio(states)
    if ratio is not None:
        found["read_hit_ratio"] = ratio
    waits = [state.wait_ms for state in states if state.wait_ms is not None]
    if waits:
        found["state_wait_ms"] = percentiles(waits)
    return found
