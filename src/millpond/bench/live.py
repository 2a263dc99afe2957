"""Traffic that arrives while a query runs: how many events each tick brings, and when they are due.

The input is cut into files, one a tick. The events of a tick are due at its end, when the file appears.
"""

from __future__ import annotations

import itertools

import msgspec

from millpond.workloads.traffic import traffic

__all__ = ["Live"]

_SECOND_US = 1_000_000
TICKS_PER_TRIGGER = 5
SHORTEST_TICK_S, LONGEST_TICK_S = 0.1, 0.5
DEVIATION_SHARE = 0.1


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` events a second for so many seconds: first those in which the state fills, then those that count."""

    rate: int
    seconds: float
    warmup_seconds: float = 0.0
    trigger_seconds: float = 1.0
    normal: bool = False
    """Each second has a count of its own from a normal distribution; a tenth of the rate is its deviation."""
    seed: int = 1

    @property
    def tick_seconds(self) -> float:
        """Short beside a trigger; but each file costs its opening, so not shorter than needed."""
        return min(max(self.trigger_seconds / TICKS_PER_TRIGGER, SHORTEST_TICK_S), LONGEST_TICK_S)

    @property
    def rate_stddev(self) -> float:
        return self.rate * DEVIATION_SHARE if self.normal else 0.0

    @property
    def total_seconds(self) -> float:
        return self.warmup_seconds + self.seconds

    @property
    def ticks_per_trigger(self) -> int:
        return max(1, round(self.trigger_seconds / self.tick_seconds))

    @property
    def ticks(self) -> int:
        return max(1, round(self.total_seconds / self.tick_seconds))

    def counts(self) -> tuple[int, ...]:
        """Events of each tick."""
        arriving = traffic(self.rate, self.rate_stddev, self.seed)
        ends_us = [round(self.due_s(tick) * _SECOND_US) for tick in range(self.ticks)]
        borders = [0, *(arriving.available(end - 1) for end in ends_us)]
        return tuple(after - before for before, after in itertools.pairwise(borders))

    def due_s(self, tick: int) -> float:
        """Seconds from the beginning of the traffic."""
        return (tick + 1) * self.tick_seconds
