"""NEXMark's queries that join, as the papers measure them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from millpond.workloads.queries.query import PaperQuery, Windows
from millpond.workloads.queries.times import sliding, timed, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["JOINS", "winners"]

LONGEST_AUCTION = "4 hours"
"""Spark forgets a bid when no auction can want it any more, which takes a bound on how long auctions run. NEXMark's
run for up to twice the time in which they are in flight; the papers have them in flight for up to two hours."""
SIDE_INPUT_ROWS = 10_000


def winners(streams: Mapping[str, DataFrame]) -> DataFrame:
    """The highest bid on each auction, and of equal ones the first, when the auction has closed.

    An auction's event time is its end: it is late once the watermark has passed that, and not before.
    """
    auctions = timed(
        streams["auctions"].select(
            "id", "name", "seller", "category", F.col("ts").alias("opened"), "expires"
        ),
        "expires",
    )
    bids = timed(streams["bids"].select("auction", "bidder", "price", "ts"))
    in_time = (
        (F.col("id") == F.col("auction"))
        & (F.col("ts") >= F.col("opened"))
        & (F.col("ts") <= F.col("expires"))
        & (F.col("ts") >= F.col("expires") - F.expr(f"INTERVAL {LONGEST_AUCTION}"))
    )
    # The smallest of these has the highest price, then the earliest time.
    best = F.min(F.struct((-F.col("price")).alias("price"), "ts", "bidder")).alias("best")
    return (
        auctions.join(bids, in_time)
        .groupBy("id", "name", "seller", "category", "opened", "expires")
        .agg(best)
        .select(
            "id",
            "name",
            "seller",
            "category",
            "opened",
            "expires",
            (-F.col("best.price")).alias("price"),
            F.col("best.bidder").alias("bidder"),
            F.col("best.ts").alias("bid_at"),
        )
    )


def _q4(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    window = sliding(windows, seconds=10, slide=5, column="expires")
    return winners(streams).groupBy(window, "category").agg(F.avg("price").alias("price"))


def _q8(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    window = tumbling(windows, seconds=10).alias("window")
    persons = timed(streams["persons"]).select("id", "name", window)
    auctions = timed(streams["auctions"]).select(
        F.col("seller").alias("id"), F.col("id").alias("auction"), "reserve", window
    )
    return persons.join(auctions, ["id", "window"])


def _q9(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    return winners(streams)


def _q13(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    bids = streams["bids"].withColumn("key", F.col("auction") % SIDE_INPUT_ROWS)
    return bids.join(streams["side_input"], "key").select("auction", "bidder", "price", "ts", "value")


def _side_input(_: int) -> pa.Table:
    keys = range(SIDE_INPUT_ROWS)
    return pa.table({"key": pa.array(keys, pa.int64()), "value": [f"value {key}" for key in keys]})


def _q20(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    auctions = streams["auctions"].where("category = 10")
    wanted = auctions.select(
        F.col("id").alias("auction"),
        "name",
        "description",
        "initial",
        "reserve",
        F.col("ts").alias("opened"),
        "expires",
        "seller",
        "category",
    )
    return streams["bids"].join(wanted, "auction")


_AUCTIONS_WITH_BIDS = {
    "auctions": ("id", "name", "seller", "category", "ts", "expires"),
    "bids": ("auction", "bidder", "price", "ts"),
}

JOINS: tuple[PaperQuery, ...] = (
    PaperQuery(
        name="q4",
        title="Average closing price per category in windows of 10 s every 5 s of the auctions' ends",
        origin="NEXMark, Flink 2.0",
        pattern="interval join + RMW + RMW",
        streams=("auctions", "bids"),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q4,
        columns=_AUCTIONS_WITH_BIDS,
    ),
    PaperQuery(
        name="q8",
        title="New users who open an auction in the same window of 10 s",
        origin="NEXMark, FlowKV",
        pattern="AAR",
        streams=("persons", "auctions"),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q8,
        columns={"persons": ("id", "name", "ts"), "auctions": ("id", "seller", "reserve", "ts")},
    ),
    PaperQuery(
        name="q9",
        title="The winning bid of each auction, when it has closed",
        origin="NEXMark, Flink 2.0",
        pattern="interval join + RMW",
        streams=("auctions", "bids"),
        mode="append",
        plain=_q9,
        columns=_AUCTIONS_WITH_BIDS,
    ),
    PaperQuery(
        name="q13",
        title="Bids with what a bounded table says about their auction; Spark keeps no state for it",
        origin="NEXMark, Keyed Prefetching",
        pattern="read only",
        streams=("bids",),
        mode="append",
        plain=_q13,
        columns={"bids": ("auction", "bidder", "price", "ts")},
        tables={"side_input": _side_input},
    ),
    PaperQuery(
        name="q20",
        title="Bids with their auction, those of category 10; both sides are kept for ever",
        origin="NEXMark, Keyed Prefetching, Flink 2.0",
        pattern="incremental join",
        streams=("bids", "auctions"),
        mode="append",
        plain=_q20,
        columns={
            "bids": ("auction", "bidder", "price", "ts", "extra"),
            "auctions": (
                "id",
                "name",
                "description",
                "initial",
                "reserve",
                "ts",
                "expires",
                "seller",
                "category",
            ),
        },
    ),
)
