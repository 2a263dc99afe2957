"""The keyed workload: count and sum per key in update mode, with no window or a sliding one.

Keys are drawn uniformly. With a window, event time moves on by one slide a batch and rows are out of order by
less than the watermark's delay, so that windows expire and no row is late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.bench.flink.query import FlinkQuery
from millpond.bench.flink.settings import MINI_BATCH_ROWS, NO_MINI_BATCHES
from millpond.bench.workload import StreamingWorkload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

__all__ = ["Keyed", "small_windows"]

SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US


class Keyed(StreamingWorkload, frozen=True, kw_only=True, tag="keyed"):
    """`window_seconds` and `slide_seconds` at 0: no window, groups never expire."""

    rows: int
    keys: int
    batch_rows: int
    window_seconds: int = 0
    slide_seconds: int = 0
    watermark_seconds: int = 0

    @property
    def name(self) -> str:
        return "keyed"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ("key", "window.start", "window.end") if self.window_seconds else ("key",)

    def inputs(self) -> Iterator[Mapping[str, pa.Table]]:
        rng = np.random.default_rng(self.seed)
        # Spread over the whole of int64, so that no engine gains from keys being small or dense.
        names = rng.permutation(np.arange(self.keys, dtype=np.int64)) * 0x1234567 + 17
        for number, first in enumerate(range(0, self.rows, self.batch_rows)):
            count = min(self.batch_rows, self.rows - first)
            columns = {
                "key": names[rng.integers(0, self.keys, count)],
                "value": rng.integers(0, 1_000, count),
            }
            if self.window_seconds:
                columns["ts"] = pa.array(self._times(number, rng, count), pa.timestamp("us", "UTC"))
            yield {"input": pa.table(columns)}

    def _times(self, number: int, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        slide_us = self.slide_seconds * SECOND_US
        behind_us = self.watermark_seconds * SECOND_US // 2
        begin = START_US + number * slide_us
        return rng.integers(begin - behind_us, begin + slide_us, count)

    def query(self, frames: Mapping[str, DataFrame], *, own: bool = False) -> DataFrame:  # noqa: ARG002
        from pyspark.sql import functions as F

        frame = frames["input"]
        n, total = F.count("*").alias("n"), F.sum("value").alias("total")
        if not self.window_seconds:
            return frame.groupBy("key").agg(n, total)
        window = F.window("ts", f"{self.window_seconds} seconds", f"{self.slide_seconds} seconds")
        late = frame.withWatermark("ts", f"{self.watermark_seconds} seconds")
        return late.groupBy("key", window).agg(n, total)

    def tws_query(self) -> Callable[[Mapping[str, DataFrame]], DataFrame] | None:
        from millpond.bench.tws import keyed_totals

        return None if self.window_seconds else keyed_totals

    def flink_query(self) -> FlinkQuery:
        """With a window a row appears once, when the window closes, and all windows close at the end."""
        figures = "COUNT(*) AS `n`, SUM(`value`) AS `total`"
        if not self.window_seconds:
            select = f"SELECT `key`, {figures} FROM `input` GROUP BY `key`"
            settings = NO_MINI_BATCHES if self.keys > MINI_BATCH_ROWS else {}
            return FlinkQuery(select=select, update=True, key_columns=self.key_columns, settings=settings)
        windows = (
            f"HOP(TABLE `input`, DESCRIPTOR(`event_time`), INTERVAL '{self.slide_seconds}' SECONDS, "
            f"INTERVAL '{self.window_seconds}' SECONDS)"
        )
        bounds = (
            "CAST(`window_start` AS TIMESTAMP(6)) AS `window.start`, "
            "CAST(`window_end` AS TIMESTAMP(6)) AS `window.end`"
        )
        return FlinkQuery(
            select=f"SELECT `key`, {bounds}, {figures} FROM {windows} GROUP BY `key`, `window_start`, `window_end`",
            update=False,
            key_columns=self.key_columns,
            event_time="ts",
            # Flink's watermark moves with every row, Spark's between batches: the rows of a batch, one slide wide
            # and in no order, must not be late among themselves.
            watermark_seconds=self.watermark_seconds + self.slide_seconds,
        )


def small_windows(seed: int) -> Keyed:
    """Small batches and sliding windows: what a batch costs beside its rows."""
    return Keyed(
        rows=80 * 4_500,
        keys=10_000,
        batch_rows=4_500,
        window_seconds=20,
        slide_seconds=5,
        watermark_seconds=4,
        seed=seed,
    )
