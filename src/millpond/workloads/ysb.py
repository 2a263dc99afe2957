"""The Yahoo streaming benchmark's ad events: views, clicks and purchases of ads that belong to campaigns."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.workloads.draws import Draws, event_numbers, fixed_strings, timestamps, utc
from millpond.workloads.traffic import Traffic, traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

__all__ = ["Ysb", "parsed"]

_AD_TYPES = pa.array(["banner", "modal", "sponsored-search", "mail", "mobile"])
_EVENT_TYPES = pa.array(["view", "click", "purchase"])
_SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("page_id", pa.string()),
        ("ad_id", pa.string()),
        ("ad_type", pa.string()),
        ("event_type", pa.string()),
        ("event_time", utc()),
        ("ip_address", pa.string()),
    ]
)
_JSON_SCHEMA = pa.schema([("value", pa.string())])


class Ysb(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`zipf` is the exponent by which ads are drawn, 0 for all alike; users and pages are drawn uniformly."""

    rate: int = 10_000
    rate_stddev: float = 0.0
    seed: int = 1
    campaigns: int = 100
    ads_per_campaign: int = 10
    zipf: float = 1.0
    users: int = 100_000
    pages: int = 100_000
    format: Literal["columns", "json"] = "columns"

    def __post_init__(self) -> None:
        counts = (self.campaigns, self.ads_per_campaign, self.users, self.pages)
        if min(counts) < 1 or self.zipf < 0:
            raise ValueError("campaigns, adsPerCampaign, users and pages must be at least 1, zipf at least 0")

    @property
    def schema(self) -> pa.Schema:
        return _JSON_SCHEMA if self.format == "json" else _SCHEMA

    @property
    def traffic(self) -> Traffic:
        return traffic(self.rate, self.rate_stddev, self.seed)

    def campaign_of_ads(self) -> pa.Table:
        """The table that events are enriched from: `ad_id`, `campaign_id`."""
        ads = event_numbers(0, self.campaigns * self.ads_per_campaign)
        # Another field than the ads have, so that no campaign is called as an ad.
        names = _uuids(Draws(self.seed, ads // self.ads_per_campaign), 50)
        return pa.table({"ad_id": _ads(self.seed, len(ads)), "campaign_id": names})

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        numbers = event_numbers(first, count)
        event = Draws(self.seed, numbers)
        ads = self.campaigns * self.ads_per_campaign
        drawn = np.searchsorted(_cumulated(ads, self.zipf), event.unit(10), side="right")
        arrays = [
            _uuids(Draws(self.seed, event.below(11, self.users)), 30),
            _uuids(Draws(self.seed, event.below(12, self.pages)), 32),
            _ads(self.seed, ads).take(pa.array(np.minimum(drawn, ads - 1))),
            _AD_TYPES.take(pa.array(event.below(13, len(_AD_TYPES)))),
            _EVENT_TYPES.take(pa.array(event.below(14, len(_EVENT_TYPES)))),
            timestamps(self.traffic.due_us(numbers)),
            _addresses(event, 15),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
        return _json(batch) if self.format == "json" else batch


def parsed(lines: DataFrame) -> DataFrame:
    """The source's columns, from the lines that it gives with the option `format` at `json`."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    event = F.from_json("value", from_arrow_schema(_SCHEMA))
    return lines.select(event.alias("event")).select("event.*")


@lru_cache(maxsize=4)
def _ads(seed: int, count: int) -> pa.Array:
    return _uuids(Draws(seed, event_numbers(0, count)), 40)


@lru_cache(maxsize=4)
def _cumulated(count: int, exponent: float) -> NDArray[np.float64]:
    """The share of the draws that falls to an ad or one before it."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return np.cumsum(shares / shares.sum())


def _uuids(draws: Draws, field: int) -> pa.Array:
    drawn = np.stack([draws.bits(field), draws.bits(field + 1)], axis=1).view(np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    nibbles = np.stack([drawn >> np.uint8(4), drawn & np.uint8(15)], axis=2).reshape(len(drawn), 32)
    text = np.full((len(drawn), 36), ord("-"), dtype=np.uint8)
    written = 0
    for start, length in ((0, 8), (9, 4), (14, 4), (19, 4), (24, 12)):
        text[:, start : start + length] = digits[nibbles[:, written : written + length]]
        written += length
    return fixed_strings(text)


def _addresses(draws: Draws, field: int) -> pa.Array:
    parts = [pa.array(draws.below(field + part, 256)).cast(pa.string()) for part in range(4)]
    return pc.binary_join_element_wise(*parts, ".")


def _json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Nothing in the values wants escaping."""
    pieces: list[pa.Array | str] = []
    for number, name in enumerate(batch.schema.names):
        column = batch.column(number)
        if name == "event_time":
            column = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
        pieces += [f'{"," if number else "{"}"{name}":"', column, '"']
    text = pc.binary_join_element_wise(*pieces, "}", "")
    return pa.RecordBatch.from_arrays([text], schema=_JSON_SCHEMA)
