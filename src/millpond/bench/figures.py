"""Numbers from batch times: percentiles, rates, and what lies above the floor."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

__all__ = ["PERCENTILES", "above_floor", "means", "medians", "percentiles", "rows_per_s"]

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The smallest value that at least the given share of all is not above: always one that was measured."""
    if not values:
        raise ValueError("no batch was measured: fewer batches than warm-up batches")
    ordered = sorted(values)
    return {name: ordered[max(math.ceil(share * len(ordered)), 1) - 1] for name, share in PERCENTILES.items()}


def above_floor(batch_ms: Mapping[str, float], floor_ms: Mapping[str, float]) -> dict[str, float]:
    return {name: round(batch_ms[name] - floor_ms[name], 3) for name in PERCENTILES}


def medians(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The middle value of each named part over all batches; a batch without it had none of it."""
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: round(statistics.median(each.get(name, 0.0) for each in parts), 3) for name in names}


def means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each named part over all batches: unlike middle values they add up to the mean of the whole, and
    what happens in few batches, such as compaction, shows."""
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: round(statistics.fmean(each.get(name, 0.0) for each in parts), 3) for name in names}


def rows_per_s(rows: int, total_ms: float) -> float:
    return round(rows / (total_ms / 1_000), 1)
