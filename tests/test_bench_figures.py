"""Percentiles are values that were measured; the floor is taken off percentile by percentile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.bench.figures import PERCENTILES, above_floor, percentiles, rows_per_s


def test_percentiles_of_a_hundred_values() -> None:
    found = percentiles([float(n) for n in range(100, 0, -1)])
    assert found == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 100.0, "max": 100.0}


def test_one_value_is_every_percentile() -> None:
    assert set(percentiles([7.0]).values()) == {7.0}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_at_least_the_share_lies_at_or_below_a_percentile_and_less_below_it(values: list[float]) -> None:
    found = percentiles(values)
    for name, share in PERCENTILES.items():
        assert found[name] in values
        assert sum(value <= found[name] for value in values) >= share * len(values)
        assert sum(value < found[name] for value in values) < share * len(values)


def test_no_batches_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match="warm-up"):
        percentiles([])


def test_above_floor_is_a_difference_of_percentiles() -> None:
    engine, floor = percentiles([10.0, 30.0]), percentiles([4.0, 5.0])
    assert above_floor(engine, floor) == {"p50": 6.0, "p95": 25.0, "p99": 25.0, "p999": 25.0, "max": 25.0}


def test_rate_is_rows_over_the_time_of_their_batches() -> None:
    assert rows_per_s(1_000, 500.0) == 2_000.0
