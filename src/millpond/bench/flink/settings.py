"""Flink's settings: the ones all its engines share, and those of each state backend."""

from __future__ import annotations

__all__ = ["FLINK_ENGINES", "FLINK_SETTINGS", "JAVA_OPTIONS", "MANAGED_MEMORY"]

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
_MINI_BATCHES = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}

FLINK_SETTINGS: dict[str, dict[str, str]] = {
    "flink-rocksdb": _SHARED
    | _MINI_BATCHES
    | {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
    },
    "flink-hashmap": _SHARED | _MINI_BATCHES | {"state.backend.type": "hashmap"},
    "flink-forst": _SHARED
    | _MINI_BATCHES
    | {
        "state.backend.type": "forst",
        "execution.checkpointing.incremental": "true",
    },
}
FLINK_ENGINES = tuple(FLINK_SETTINGS)
