"""NEXMark's events, equal to Apache Beam's, and their three kinds as frames of their own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa

from millpond.workloads.traffic import FixedTraffic, Traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millpond._kernel import Nexmark as Kernel

__all__ = ["KINDS", "Nexmark", "auctions", "bids", "parsed", "persons", "register_views"]

FIRST_ID = 1_000
"""Of people and of auctions."""
KINDS = ("person", "auction", "bid")
"""By `event_type`."""


class Nexmark(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The defaults are Beam's. People and auctions stay active until as many newer ones came as `active_people` and
    `in_flight_auctions` say; the hot ones change with every so many new ids as the intervals say.

    `kinds` leaves out events of other kinds, `columns` leaves out columns; what is left out costs nothing.
    """

    rate: int = 10_000
    out_of_order_group: int = 1
    hot_auction_ratio: int = 2
    hot_seller_ratio: int = 4
    hot_bidder_ratio: int = 4
    hot_auction_interval: int = 100
    hot_seller_interval: int = 100
    hot_bidder_interval: int = 100
    in_flight_auctions: int = 100
    active_people: int = 1_000
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    kinds: tuple[str, ...] = KINDS
    columns: tuple[str, ...] = ("event_type", *KINDS, "ts")
    format: Literal["columns", "json"] = "columns"

    def __post_init__(self) -> None:
        # The kernel knows what is allowed; better now than in the first task.
        _ = self.schema

    @property
    def schema(self) -> pa.Schema:
        return self.batch(0, 0).schema

    @property
    def traffic(self) -> Traffic:
        return FixedTraffic(events=1, each_us=(1_000_000 + self.rate // 2) // self.rate)

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        kernel = _kernel(self)
        if self.format == "json":
            return kernel.json_lines(first, count, kinds=list(self.kinds))
        return kernel.batch(first, count, kinds=list(self.kinds), columns=list(self.columns))


@lru_cache(maxsize=8)
def _kernel(settings: Nexmark) -> Kernel:
    from millpond._kernel import Nexmark as Kernel

    return Kernel(
        events_per_second=settings.rate,
        out_of_order_group=settings.out_of_order_group,
        hot_auction_ratio=settings.hot_auction_ratio,
        hot_seller_ratio=settings.hot_seller_ratio,
        hot_bidder_ratio=settings.hot_bidder_ratio,
        hot_auction_interval=settings.hot_auction_interval,
        hot_seller_interval=settings.hot_seller_interval,
        hot_bidder_interval=settings.hot_bidder_interval,
        in_flight_auctions=settings.in_flight_auctions,
        active_people=settings.active_people,
        person_bytes=settings.person_bytes,
        auction_bytes=settings.auction_bytes,
        bid_bytes=settings.bid_bytes,
    )


def parsed(lines: DataFrame) -> DataFrame:
    """The source's columns, from the lines that it gives with the option `format` at `json`."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    event = F.from_json("value", from_arrow_schema(Nexmark().schema))
    return lines.select(event.alias("event")).select("event.*")


def persons(events: DataFrame) -> DataFrame:
    return _of_kind(events, "person")


def auctions(events: DataFrame) -> DataFrame:
    return _of_kind(events, "auction")


def bids(events: DataFrame) -> DataFrame:
    return _of_kind(events, "bid")


def register_views(events: DataFrame) -> None:
    """Makes `persons`, `auctions` and `bids` temporary views of the session."""
    for name, view in (("persons", persons), ("auctions", auctions), ("bids", bids)):
        view(events).createOrReplaceTempView(name)


def _of_kind(events: DataFrame, kind: str) -> DataFrame:
    """The kind's own columns; `ts` is among them."""
    return events.where(events[kind].isNotNull()).select(f"{kind}.*")
