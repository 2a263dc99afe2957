"""How an engine's state was read, from the progress that it reports.

"From memory" is each engine's own notion, and the ratio is taken for each: of Millpond's look-ups of keys, those that
cost no block read; of the blocks that RocksDB wanted, those in its block cache; of the versions that Spark's store in
memory loaded, those still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millpond.bench.job import StateReads

__all__ = ["hit_ratio", "state_reads", "state_totals"]


def state_reads(progress: Sequence[Any], waited_ns: Sequence[int | None]) -> list[StateReads]:
    """For each batch, in order. `waited_ns`: what waited for slow storage in the JVM, counted since before the first
    batch; None where storage is not slow."""
    found = []
    before = _Totals()
    for report, waited in zip(progress, waited_ns, strict=True):
        metrics = [operator.customMetrics for operator in report.stateOperators]
        now = _Totals(metrics, waited or 0)
        reads = now.reads - before.reads
        wait_ms = now.wait_ms - before.wait_ms
        found.append(
            StateReads(
                # Counters begin again with a new service, and RocksDB's with each batch.
                reads=max(reads, 0) + now.batch_reads,
                from_memory=max(reads - (now.misses - before.misses), 0) + now.batch_hits,
                wait_ms=None if waited is None else round(max(wait_ms, 0.0), 3),
                state_bytes=_state_bytes(metrics),
            )
        )
        before = now
    return found


def hit_ratio(batches: Sequence[StateReads | None]) -> float | None:
    """Reads served from memory of all reads; None where the engine does not tell or nothing was read."""
    reads = sum(each.reads for each in batches if each is not None)
    hits = sum(each.from_memory for each in batches if each is not None)
    return round(hits / reads, 6) if reads else None


def state_totals(operators: list[Any]) -> tuple[int | None, int | None]:
    """State rows and bytes after the last batch; None where the engine does not say."""
    if not operators:
        return None, None
    rows = [operator.numRowsTotal for operator in operators]
    # With row tracking off, Spark's RocksDB provider does not know its rows.
    known = all(count > 0 for count in rows)
    return sum(rows) if known else None, sum(operator.memoryUsedBytes for operator in operators)


class _Totals:
    """The counters of all operators after a batch: those that only grow, and those of the batch alone."""

    def __init__(self, metrics: Sequence[Mapping[str, int]] = (), waited_ns: int = 0) -> None:
        self.reads = _sum(metrics, "gets") + _sum(metrics, *_LOADED)
        self.misses = _sum(metrics, "diskProbes") + _sum(metrics, _LOADED[1])
        self.wait_ms = waited_ns / 1_000_000 + _sum(metrics, "readWaitMs", "storageWaitMs")
        self.batch_hits = _sum(metrics, _CACHED[0])
        self.batch_reads = _sum(metrics, *_CACHED)


_LOADED = ("loadedMapCacheHitCount", "loadedMapCacheMissCount")
_CACHED = ("rocksdbReadBlockCacheHitCount", "rocksdbReadBlockCacheMissCount")


def _state_bytes(metrics: Sequence[Mapping[str, int]]) -> int | None:
    if any("liveBytes" in each or "rocksdbSstFileSize" in each for each in metrics):
        return _sum(metrics, "liveBytes", "rocksdbSstFileSize")
    return None


def _sum(metrics: Sequence[Mapping[str, int]], *names: str) -> int:
    return sum(int(each.get(name, 0)) for each in metrics for name in names)
