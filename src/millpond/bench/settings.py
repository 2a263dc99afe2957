"""Settings: those of Spark that all its engines share, and those that make the peers fast."""

from __future__ import annotations

import os

from millpond.bench.flink.settings import FLINK_ENGINES, FLINK_SETTINGS, MANAGED_MEMORY
from millpond.bench.workload import StreamingWorkload, Workload

__all__ = [
    "BASELINES",
    "ENGINE_SETTINGS",
    "FLOOR",
    "KEEPS_BATCHES",
    "PARTITIONS",
    "engine_settings",
    "session_settings",
]

FLOOR = "passthrough"
"""The engine without state."""
BASELINES = ("spark-rocksdb", "rocksdb")
"""What others are held against: the one of these that ran."""
HEAP = "4g"
PARTITIONS = "spark.sql.shuffle.partitions"
"""As many tasks, shards or, in Flink, subtasks keep an operator's state."""
STATE_STORE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def session_settings(cores: int, partitions: int | None = None) -> dict[str, str]:
    """The same for every engine of a run; a report holds them."""
    return {
        "spark.master": f"local[{cores}]",
        PARTITIONS: str(partitions or cores),
        "spark.driver.memory": HEAP,
        # The default collector marks beside the batches, which takes a tenth of two cores where large arrays come and
        # go. Spark's RocksDB is as fast or faster with this one too.
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        # The default asks a process of its own about each file of a checkpoint, and costs small batches the most.
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        # Windows that end with the last batch stay: nothing follows that would have to see them gone.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # A large batch is split over the cores, a small one is one task.
        "spark.sql.files.openCostInBytes": str(1 << 20),
        # How rows travel between the JVM and its Python workers: a tenth less work than with the defaults.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
        # The sink is the same for all engines and should cost little.
        "spark.sql.parquet.compression.codec": "uncompressed",
        "spark.hadoop.parquet.enable.dictionary": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


_TUNED_ROCKSDB = {
    f"{STATE_STORE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider",
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
    # A tenth faster than the default of 8; larger write buffers and no compression gave nothing more.
    f"{STATE_STORE}.rocksdb.blockCacheSizeMB": "512",
}

ENGINE_SETTINGS: dict[str, dict[str, str]] = {
    "spark-rocksdb": _TUNED_ROCKSDB,
    "spark-rocksdb-default": {
        f"{STATE_STORE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider",
    },
    # The same store as `spark-rocksdb`; without a count of its rows, its progress has none.
    "spark-tws": _TUNED_ROCKSDB,
    "spark-memory": {
        f"{STATE_STORE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider",
    },
    **FLINK_SETTINGS,
}


KEEPS_BATCHES = ("millpond", "spark-rocksdb", "spark-rocksdb-default", "spark-memory", "spark-tws")
"""Engines whose output is known batch by batch."""


def engine_settings(
    engine: str,
    workload: Workload,
    memory_bytes: int | None = None,
    write_buffer_bytes: int | None = None,
    partitions: int | None = None,
) -> dict[str, str]:
    """An engine's own settings for a workload; a report holds them. `memory_bytes`: what its stores may hold, one for
    each partition, `write_buffer_bytes`: what of it may be changes that are not in a file yet."""
    stores = partitions or len(os.sched_getaffinity(0))
    found = (
        ENGINE_SETTINGS.get(engine, {})
        | _memory(engine, memory_bytes, stores)
        | _buffer(engine, write_buffer_bytes)
    )
    if engine in FLINK_ENGINES and isinstance(workload, StreamingWorkload):
        query = workload.flink_query()
        return found | (query.settings if query else {})
    return found


def _memory(engine: str, memory_bytes: int | None, stores: int) -> dict[str, str]:
    if memory_bytes is None:
        return {}
    match engine:
        case "millpond":
            return {"spark.millpond.memory.bytes": str(memory_bytes)}
        case "spark-rocksdb" | "spark-tws":
            # Not `boundedMemoryUsage`: it puts filters into a cache of 64 parts, each smaller than the filter of one
            # file, so that with more state than memory every look-up reads a whole filter. Filters and indexes stay
            # outside this way, in addition to what is given here.
            each = max(1, (memory_bytes >> 20) // (4 * stores))
            return {
                f"{STATE_STORE}.rocksdb.blockCacheSizeMB": str(2 * each),
                f"{STATE_STORE}.rocksdb.writeBufferSizeMB": str(each),
                f"{STATE_STORE}.rocksdb.maxWriteBufferNumber": "2",
            }
        case "spark-rocksdb-default":
            return {
                f"{STATE_STORE}.rocksdb.boundedMemoryUsage": "true",
                f"{STATE_STORE}.rocksdb.maxMemoryUsageMB": str(max(1, memory_bytes >> 20)),
            }
        case _ if engine in FLINK_ENGINES:
            return {MANAGED_MEMORY: str(memory_bytes)}
    return {}


def _buffer(engine: str, write_buffer_bytes: int | None) -> dict[str, str]:
    if write_buffer_bytes is None:
        return {}
    match engine:
        case "millpond":
            return {"spark.millpond.write.bufferBytes": str(write_buffer_bytes)}
        case "spark-rocksdb" | "spark-rocksdb-default" | "spark-tws":
            return {f"{STATE_STORE}.rocksdb.writeBufferSizeMB": str(max(1, write_buffer_bytes >> 20))}
        case "flink-rocksdb" | "flink-forst":
            store = engine.removeprefix("flink-")
            return {f"state.backend.{store}.writebuffer.size": str(write_buffer_bytes)}
    return {}
