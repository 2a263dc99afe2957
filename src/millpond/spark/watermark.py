"""The query's watermark, read from Spark itself.

The carrier query keeps the user's `withWatermark` nodes, so Spark's own operators see every row that counts for
the watermark and gather the event times while the ingest job runs. Asking them afterwards gives the watermark
that includes the running batch, under Spark's own rules for several watermarks.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["WatermarkReader"]


class WatermarkReader:
    def __init__(self, spark: SparkSession, plan: Any, watermark_us: int) -> None:
        """`plan` is the carrier's logical plan; `watermark_us` what the newest commit record says."""
        tracker = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker
        self._tracker = tracker.apply(spark._jsparkSession.conf(), plan)
        self._tracker.setWatermark(watermark_us // 1000)
        self.watermark_us = watermark_us

    def update(self, executed_plan: Any) -> int:
        """Takes in the event times of the batch whose ingest job has just run."""
        self._tracker.updateWatermark(executed_plan)
        self.watermark_us = max(self.watermark_us, int(self._tracker.currentWatermark()) * 1000)
        return self.watermark_us
