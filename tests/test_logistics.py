"""Generated orders and shipments: the same however ranges are cut, repeated, in bursts, about the same orders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.workloads.draws import event_numbers
from millpond.workloads.logistics import Logistics


def _part(rows: pa.RecordBatch, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows[kind].to_pylist() if row is not None]


def test_ranges_are_the_same_however_cut() -> None:
    generator = Logistics(rate=500)
    whole = generator.batch(1_000, 5_000)
    whole.validate(full=True)
    assert whole.schema.equals(generator.schema)
    cuts = [1_000, 1_001, 2_500, 4_096, 6_000]
    pieces = [generator.batch(start, end - start) for start, end in itertools.pairwise(cuts)]
    rows = [row for piece in pieces for row in piece.to_pylist()]
    assert rows == whole.to_pylist()


def test_another_seed_gives_other_rows() -> None:
    assert Logistics(seed=1).batch(0, 100) == Logistics(seed=1).batch(0, 100)
    assert Logistics(seed=1).batch(0, 100) != Logistics(seed=2).batch(0, 100)


def test_an_order_that_comes_again_is_the_same_in_every_column() -> None:
    orders = _part(Logistics(repeat_percent=30, repeat_within=100).batch(0, 20_000), "order")
    known: dict[int, dict[str, Any]] = {}
    for order in orders:
        assert known.setdefault(order["order_id"], order) == order
    assert 0.15 < 1 - len(known) / len(orders) < 0.31
    assert len(_part(Logistics(repeat_percent=0).batch(0, 20_000), "order")) == 7_500


def test_shipments_are_about_open_orders_and_go_on_with_their_age() -> None:
    rows = Logistics(open_orders=1_000, repeat_percent=0).batch(80_000, 8_000)
    newest = -1
    statuses: dict[str, list[int]] = {}
    for row in rows.to_pylist():
        if row["order"]:
            newest = row["order"]["order_id"]
        else:
            age = newest - row["shipment"]["order_id"]
            assert 0 <= age < 1_000
            statuses.setdefault(row["shipment"]["status"], []).append(age)
    spans = [(min(ages), max(ages)) for ages in map(statuses.get, _STAGES) if ages]
    assert len(spans) == len(_STAGES)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


_STAGES = ("packed", "shipped", "in transit", "at the door", "delivered")


def test_bursts_come_between_quiet_times() -> None:
    traffic = Logistics(rate=100, burst_factor=5, burst_seconds=10, seconds_between_bursts=50).traffic
    seconds = traffic.due_us(event_numbers(0, 20_000)) // 1_000_000
    counts = np.bincount(seconds)
    assert list(counts) == ([100] * 50 + [500] * 10) * 2


def test_events_are_available_from_the_moment_they_are_due() -> None:
    traffic = Logistics(rate=1_500, burst_seconds=2, seconds_between_bursts=3).traffic
    due = traffic.due_us(event_numbers(0, 60_000))
    assert (np.diff(due) >= 0).all()
    for number in (0, 1, 4_499, 4_500, 4_501, 19_499, 19_500, 33_333):
        moment = int(due[number])
        assert traffic.available(moment) == np.searchsorted(due, moment, side="right")
        assert traffic.available(moment - 1) == np.searchsorted(due, moment - 1, side="right")


@pytest.mark.parametrize("option", [{"rate": 0}, {"repeat_percent": 101}, {"open_orders": 0}])
def test_options_that_make_no_stream_are_refused(option: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Logistics(**option)
