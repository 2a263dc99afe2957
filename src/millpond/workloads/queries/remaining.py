"""The rest of NEXMark's queries, as far as Spark can run them as streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millpond.workloads.queries.joins import winners
from millpond.workloads.queries.query import Form, PaperQuery, Windows
from millpond.workloads.queries.times import timed, tumbling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["REMAINING"]

_DAY_SECONDS = 24 * 60 * 60
_CHEAP, _DEAR = 10_000, 1_000_000


def _q0(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    return streams["bids"].select("auction", "bidder", "price", "ts", "extra")


def _q1(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    return streams["bids"].select(
        "auction", "bidder", F.expr("price * 89 div 100").alias("price"), "ts", "extra"
    )


def _q2(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    return streams["bids"].where("auction % 123 = 0").select("auction", "price")


def _q3(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    sellers = streams["persons"].where("state in ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    offered = streams["auctions"].where("category = 10")
    return sellers.join(offered.select(F.col("seller").alias("id"), F.col("id").alias("auction")), "id")


def _q6(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    sold = F.sort_array(F.collect_list(F.struct("expires", "id", "price")), asc=False)
    window = tumbling(windows, seconds=10, column="expires")
    last = winners(streams).groupBy(window, "seller").agg(F.slice(sold, 1, 10)["price"].alias("prices"))
    total = F.aggregate("prices", F.lit(0).cast("bigint"), lambda total, price: total + price)
    return last.select("window", "seller", (total / F.size("prices")).alias("price"))


def _q10(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    day, minute = F.date_format("ts", "yyyy-MM-dd").alias("day"), F.date_format("ts", "HH:mm").alias("minute")
    return streams["bids"].select("auction", "bidder", "price", "ts", "extra", day, minute)


def _q14(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    hour = F.hour("ts")
    time_of_day = (
        F.when((hour >= 8) & (hour <= 18), "day")
        .when((hour <= 6) | (hour >= 20), "night")
        .otherwise("twilight")
    )
    euros = F.expr("price * 89 div 100")
    letters = F.length("extra") - F.length(F.regexp_replace("extra", "c", ""))
    return (
        streams["bids"]
        .where((euros > 1_000_000) & (euros < 50_000_000))
        .select(
            "auction",
            "bidder",
            euros.alias("price"),
            time_of_day.alias("time_of_day"),
            "ts",
            "extra",
            letters.alias("letters"),
        )
    )


def _by_price(count: str, of: Column | None) -> list[Column]:
    """A count of all bids, and of those that are cheap, in between and dear; of different values where a column
    is given. Spark has no distinct counts on streams: sets of values give the same."""
    price = F.col("price")
    classes = {
        f"total_{count}": F.lit(True),
        f"cheap_{count}": price < _CHEAP,
        f"middle_{count}": (price >= _CHEAP) & (price < _DEAR),
        f"dear_{count}": price >= _DEAR,
    }
    if of is None:
        return [F.count_if(condition).alias(name) for name, condition in classes.items()]
    return [F.size(F.collect_set(F.when(condition, of))).alias(name) for name, condition in classes.items()]


def _statistics(frame: DataFrame, windows: Windows, *keys: str) -> DataFrame:
    figures = [
        *_by_price("bids", None),
        *_by_price("bidders", F.col("bidder")),
        *_by_price("auctions", F.col("auction")),
    ]
    return timed(frame).groupBy(tumbling(windows, seconds=_DAY_SECONDS), *keys).agg(*figures)


def _q15(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _statistics(streams["bids"], windows)


def _with_channel(bids: DataFrame) -> DataFrame:
    """Beam's bids have neither channel nor address, so both are made from what a bid has."""
    number = F.col("auction") % 1_000
    known = F.array(F.lit("apple"), F.lit("google"), F.lit("facebook"), F.lit("baidu"))
    own = F.concat(F.lit("channel-"), number.cast("string"))
    channel = F.when(F.col("bidder") % 2 == 0, F.get(known, (number % 4).cast("int"))).otherwise(own)
    url = F.concat(
        F.lit("https://www.nexmark.com/"),
        F.concat_ws("/", F.col("auction") % 7, F.col("bidder") % 7, F.col("price") % 7),
        F.lit("/item.htm?query=1&channel_id="),
        number,
    )
    return bids.withColumns({"channel": channel, "url": url})


def _q16(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    return _statistics(_with_channel(streams["bids"]), windows, "channel")


def _q17(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    prices = [made("price").alias(f"{made.__name__}_price") for made in (F.min, F.max, F.avg, F.sum)]
    days = timed(streams["bids"]).groupBy(tumbling(windows, seconds=_DAY_SECONDS), "auction")
    return days.agg(*_by_price("bids", None), *prices)


def _q21(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    numbers = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    channel_id = F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2)
    for channel, number in numbers.items():
        channel_id = F.when(F.lower("channel") == channel, number).otherwise(channel_id)
    bids = _with_channel(streams["bids"]).withColumn("channel_id", channel_id)
    return bids.select("auction", "bidder", "price", "channel", "channel_id").where("channel_id <> ''")


def _q22(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    directories = [F.split_part("url", F.lit("/"), F.lit(4 + i)).alias(f"dir{i + 1}") for i in range(3)]
    return _with_channel(streams["bids"]).select("auction", "bidder", "price", "channel", *directories)


_BID = ("auction", "bidder", "price", "ts", "extra")


def _stateless(name: str, title: str, plain: Form, columns: tuple[str, ...]) -> PaperQuery:
    return PaperQuery(
        name=name,
        title=title,
        origin="NEXMark",
        pattern="no state",
        streams=("bids",),
        mode="append",
        plain=plain,
        columns={"bids": columns},
    )


REMAINING: tuple[PaperQuery, ...] = (
    _stateless("q0", "Bids as they are", _q0, _BID),
    _stateless("q1", "Bids with their price in another currency", _q1, _BID),
    _stateless("q2", "Bids on every 123rd auction", _q2, ("auction", "price")),
    PaperQuery(
        name="q3",
        title="Who sells in category 10 in three states; both sides are kept for ever",
        origin="NEXMark",
        pattern="incremental join",
        streams=("persons", "auctions"),
        mode="append",
        plain=_q3,
        columns={"persons": ("id", "name", "city", "state"), "auctions": ("id", "seller", "category")},
    ),
    PaperQuery(
        name="q6",
        title="Average price of each seller's last ten auctions that closed in a window of 10 s; NEXMark has no "
        "such window, but Spark puts one aggregate over another only in append mode, and has no row windows",
        origin="NEXMark",
        pattern="interval join + RMW + AAR",
        streams=("auctions", "bids"),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_q6,
        columns={
            "auctions": ("id", "name", "seller", "category", "ts", "expires"),
            "bids": ("auction", "bidder", "price", "ts"),
        },
    ),
    _stateless("q10", "Bids with the day and minute that a log would be filed under", _q10, _BID),
    _stateless("q14", "Bids of some prices, with the time of day and a count of letters", _q14, _BID),
    PaperQuery(
        name="q15",
        title="Bids, bidders and auctions of each day by price class, put out when the day is over",
        origin="NEXMark",
        pattern="RMW, larger values",
        streams=("bids",),
        mode="append",
        lengths=("window", "slide"),
        plain=_q15,
        columns={"bids": ("auction", "bidder", "price", "ts")},
    ),
    PaperQuery(
        name="q16",
        title="As q15 for each channel; channels are made from bidder and auction, as Beam's bids have none",
        origin="NEXMark",
        pattern="RMW, larger values",
        streams=("bids",),
        mode="append",
        lengths=("window", "slide"),
        plain=_q16,
        columns={"bids": ("auction", "bidder", "price", "ts")},
    ),
    PaperQuery(
        name="q17",
        title="Bids and prices of each auction and day, put out when the day is over",
        origin="NEXMark",
        pattern="RMW",
        streams=("bids",),
        mode="append",
        lengths=("window", "slide"),
        plain=_q17,
        columns={"bids": ("auction", "price", "ts")},
    ),
    _stateless(
        "q21",
        "Bids with the number of their channel; channel and address are made, as Beam's bids have none",
        _q21,
        ("auction", "bidder", "price"),
    ),
    _stateless(
        "q22",
        "Bids with the directories of their address, which is made, as Beam's bids have none",
        _q22,
        ("auction", "bidder", "price"),
    ),
)
