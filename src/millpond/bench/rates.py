"""Whether an engine keeps up with a rate, and which rate to try next. Decides only; `rate_search` runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from millpond.bench.job import BatchTime, Probe

__all__ = ["EXPECTED_PROBES", "MOST_PROBES", "is_sustained", "max_rate", "next_rate", "too_far_behind"]

CLOSE_ENOUGH = 1.15
"""The search ends when a rate that is sustained and one that is not are this near."""
EXPECTED_PROBES, MOST_PROBES = 9, 20
LOWEST_RATE, HIGHEST_RATE = 25, 2_000_000
BEHIND_SHARE = 0.05
FEWEST_BATCHES = 4


def next_rate(probes: Sequence[Probe], start: int) -> int | None:
    """Doubles or halves until the answer lies between two rates, then goes between them; None: found. A rate that
    failed is tried once more, because the machine may have had a bad moment."""
    if not probes:
        return start
    if len(probes) >= MOST_PROBES:
        return None
    last = probes[-1]
    if not last.sustained and sum(each.rate == last.rate for each in probes) == 1:
        return last.rate
    return _between(max_rate(probes), min(_failed(probes), default=None))


def _between(good: int | None, bad: int | None) -> int | None:
    """From the highest sustained rate and the lowest that failed."""
    if good is None:
        lower = (bad or 0) // 2
        return lower if lower >= LOWEST_RATE else None
    if bad is None:
        return min(good * 2, HIGHEST_RATE) if good < HIGHEST_RATE else None
    between = _two_digits(math.sqrt(good * bad))
    return between if bad / good > CLOSE_ENOUGH and good < between < bad else None


def _two_digits(rate: float) -> int:
    return round(int(rate), 2 - len(str(int(rate))))


def max_rate(probes: Sequence[Probe]) -> int | None:
    """The highest sustained rate; None where none was. One that failed below it is a limit."""
    bad = min(_failed(probes), default=math.inf)
    return max((each.rate for each in probes if each.sustained and each.rate < bad), default=None)


def _failed(probes: Sequence[Probe]) -> set[int]:
    """Rates that were never sustained."""
    return {each.rate for each in probes} - {each.rate for each in probes if each.sustained}


def is_sustained(batches: Sequence[BatchTime], trigger_seconds: float) -> bool:
    """The backlog does not grow: the oldest event of a batch does not wait longer and longer. The second half of the
    batches is held against the first; falling behind by a twentieth of the time that passed is growing, where it is
    more than half a trigger, by which a batch may be late for no reason."""
    points = [
        (batch.arrivals.started_s, max(ms for ms, _ in batch.arrivals.delays) / 1_000)
        for batch in batches
        if batch.arrivals is not None and batch.arrivals.delays
    ]
    if len(points) < FEWEST_BATCHES:
        # So few in so much time: each took so long that the next one's work was more.
        return False
    middle = len(points) // 2
    first, second = points[:middle], points[middle:]
    passed_s = statistics.fmean(at for at, _ in second) - statistics.fmean(at for at, _ in first)
    grown_s = statistics.median(delay for _, delay in second) - statistics.median(delay for _, delay in first)
    return grown_s <= max(BEHIND_SHARE * passed_s, trigger_seconds / 2)


def too_far_behind(running_s: float, trigger_seconds: float) -> bool:
    """A batch that takes so long will not be caught up with: the rest of the traffic need not be waited for."""
    return running_s > 5 * trigger_seconds + 3
