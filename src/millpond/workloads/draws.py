"""Random numbers by counter: a draw follows from seed, field and event number, so any range can be made anywhere.

Nothing here knows a workload; all functions take and give whole columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "START_US",
    "Draws",
    "event_numbers",
    "fixed_strings",
    "timestamps",
    "utc",
]

START_US = 1_436_918_400_000_000
"""Event time of the first event: that of NEXMark."""

_GOLDEN = 0x9E37_79B9_7F4A_7C15
_MASK = (1 << 64) - 1
_HALVES = ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves every bit of the output."""
    for shift, factor in _HALVES:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


class Draws:
    """The random numbers of some events, one independent column per field."""

    def __init__(self, seed: int, numbers: NDArray[np.int64]) -> None:
        self._counters = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
        self._seed = seed

    def bits(self, field: int) -> NDArray[np.uint64]:
        """64 random bits each."""
        key = np.array([(self._seed * 0x1_0001 + field) & _MASK], dtype=np.uint64)
        return _mix(self._counters ^ _mix(key * np.uint64(_GOLDEN)))

    def below(self, field: int, bound: int) -> NDArray[np.int64]:
        """From 0 up to `bound`, at most 2³², which is not included."""
        high = self.bits(field) >> np.uint64(32)
        return ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)

    def unit(self, field: int) -> NDArray[np.float64]:
        """From 0 up to 1, which is not included."""
        return (self.bits(field) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, field: int) -> NDArray[np.float64]:
        """Around 0 with deviation 1; takes the field after it too."""
        radius = np.sqrt(-2.0 * np.log1p(-self.unit(field)))
        return np.asarray(radius * np.cos(2.0 * np.pi * self.unit(field + 1)))

    def parts_of_1024(self, field: int, bound: int) -> NDArray[np.float64]:
        """Multiples of 1/1024 below `bound`/1024: their sums are exact in any order."""
        return self.below(field, bound).astype(np.float64) / 1024.0

    def letters(self, field: int, length: int) -> NDArray[np.uint8]:
        """A row of `length` letters each, from a to p."""
        words = -(-length // 16)
        drawn = np.stack([self.bits(field + word) for word in range(words)], axis=1).view(np.uint8)
        nibbles = np.stack([drawn & np.uint8(15), drawn >> np.uint8(4)], axis=2).reshape(
            len(drawn), 2 * drawn.shape[1]
        )
        return nibbles[:, :length] + np.uint8(ord("a"))


def event_numbers(first: int, count: int) -> NDArray[np.int64]:
    return np.arange(first, first + count, dtype=np.int64)


def utc() -> pa.DataType:
    return pa.timestamp("us", tz="UTC")


def timestamps(times_us: NDArray[np.int64]) -> pa.Array:
    """Event times, given from the start of the stream."""
    return pa.array(times_us + START_US).cast(utc())


def fixed_strings(rows: NDArray[np.uint8]) -> pa.Array:
    """A string array of the bytes in each row."""
    count, length = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    data = np.ascontiguousarray(rows)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
