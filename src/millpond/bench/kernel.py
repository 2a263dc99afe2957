"""The kernel workload: get, merge and put of batches of keys in one store, in memory, on one core.

Every batch draws its keys uniformly and without repetition, so that all engines do the same number of reads and
writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from millpond.bench.workload import Batch, Prepared, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["KERNEL_ENGINES", "KernelMerge"]

KERNEL_ENGINES = ("millpond", "rocksdb")


class KernelMerge(Workload, frozen=True, kw_only=True, tag="kernel"):
    """8-byte keys, 16-byte values: a count and a sum. The first batches bring every key once."""

    keys: int = 1_000_000
    batch_rows: int = 65_536
    measured_batches: int = 100

    @property
    def name(self) -> str:
        return "kernel"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ("key",)

    @property
    def loading_batches(self) -> int:
        return -(-self.keys // self.batch_rows)

    def prepare(self, _directory: Path) -> Prepared:
        return Prepared(batches=tuple(Batch(len(keys)) for keys, _ in self.draws()))

    def draws(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Keys and values of each batch: first all keys in random order, then draws from them."""
        rng = np.random.default_rng(self.seed)
        names = rng.permutation(np.arange(self.keys, dtype=np.int64)) * 0x1234567 + 17
        for first in range(0, self.keys, self.batch_rows):
            keys = names[first : first + self.batch_rows]
            yield keys, rng.integers(0, 1_000, len(keys))
        for _ in range(self.measured_batches):
            keys = names[rng.choice(self.keys, min(self.batch_rows, self.keys), replace=False, shuffle=True)]
            yield keys, rng.integers(0, 1_000, len(keys))
