"""Orders and the shipping updates of the same orders: some orders come twice, and all come in bursts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from millpond.workloads.draws import Draws, event_numbers, timestamps, utc
from millpond.workloads.traffic import Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

__all__ = ["BurstTraffic", "Logistics", "orders", "shipments"]

_GROUP, _ORDERS_IN_GROUP = 8, 3
"""Of each eight events the first three are orders, the others shipping updates."""
_STATUSES = pa.array(["packed", "shipped", "in transit", "at the door", "delivered"])
_SECOND_US = 1_000_000
_ORDER = pa.struct(
    [
        ("order_id", pa.int64()),
        ("customer", pa.int64()),
        ("item", pa.int64()),
        ("quantity", pa.int32()),
        ("amount", pa.float64()),
        ("ts", utc()),
    ]
)
_SHIPMENT = pa.struct(
    [("order_id", pa.int64()), ("status", pa.string()), ("depot", pa.int32()), ("ts", utc())]
)
_SCHEMA = pa.schema([("order", _ORDER), ("shipment", _SHIPMENT), ("ts", utc())])


class Logistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`rate` holds between the bursts; in them events come `burst_factor` times as fast.

    A shipping update is about one of the newest `open_orders` orders, and the older the order, the further the
    shipment. An order that comes again is among the newest `repeat_within` and the same in every column, its time
    included. Amounts are in steps of 1/1024.
    """

    rate: int = 10_000
    burst_factor: int = 5
    burst_seconds: int = 10
    seconds_between_bursts: int = 50
    seed: int = 1
    repeat_percent: int = 10
    repeat_within: int = 10_000
    open_orders: int = 100_000
    customers: int = 1_000_000
    items: int = 100_000
    depots: int = 100

    def __post_init__(self) -> None:
        spans = (self.rate, self.burst_factor, self.burst_seconds, self.seconds_between_bursts)
        counts = (self.repeat_within, self.open_orders, self.customers, self.items, self.depots)
        if min(*spans, *counts) < 1 or not 0 <= self.repeat_percent <= 100:
            raise ValueError("all options of logistics must be at least 1, repeatPercent from 0 to 100")

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    @property
    def traffic(self) -> Traffic:
        return BurstTraffic(
            quiet_rate=self.rate,
            burst_rate=self.rate * self.burst_factor,
            quiet_us=self.seconds_between_bursts * _SECOND_US,
            burst_us=self.burst_seconds * _SECOND_US,
        )

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        numbers = event_numbers(first, count)
        place = numbers % _GROUP
        is_order = place < _ORDERS_IN_GROUP
        # The newest order that was due by then.
        newest = numbers // _GROUP * _ORDERS_IN_GROUP + np.minimum(place, _ORDERS_IN_GROUP - 1)
        event = Draws(self.seed, numbers)
        times = timestamps(self.traffic.due_us(numbers))
        columns = [
            self._orders(event, newest, ~is_order),
            self._shipments(event, newest, times, is_order),
            times,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _orders(self, event: Draws, newest: NDArray[np.int64], absent: NDArray[np.bool_]) -> pa.Array:
        again = event.below(10, 100) < self.repeat_percent
        number = newest - np.where(again, _up_to(event, 11, np.minimum(newest, self.repeat_within)), 0)
        sent = number // _ORDERS_IN_GROUP * _GROUP + number % _ORDERS_IN_GROUP
        # What an order says follows from its number, so that it says the same when it comes again.
        order = Draws(self.seed, number)
        columns = [
            pa.array(number),
            pa.array(order.below(20, self.customers)),
            pa.array(order.below(21, self.items)),
            pa.array((1 + order.below(22, 9)).astype(np.int32)),
            pa.array(order.parts_of_1024(23, 1024 * 1024)),
            timestamps(self.traffic.due_us(sent)),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_ORDER), mask=pa.array(absent))

    def _shipments(
        self, event: Draws, newest: NDArray[np.int64], times: pa.Array, absent: NDArray[np.bool_]
    ) -> pa.Array:
        age = _up_to(event, 12, np.minimum(newest, self.open_orders - 1))
        columns = [
            pa.array(newest - age),
            _STATUSES.take(pa.array(age * len(_STATUSES) // self.open_orders)),
            pa.array(event.below(13, self.depots).astype(np.int32)),
            times,
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_SHIPMENT), mask=pa.array(absent))


def _up_to(draws: Draws, field: int, largest: NDArray[np.int64]) -> NDArray[np.int64]:
    """From 0 to each event's own bound, which is included."""
    return np.asarray(draws.unit(field) * (largest + 1), dtype=np.int64)


class BurstTraffic(msgspec.Struct, frozen=True):
    """Quiet and bursts in turn, each at a rate of its own, beginning with quiet."""

    quiet_rate: int
    burst_rate: int
    quiet_us: int
    burst_us: int

    def due_us(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        quiet, whole = self._events()
        turn, place = numbers // whole, numbers % whole
        in_quiet = place * _SECOND_US // self.quiet_rate
        in_burst = self.quiet_us + (place - quiet) * _SECOND_US // self.burst_rate
        within = np.where(place < quiet, in_quiet, in_burst)
        return np.asarray(turn * (self.quiet_us + self.burst_us) + within, dtype=np.int64)

    def available(self, elapsed_us: int) -> int:
        if elapsed_us < 0:
            return 0
        quiet, whole = self._events()
        turn, rest_us = divmod(elapsed_us, self.quiet_us + self.burst_us)
        if rest_us < self.quiet_us:
            return turn * whole + _due_by(rest_us, self.quiet_rate)
        return turn * whole + quiet + _due_by(rest_us - self.quiet_us, self.burst_rate)

    def _events(self) -> tuple[int, int]:
        """How many there are in a quiet time, and in it and a burst."""
        quiet = self.quiet_us * self.quiet_rate // _SECOND_US
        return quiet, quiet + self.burst_us * self.burst_rate // _SECOND_US


def _due_by(elapsed_us: int, rate: int) -> int:
    return ((elapsed_us + 1) * rate - 1) // _SECOND_US + 1


def orders(events: DataFrame) -> DataFrame:
    return events.where(events["order"].isNotNull()).select("order.*")


def shipments(events: DataFrame) -> DataFrame:
    return events.where(events["shipment"].isNotNull()).select("shipment.*")
