"""Flink's settings: the ones all its engines share, and those of each state backend."""

from __future__ import annotations

__all__ = [
    "FLINK_ENGINES",
    "FLINK_SETTINGS",
    "JAVA_OPTIONS",
    "MANAGED_MEMORY",
    "MINI_BATCH_ROWS",
    "NO_MINI_BATCHES",
]

JAVA_OPTIONS = "env.java.opts.all"
"""For the one JVM that holds the client and the cluster."""
MANAGED_MEMORY = "taskmanager.memory.managed.size"
"""What RocksDB and ForSt may hold in memory, shared by all slots, in bytes or with a unit (`256mb`)."""

_SHARED = {
    # As much heap as Spark's driver gets.
    JAVA_OPTIONS: "-Xmx4g",
    MANAGED_MEMORY: "1gb",
    "execution.runtime-mode": "STREAMING",
    "execution.checkpointing.interval": "3s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
}
MINI_BATCH_ROWS = 5_000
_MINI_BATCHES = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1s",
    "table.exec.mini-batch.size": str(MINI_BATCH_ROWS),
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}
NO_MINI_BATCHES = {"table.exec.mini-batch.enabled": "false"}
"""For queries whose rows rarely share a key: holding them back costs and combines nothing."""

FLINK_SETTINGS: dict[str, dict[str, str]] = {
    "flink-rocksdb": _SHARED
    | _MINI_BATCHES
    | {
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.use-bloom-filter": "true",
        # With state that is larger than memory, whole filters and indexes would be read again and again.
        "state.backend.rocksdb.memory.partitioned-index-filters": "true",
        "state.backend.rocksdb.compression.per.level": "NO_COMPRESSION",
        "execution.checkpointing.incremental": "true",
    },
    "flink-hashmap": _SHARED | _MINI_BATCHES | {"state.backend.type": "hashmap"},
    "flink-forst": _SHARED
    | _MINI_BATCHES
    | {
        "state.backend.type": "forst",
        "state.backend.forst.use-bloom-filter": "true",
        "state.backend.forst.memory.partitioned-index-filters": "true",
        "state.backend.forst.compression.per.level": "NO_COMPRESSION",
        "execution.checkpointing.incremental": "true",
    },
}
FLINK_ENGINES = tuple(FLINK_SETTINGS)
