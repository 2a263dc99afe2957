"""Where the time of a batch and its CPU time went, from what an engine says about itself.

The parts are those of `millpond.service.spent`. The times add up to the time of the batch: what runs beside it, such
as a merge of files, counts only as far as the batch waited for it, and `query` is what is left. CPU times add up to
the CPU time of all the engine's processes. What an engine does not tell is absent, and then part of `query`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millpond.service.spent import PARTS
from millpond.spark.figures import CPU_PREFIX, TIME_PREFIX

__all__ = ["millpond_split", "phases", "spark_split", "with_query"]

_ROCKSDB_READ = ("rocksdbGetLatency",)
_ROCKSDB_WRITE = ("rocksdbPutLatency",)
_ROCKSDB_COMPACTION = ("rocksdbCommitCompactLatency",)
_ROCKSDB_FILES = ("rocksdbCommitFileSyncLatencyMs",)
"""The part of the commit in which files are written and synced, the change log's included."""
_ROCKSDB_STALLS = ("rocksdbWriterStallLatencyMs",)


def phases(duration_ms: Mapping[str, float]) -> dict[str, float]:
    """What progress calls durations, without the split."""
    return {
        name: float(ms) for name, ms in duration_ms.items() if not name.startswith((TIME_PREFIX, CPU_PREFIX))
    }


def millpond_split(duration_ms: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """(time, CPU time) by part, as Millpond's progress shows them; the CPU time of `query` is not in it."""
    return _under(TIME_PREFIX, duration_ms), _under(CPU_PREFIX, duration_ms)


def _under(prefix: str, named: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): float(ms) for name, ms in named.items() if name.startswith(prefix)}


def spark_split(operators: Iterable[Any], total_ms: float, side_by_side: int) -> dict[str, float]:
    """The time of a batch by what Spark's state operators say. Their figures are sums over tasks, of which
    `side_by_side` run at a time."""
    told: dict[str, float] = {}
    for operator in operators:
        for part, ms in _operator_parts(operator).items():
            told[part] = told.get(part, 0.0) + ms / side_by_side
    together = sum(told.values())
    if together > total_ms:
        told = {part: ms * total_ms / together for part, ms in told.items()}
    return with_query(told, total_ms)


def _operator_parts(operator: Any) -> dict[str, float]:
    metrics: Mapping[str, float] = operator.customMetrics

    def told(names: Iterable[str]) -> float:
        return sum(float(metrics.get(name, 0)) for name in names)

    compacting, files = told(_ROCKSDB_COMPACTION), told(_ROCKSDB_FILES)
    parts = {
        "state_read": told(_ROCKSDB_READ),
        "state_write": told(_ROCKSDB_WRITE) + max(0.0, operator.commitTimeMs - compacting - files),
        "removal": float(operator.allRemovalsTimeMs),
        "compaction": compacting,
        "io_wait": files + told(_ROCKSDB_STALLS),
    }
    return {part: ms for part, ms in parts.items() if ms > 0}


def with_query(parts: Mapping[str, float], total_ms: float) -> dict[str, float]:
    """The parts in their order, and as `query` what is left of the whole."""
    rest = max(0.0, total_ms - sum(ms for part, ms in parts.items() if part != "query"))
    whole = {**parts, "query": rest}
    return {part: round(whole[part], 3) for part in PARTS if part in whole}
