"""What a batch did and how long each part took, and how that shows in Spark's progress."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from millpond.service.messages import StatsReply
from millpond.service.spent import PARTS, Spent

__all__ = ["CPU_PREFIX", "TIME_PREFIX", "BatchFigures", "FigureLog", "with_figures"]

TIME_PREFIX = "millpond.time."
CPU_PREFIX = "millpond.cpu."


@dataclass
class BatchFigures:
    batch_id: int
    operators: tuple[str, ...] = ()
    input_rows: int = 0
    late_rows: list[int] = field(default_factory=list)
    updated_rows: list[int] = field(default_factory=list)
    watermark_us: int = 0
    tries: int = 0
    written_bytes: int = 0
    storage_wait_ns: int = 0
    """Since the query started, all threads together."""
    stats: tuple[StatsReply, ...] = ()
    milliseconds: dict[str, float] = field(default_factory=dict)
    """ingest, seal, emit (the sink included), commit, and waiting for the save."""
    spent: Spent = field(default_factory=Spent)
    """What of the batch's time went where, what ran beside it left out; and all the CPU time."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = (time.perf_counter() - start) * 1000
            self.milliseconds[part] = self.milliseconds.get(part, 0.0) + spent


class FigureLog:
    """The figures of the newest batches, written by the batch loop and read by whoever asks for progress."""

    def __init__(self, kept_batches: int) -> None:
        self._kept_batches = kept_batches
        self._batches: OrderedDict[int, BatchFigures] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, figures: BatchFigures) -> None:
        with self._lock:
            self._batches[figures.batch_id] = figures
            while len(self._batches) > self._kept_batches:
                self._batches.popitem(last=False)

    def get(self, batch_id: int) -> BatchFigures | None:
        with self._lock:
            return self._batches.get(batch_id)


def with_figures(progress: dict[str, Any], figures: BatchFigures | None) -> dict[str, Any]:
    """Spark's progress of a batch with Millpond's part in the places where Spark's users look for it."""
    if figures is None:
        return progress
    merged = dict(progress)
    merged["durationMs"] = {
        **progress.get("durationMs", {}),
        **{f"millpond.{part}": round(spent) for part, spent in figures.milliseconds.items()},
        **_split(figures.spent, progress.get("durationMs", {}).get("triggerExecution")),
    }
    if figures.watermark_us:
        at = datetime.fromtimestamp(figures.watermark_us / 1_000_000, UTC)
        text = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
        merged["eventTime"] = {**progress.get("eventTime", {}), "watermark": text}
    merged["stateOperators"] = [_operator_progress(figures, i) for i in range(len(figures.stats))]
    return merged


def _split(spent: Spent, total_ms: float | None) -> dict[str, float]:
    """The parts of the batch's time, and the CPU time of those that are Millpond's."""
    times = dict(spent.wall_ms)
    if total_ms is not None:
        times["query"] = max(0.0, total_ms - sum(times.values()))
    return {
        f"{prefix}{part}": round(parts[part], 3)
        for prefix, parts in ((TIME_PREFIX, times), (CPU_PREFIX, spent.cpu_ms))
        for part in PARTS
        if part in parts
    }


def _operator_progress(figures: BatchFigures, i: int) -> dict[str, Any]:
    stats = figures.stats[i]
    part = figures.milliseconds
    return {
        "operatorName": figures.operators[i],
        "numRowsTotal": stats.rows,
        "numRowsUpdated": figures.updated_rows[i],
        "numRowsRemoved": 0,
        "allUpdatesTimeMs": round(part.get("seal", 0)),
        "allRemovalsTimeMs": 0,
        "commitTimeMs": round(part.get("commit", 0)),
        "memoryUsedBytes": stats.memory_bytes,
        "numRowsDroppedByWatermark": figures.late_rows[i],
        "numShufflePartitions": 0,
        "numStateStoreInstances": 1,
        "customMetrics": {
            "fileBytes": stats.run_bytes,
            "liveBytes": stats.live_bytes,
            "runs": stats.runs,
            "gets": stats.gets,
            "memoryHits": stats.memory_hits,
            "filterNegatives": stats.filter_negatives,
            "falsePositives": stats.false_positives,
            "diskProbes": stats.disk_probes,
            "blockReads": stats.block_reads,
            "readRequests": stats.read_requests,
            "readWaitMs": round(stats.read_wait_ns / 1_000_000),
            "readBytes": stats.read_bytes,
            "takenBytes": stats.taken_bytes,
            "indexScans": stats.index_scans,
            "readAhead": stats.read_ahead,
            "readAheadHits": stats.read_ahead_hits,
            "readAheadEvicted": stats.read_ahead_evicted,
            "rewrittenBytes": stats.rewritten_bytes,
            "observingShards": stats.observing_shards,
            "alignedShards": stats.aligned_shards,
            "unalignedShards": stats.unaligned_shards,
            "unmovedRows": stats.unmoved_rows,
            "writtenBytes": figures.written_bytes,
            # Of the whole query, so that it stands with its first operator alone.
            "storageWaitMs": round(figures.storage_wait_ns / 1_000_000) if i == 0 else 0,
            "tries": figures.tries,
        },
    }
