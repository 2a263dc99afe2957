"""When events are due: at a fixed rate, or with a count per second drawn from a normal distribution.

The same schedule gives event times and, for live streams, the moment from which an event can be read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from millpond.workloads.draws import Draws, event_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FixedTraffic", "NormalTraffic", "Traffic", "traffic"]

_SECOND_US = 1_000_000


class Traffic(Protocol):
    """Times are microseconds from the start of the stream, event numbers start at 0."""

    def due_us(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """When each event is due."""

    def available(self, elapsed_us: int) -> int:
        """How many events are due by then."""


def traffic(rate: int, rate_stddev: float, seed: int) -> Traffic:
    """`rate` events per second, exactly or, with a deviation, on average."""
    if rate < 1 or rate_stddev < 0:
        raise ValueError(
            f"rate must be at least 1 and its deviation at least 0, not {rate} and {rate_stddev}"
        )
    if rate_stddev == 0:
        return FixedTraffic(events=rate, each_us=_SECOND_US)
    return NormalTraffic(mean=rate, stddev=rate_stddev, seed=seed)


class FixedTraffic(msgspec.Struct, frozen=True):
    """`events` in each span of `each_us`, evenly spread."""

    events: int
    each_us: int

    def due_us(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers * self.each_us // self.events

    def available(self, elapsed_us: int) -> int:
        if elapsed_us < 0:
            return 0
        return ((elapsed_us + 1) * self.events - 1) // self.each_us + 1


class NormalTraffic(msgspec.Struct, frozen=True):
    """Each second has a count of its own, drawn by its number, its events evenly spread."""

    mean: int
    stddev: float
    seed: int

    def due_us(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        last = int(numbers.max(initial=0))
        seconds = 1024
        while (ends := _ends(self, seconds))[-1] <= last:
            seconds *= 2
        second = np.searchsorted(ends, numbers, side="right")
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends])
        place, count = numbers - starts[second], starts[second + 1] - starts[second]
        return np.asarray(second * _SECOND_US + place * _SECOND_US // count, dtype=np.int64)

    def available(self, elapsed_us: int) -> int:
        if elapsed_us < 0:
            return 0
        second, rest_us = divmod(elapsed_us, _SECOND_US)
        seconds = 1024
        while seconds <= second:
            seconds *= 2
        ends = _ends(self, seconds)
        before = int(ends[second - 1]) if second else 0
        count = int(ends[second]) - before
        within = FixedTraffic(events=count, each_us=_SECOND_US).available(rest_us) if count else 0
        return before + within


@lru_cache(maxsize=8)
def _ends(traffic: NormalTraffic, seconds: int) -> NDArray[np.int64]:
    """How many events are due by the end of each second."""
    drawn = Draws(traffic.seed, event_numbers(0, seconds)).normal(0) * traffic.stddev + traffic.mean
    return np.cumsum(np.maximum(np.rint(drawn), 0.0).astype(np.int64))
