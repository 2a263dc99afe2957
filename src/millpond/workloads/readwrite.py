"""Records to count by id: ten million ids, each record with 100 bytes that the state keeps too."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from millpond.workloads.draws import Draws, event_numbers, fixed_strings
from millpond.workloads.traffic import Traffic, traffic

__all__ = ["ReadWrite"]

_SCHEMA = pa.schema([("id", pa.int64()), ("padding", pa.string())])


class ReadWrite(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Ids are drawn uniformly."""

    rate: int = 100_000
    rate_stddev: float = 0.0
    seed: int = 1
    ids: int = 10_000_000
    padding_bytes: int = 100

    def __post_init__(self) -> None:
        if not 1 <= self.ids <= 1 << 32 or self.padding_bytes < 1:
            raise ValueError("ids must be from 1 to 2**32, paddingBytes at least 1")

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    @property
    def traffic(self) -> Traffic:
        return traffic(self.rate, self.rate_stddev, self.seed)

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        event = Draws(self.seed, event_numbers(first, count))
        padding = fixed_strings(event.letters(20, self.padding_bytes))
        return pa.RecordBatch.from_arrays([pa.array(event.below(10, self.ids)), padding], schema=_SCHEMA)
