"""NEXMark's queries that aggregate bids, as the papers measure them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from millpond.workloads.queries.query import PaperQuery, Windows
from millpond.workloads.queries.times import session, sliding, timed, tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BIDS"]


def _counted_by_auction(bids: DataFrame, windows: Windows) -> DataFrame:
    window = sliding(windows, seconds=10, slide=5)
    return timed(bids).groupBy(window, "auction").agg(F.count("*").alias("bids"))


def _hottest(counts: DataFrame, highest: Column) -> DataFrame:
    """Of auctions with the same number of bids, the one with the highest id."""
    return counts.groupBy("window").agg(highest.alias("top")).select("window", "top.bids", "top.auction")


def _q5(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _hottest(_counted_by_auction(streams["bids"], windows), F.max(F.struct("bids", "auction")))


def _q5_append(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    all_counts = F.collect_list(F.struct("bids", "auction"))
    return _hottest(_counted_by_auction(streams["bids"], windows), F.array_max(all_counts))


def _highest(bids: DataFrame, window: Column) -> DataFrame:
    return timed(bids).groupBy(window, "bidder").agg(F.array_max(F.collect_list("price")).alias("price"))


def _q7(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _highest(streams["bids"], tumbling(windows, seconds=10).alias("window"))


def _q7_session(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _highest(streams["bids"], session(windows, gap=10).alias("window"))


def _in_sessions(bids: DataFrame, windows: Windows, value: Column) -> DataFrame:
    return timed(bids).groupBy(session(windows, gap=10).alias("window"), "bidder").agg(value)


def _q11(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _in_sessions(streams["bids"], windows, F.count("*").alias("bids"))


def _q11_median(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _in_sessions(streams["bids"], windows, F.median("price").alias("price"))


def _q12(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    return streams["bids"].groupBy("bidder").agg(F.count("*").alias("bids"))


def _q12_time(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    # Nothing is late by the clock, so a window closes with the first batch after its end.
    arrived = streams["bids"].withColumn("at", F.current_timestamp()).withWatermark("at", "0 seconds")
    window = tumbling(windows, seconds=10, column="at")
    return arrived.groupBy(window, "bidder").agg(F.count("*").alias("bids"))


def _q18(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    last = F.max(F.struct("ts", "price", "extra")).alias("last")
    return streams["bids"].groupBy("auction", "bidder").agg(last).select("auction", "bidder", "last.*")


def _q19(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    highest_first = F.sort_array(F.collect_list(F.struct("price", "ts", "bidder", "extra")), asc=False)
    tops = streams["bids"].groupBy("auction").agg(highest_first.alias("bids"))
    return tops.select("auction", F.posexplode(F.slice("bids", 1, 10)).alias("place", "bid")).select(
        "auction", (F.col("place") + 1).alias("rank"), "bid.*"
    )


def _q18_latest(streams: Mapping[str, Any], _: Windows) -> DataFrame:
    last = streams["bids"].groupBy("auction", "bidder").latest(by=["ts", "price"])
    return last.select("auction", "bidder", "ts", "price", "extra")


def _q19_top(streams: Mapping[str, Any], _: Windows) -> DataFrame:
    highest = streams["bids"].groupBy("auction").top(10, by=["price", "ts", "bidder"])
    return highest.select("auction", "rank", "price", "ts", "bidder", "extra")


BIDS: tuple[PaperQuery, ...] = (
    PaperQuery(
        name="q5",
        title="The auction with the most bids in sliding windows of 10 s every 5 s",
        origin="NEXMark, FlowKV",
        pattern="RMW + RMW",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q5,
        columns={"bids": ("auction", "ts")},
    ),
    PaperQuery(
        name="q5-append",
        title="As q5, with all counts of a window kept until its end, when their maximum is taken",
        origin="FlowKV",
        pattern="RMW + AAR",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q5_append,
        columns={"bids": ("auction", "ts")},
    ),
    PaperQuery(
        name="q7",
        title="Each bidder's highest bid in windows of 10 s, all bids kept until the end of the window",
        origin="NEXMark, FlowKV",
        pattern="AAR",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q7,
        columns={"bids": ("bidder", "price", "ts")},
    ),
    PaperQuery(
        name="q7-session",
        title="As q7, in sessions that end after 10 s without a bid",
        origin="FlowKV",
        pattern="AUR",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window",),
        plain=_q7_session,
        columns={"bids": ("bidder", "price", "ts")},
    ),
    PaperQuery(
        name="q11",
        title="Bids of each bidder in sessions that end after 10 s without one",
        origin="NEXMark, FlowKV",
        pattern="RMW",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window",),
        plain=_q11,
        columns={"bids": ("bidder", "ts")},
    ),
    PaperQuery(
        name="q11-median",
        title="As q11, the median of the prices in place of the count",
        origin="FlowKV",
        pattern="AUR",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window",),
        plain=_q11_median,
        columns={"bids": ("bidder", "price", "ts")},
    ),
    PaperQuery(
        name="q12",
        title="Bids of each bidder since the beginning",
        origin="FlowKV",
        pattern="RMW",
        streams=("bids",),
        mode="update",
        plain=_q12,
        keys=("bidder",),
        filled="bidder",
        columns={"bids": ("bidder",)},
    ),
    PaperQuery(
        name="q12-time",
        title="Bids of each bidder in windows of 10 s by the clock",
        origin="NEXMark",
        pattern="RMW",
        streams=("bids",),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q12_time,
        columns={"bids": ("bidder",)},
        comparable=False,
    ),
    PaperQuery(
        name="q18",
        title="The last bid of each bidder on each auction; of several at the same time the highest",
        origin="NEXMark, Keyed Prefetching, Flink 2.0",
        pattern="RMW",
        streams=("bids",),
        mode="update",
        plain=_q18,
        own=_q18_latest,
        keys=("auction", "bidder"),
        columns={"bids": ("auction", "bidder", "price", "ts", "extra")},
    ),
    PaperQuery(
        name="q19",
        title="The ten highest bids on each auction; of equal prices the newest first",
        origin="NEXMark, Keyed Prefetching, Flink 2.0",
        pattern="RMW, larger values",
        streams=("bids",),
        mode="update",
        plain=_q19,
        own=_q19_top,
        keys=("auction", "rank"),
        columns={"bids": ("auction", "bidder", "price", "ts", "extra")},
    ),
)
