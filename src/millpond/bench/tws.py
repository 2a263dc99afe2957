"""Queries as a PySpark user writes them with `transformWithState`, Spark's operator for state of one's own.

On rows, not in pandas: a frame for every key makes the same query two and a half times as slow. Each key's rows of a
batch come together; the state is read once and written once for them, and the key's new row is put out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TWS_QUERIES", "keyed_totals"]

TwsForm = Callable[["Mapping[str, DataFrame]"], "DataFrame"]


class _Totals(StatefulProcessor):
    """`keyed`: count and sum."""

    def init(self, handle: Any) -> None:
        self._totals = handle.getValueState("totals", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        n, total = self._totals.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.value
        self._totals.update((n, total))
        yield Row(key=key[0], n=n, total=total)


class _Count(StatefulProcessor):
    """`q12`: bids of a bidder."""

    def init(self, handle: Any) -> None:
        self._bids = handle.getValueState("bids", "bids long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        (bids,) = self._bids.get() or (0,)
        bids += sum(1 for _ in rows)
        self._bids.update((bids,))
        yield Row(bidder=key[0], bids=bids)


class _LastBid(StatefulProcessor):
    """`q18`: the last bid of a bidder on an auction, of several at the same time the highest."""

    def init(self, handle: Any) -> None:
        self._last = handle.getValueState("last", "ts_us long, price long, extra string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        newest = max((row.ts_us, row.price, row.extra) for row in rows)
        known = self._last.get()
        if known is None or newest > tuple(known):
            self._last.update(newest)
        else:
            newest = tuple(known)
        ts_us, price, extra = newest
        yield Row(auction=key[0], bidder=key[1], ts_us=ts_us, price=price, extra=extra)


class _Padded(StatefulProcessor):
    """`readwrite`: records of an id, and the largest padding."""

    def init(self, handle: Any) -> None:
        self._record = handle.getValueState("record", "count long, padding string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        count, padding = self._record.get() or (0, "")
        for row in rows:
            count += 1
            padding = max(padding, row.padding)
        self._record.update((count, padding))
        yield Row(id=key[0], count=count, padding=padding)


def _transformed(
    frame: DataFrame, keys: tuple[str, ...], processor: StatefulProcessor, out: str
) -> DataFrame:
    return frame.groupBy(*keys).transformWithState(
        statefulProcessor=processor, outputStructType=out, outputMode="Update", timeMode="None"
    )


def keyed_totals(streams: Mapping[str, DataFrame]) -> DataFrame:
    return _transformed(streams["input"], ("key",), _Totals(), "key long, n long, total long")


def _q12(streams: Mapping[str, DataFrame]) -> DataFrame:
    return _transformed(streams["bids"], ("bidder",), _Count(), "bidder long, bids long")


def _q18(streams: Mapping[str, DataFrame]) -> DataFrame:
    # As numbers, times need no conversion to Python's and back.
    bids = streams["bids"].select("auction", "bidder", F.unix_micros("ts").alias("ts_us"), "price", "extra")
    out = "auction long, bidder long, ts_us long, price long, extra string"
    last = _transformed(bids, ("auction", "bidder"), _LastBid(), out)
    return last.select("auction", "bidder", F.timestamp_micros("ts_us").alias("ts"), "price", "extra")


def _readwrite(streams: Mapping[str, DataFrame]) -> DataFrame:
    return _transformed(streams["records"], ("id",), _Padded(), "id long, count long, padding string")


TWS_QUERIES: Mapping[str, TwsForm] = MappingProxyType({"q12": _q12, "q18": _q18, "readwrite": _readwrite})
"""By the name of the query."""
