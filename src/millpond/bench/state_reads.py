"""How an engine's state was read, from the progress that it reports.

"From memory" is each engine's own notion, and the ratio is taken for each: of Millpond's look-ups of keys, those that
cost no block read; of the blocks that RocksDB wanted, those in its block cache; of the versions that Spark's store in
memory loaded, those still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millpond.bench.job import StateReads

__all__ = ["ahead_ratio", "hit_ratio", "state_reads", "state_totals"]


def state_reads(progress: Sequence[Any], waited_ns: Sequence[int | None]) -> list[StateReads]:
    """For each batch, in order. `waited_ns`: what waited for slow storage in the JVM, counted since before the first
    batch; None where storage is not slow."""
    found = []
    before = _Totals()
    for report, waited in zip(progress, waited_ns, strict=True):
        metrics = [operator.customMetrics for operator in report.stateOperators]
        now = _Totals(metrics, waited or 0)
        reads = now.reads - before.reads
        from_ahead = max(now.from_ahead - before.from_ahead, 0)
        wait_ms = now.wait_ms - before.wait_ms
        found.append(
            StateReads(
                # Counters begin again with a new service, and RocksDB's with each batch.
                reads=max(reads, 0) + now.batch_reads,
                from_memory=max(reads - (now.misses - before.misses), 0) + now.batch_hits,
                wait_ms=None if waited is None else round(max(wait_ms, 0.0), 3),
                from_ahead=from_ahead,
                wanted_ahead=from_ahead + max(now.not_ahead - before.not_ahead, 0),
                state_bytes=_told(metrics, "liveBytes", "rocksdbSstFileSize"),
                file_bytes=_told(metrics, "fileBytes", "rocksdbSstFileSize"),
            )
        )
        before = now
    return found


def hit_ratio(batches: Sequence[StateReads | None]) -> float | None:
    """Reads served from memory of all reads; None where the engine does not tell or nothing was read."""
    reads = sum(each.reads for each in batches if each is not None)
    hits = sum(each.from_memory for each in batches if each is not None)
    return round(hits / reads, 6) if reads else None


def ahead_ratio(batches: Sequence[StateReads | None]) -> float | None:
    """Reads served by what was read ahead, of those that were not in memory anyway; None where nothing is read
    ahead."""
    wanted = sum(each.wanted_ahead for each in batches if each is not None)
    served = sum(each.from_ahead for each in batches if each is not None)
    return round(served / wanted, 6) if wanted else None


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
        readers = [each for each in metrics if each.get("readAhead")]
        self.from_ahead = _sum(readers, "readAheadHits")
        self.not_ahead = _sum(readers, "diskProbes")
        self.wait_ms = waited_ns / 1_000_000 + _sum(metrics, "readWaitMs", "storageWaitMs")
        self.batch_hits = _sum(metrics, _CACHED[0])
        self.batch_reads = _sum(metrics, *_CACHED)


_LOADED = ("loadedMapCacheHitCount", "loadedMapCacheMissCount")
_CACHED = ("rocksdbReadBlockCacheHitCount", "rocksdbReadBlockCacheMissCount")


def _told(metrics: Sequence[Mapping[str, int]], *names: str) -> int | None:
    """The sum of a figure that each engine has its own name for; None where it tells none."""
    if any(name in each for each in metrics for name in names):
        return _sum(metrics, *names)
    return None


def _sum(metrics: Sequence[Mapping[str, int]], *names: str) -> int:
    return sum(int(each.get(name, 0)) for each in metrics for name in names)
