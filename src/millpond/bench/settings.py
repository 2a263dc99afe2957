"""Settings: those of Spark that all its engines share, and those that make the peers fast."""

from __future__ import annotations

from millpond.bench.flink.settings import FLINK_ENGINES, FLINK_SETTINGS
from millpond.bench.workload import StreamingWorkload, Workload

__all__ = ["BASELINES", "ENGINE_SETTINGS", "FLOOR", "engine_settings", "session_settings"]

FLOOR = "passthrough"
"""The engine without state."""
BASELINES = ("spark-rocksdb", "rocksdb")
"""What others are held against: the one of these that ran."""
HEAP = "4g"
STATE_STORE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"


def session_settings(cores: int) -> dict[str, str]:
    """The same for every engine of a run; a report holds them."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.memory": HEAP,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
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


ENGINE_SETTINGS: dict[str, dict[str, str]] = {
    "spark-rocksdb": {
        f"{STATE_STORE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider",
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
    },
    "spark-memory": {
        f"{STATE_STORE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider",
    },
    **FLINK_SETTINGS,
}


def engine_settings(engine: str, workload: Workload) -> dict[str, str]:
    """An engine's own settings for a workload; a report holds them."""
    found = ENGINE_SETTINGS.get(engine, {})
    if engine in FLINK_ENGINES and isinstance(workload, StreamingWorkload):
        query = workload.flink_query()
        return found | (query.settings if query else {})
    return found
