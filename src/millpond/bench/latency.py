"""Figures of runs under live traffic: which batches count, and how long events waited.

A batch counts when the first batches and the warm-up of the traffic are over (for windows: one has passed), and,
where memory is bounded and the engine tells the size of its state, from the moment when the state has outgrown that
memory. Where that never happens, the figures count without it and say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from millpond.bench.figures import PERCENTILES, percentiles
from millpond.bench.job import BatchTime, Outcome
from millpond.bench.live import Live
from millpond.bench.rates import max_rate
from millpond.bench.state_reads import ahead_ratio, hit_ratio

__all__ = [
    "Counting",
    "delay_percentiles",
    "live_figures",
    "print_live_table",
    "search_entry",
    "state_figures",
    "state_words",
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
    """Of one engine, its repeats together. `rows_per_s`: what was done of the traffic while it was measured."""
    runs = [counting.of(trace) for trace in traces]
    batches = [batch for run in runs for batch in run]
    seconds = sum(_span_s(run, counting.live) for run in runs if run)
    outgrown = all(counting.outgrown_from(trace) is not None for trace in traces)
    return {
        "rows_per_s": round(sum(batch.rows for batch in batches) / seconds, 1),
        "batch_ms": percentiles([batch.ms for batch in batches]),
        "delay_ms": delay_percentiles(batches),
        "delay_cdf": {"share": list(CDF_SHARES), "ms": _quantiles(_ordered_delays(batches), CDF_SHARES)},
        "trace_s": [batch.arrivals.started_s for batch in traces[-1] if batch.arrivals],
        "counted_batches": len(batches),
        "counted_ms": [batch.ms for batch in batches],
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


def _span_s(batches: Sequence[BatchTime], live: Live) -> float:
    """From the trigger of the first batch to that of the one after the last."""
    starts = [batch.arrivals.started_s for batch in batches if batch.arrivals]
    return starts[-1] - starts[0] + max(batches[-1].ms / 1_000, live.trigger_seconds)


def state_figures(batches: Sequence[BatchTime]) -> dict[str, Any]:
    """How large the state became, how it was read and, on slow storage, what batches waited for it."""
    found: dict[str, Any] = {}
    states = [batch.state for batch in batches if batch.state]
    for name in ("state_bytes", "file_bytes"):
        sizes = [getattr(state, name) for state in states if getattr(state, name) is not None]
        if sizes:
            found[f"largest_{name}"] = max(sizes)
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


def state_words(engines: Mapping[str, Any]) -> list[str]:
    """What is known about the size of state, reads of it and waiting for it, a line for each engine."""
    found = []
    for name, figures in engines.items():
        said = []
        size, files = figures.get("largest_state_bytes"), figures.get("largest_file_bytes")
        if size:
            said.append(f"up to {size / (1 << 20):,.0f} MiB of state")
        if files and files != size:
            said.append(f"{files / (1 << 20):,.0f} MiB of files")
        waits, ratio = figures.get("state_wait_ms"), figures.get("read_hit_ratio")
        if waits:
            said.append(
                f"waited {waits['p50']:,.0f} ms a batch for storage (p95 {waits['p95']:,.0f}), all threads"
            )
        if ratio is not None:
            said.append(f"{ratio:.1%} of reads from memory")
        if "read_ahead_hit_ratio" in figures:
            said.append(f"{figures['read_ahead_hit_ratio']:.1%} of what was in files read ahead")
        if said:
            found.append(f"{name}: {'; '.join(said)}")
    return found


def print_live_table(console: Console, entry: Mapping[str, Any]) -> None:
    """In place of the table of throughput."""
    params = entry["params"]
    live = params["live"]
    varied = "".join(f", {name} {value}" for name, value in params.get("varied", {}).items())
    searching = params.get("find_rate", False)
    pace = "highest rate" if searching else f"{live['rate']:,} events/s"
    equal = {True: "yes", False: "NO", None: "not compared"}[entry["results_equal"]]
    title = (
        f"{entry['workload']}{varied}: {pace}, trigger {live['trigger_seconds']:g} s; results equal: {equal}"
    )
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column("engine", no_wrap=True)
    headings = (
        ("events/s sustained", "p95 delay ms there")
        if searching
        else (
            "batch p50 ms",
            "p95",
            "p99",
            "p999",
            "delay p50 ms",
            "p95",
            "p99",
            "p999",
            "state wait p95",
            "hits",
        )
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, figures in entry["engines"].items():
        if "error" in figures:
            table.add_row(name, "[red]failed[/]")
        elif searching:
            table.add_row(name, *_search_cells(figures))
        else:
            table.add_row(name, *_latency_cells(figures))
    console.print(table)
    for name, figures in entry["engines"].items():
        if "error" in figures:
            console.print(f"{name}: {figures['error']}", style="red", markup=False)


def _search_cells(figures: Mapping[str, Any]) -> list[str]:
    rate = figures["max_rate"]
    best = next((each for each in figures["probes"] if each["rate"] == rate), None)
    return ["none" if rate is None else f"{rate:,}", f"{best['delay_p95_ms']:,.0f}" if best else ""]


def _latency_cells(figures: Mapping[str, Any]) -> list[str]:
    shown = ("p50", "p95", "p99", "p999")
    cells = [f"{figures[part][name]:,.0f}" for part in ("batch_ms", "delay_ms") for name in shown]
    waits, ratio = figures.get("state_wait_ms"), figures.get("read_hit_ratio")
    cells.append(f"{waits['p95']:,.0f}" if waits else "")
    cells.append(f"{ratio:.3f}" if ratio is not None else "")
    return cells
