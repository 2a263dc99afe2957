"""Batches without rows, for work that waits for the batch after the one that made it due.

Spark runs such batches by itself for plans that keep state (`spark.sql.streaming.noDataMicroBatches.enabled`), but
the stream that it reads here keeps none. What it runs a batch for otherwise is news of one of its sources: so when a
batch is wanted, one that always has news is among those that it asks. It is no part of the plan and has no place in
the log. A batch without rows is a batch like others, under every trigger.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millpond.spark.jvm import JavaObject

__all__ = ["Heartbeat"]


class Heartbeat:
    """Of one query. `want` is for Spark's thread of the query, that is, for the function of `foreachBatch`."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark._jvm
        # As the session has it at the query's start, like Spark.
        self._enabled = spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true"
        self._wanted = False
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
        self._always_news = sources.RatePerMicroBatchStream(1, 1, 0, 1, options)
        self._no_limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def want(self, execution: JavaObject, *, another_batch: bool) -> None:
        """Whether the query's next batch is to come at once, be there rows or not."""
        if not self._enabled or another_batch == self._wanted:
            return
        asked = execution.uniqueSources()
        asked = (
            asked.updated(self._always_news, self._no_limit)
            if another_batch
            else asked.removed(self._always_news)
        )
        getattr(execution, "uniqueSources_$eq")(asked)
        self._wanted = another_batch
