"""Runs of one engine as one: what each of them gave, and the middle of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.bench.figures import medians, percentiles, rows_per_s
from millpond.bench.job import BatchTime

__all__ = ["speeds", "spread"]


def speeds(
    runs: Sequence[Sequence[BatchTime]], span_ms: Callable[[Sequence[BatchTime]], float]
) -> dict[str, Any]:
    """From the batches of each run that count; `span_ms` is the time that they took."""
    rates = [rows_per_s(sum(batch.rows for batch in run), span_ms(run)) for run in runs]
    batch_ms = [percentiles([batch.ms for batch in run]) for run in runs]
    return {
        "rows_per_s": round(statistics.median(rates), 1),
        "batch_ms": medians(batch_ms),
        "runs": [
            {"rows_per_s": rate, "p50": times["p50"], "p95": times["p95"]}
            for rate, times in zip(rates, batch_ms, strict=True)
        ],
        "counted_ms": [batch.ms for run in runs for batch in run],
    }


def spread(figures: Mapping[str, Any], figure: str) -> str:
    """The least and the largest of the runs; empty where there is one."""
    found = [each[figure] for each in figures.get("runs", ())]
    return f"{min(found):,.0f}-{max(found):,.0f}" if len(found) > 1 else ""
