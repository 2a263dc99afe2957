"""The search for the highest rate: what counts as keeping up, and which rate comes next."""

from __future__ import annotations

import pytest

from millpond.bench.job import Arrivals, BatchTime, Probe
from millpond.bench.rates import MOST_PROBES, is_sustained, max_rate, next_rate, too_far_behind


def search(capacity: float, start: int = 8_000) -> list[Probe]:
    probes: list[Probe] = []
    while (rate := next_rate(probes, start)) is not None:
        assert rate not in {each.rate for each in probes if each.sustained}, (
            "what is known is not tried again"
        )
        probes.append(Probe(rate=rate, sustained=rate <= capacity, delay_p95_ms=None))
    return probes


@pytest.mark.parametrize("capacity", [60, 700, 8_000, 8_100, 31_000, 250_000, 1_900_000])
def test_the_search_comes_near_to_what_an_engine_can_do(capacity: int) -> None:
    probes = search(capacity)
    found = max_rate(probes)
    assert found is not None
    assert capacity / 1.2 <= found <= capacity
    assert len(probes) <= MOST_PROBES


def test_an_engine_that_keeps_up_with_nothing_has_no_rate() -> None:
    assert max_rate(search(0)) is None


def test_an_engine_that_keeps_up_with_everything_ends_the_search() -> None:
    found = max_rate(search(float("inf")))
    assert found is not None
    assert found > 1_000_000


def test_a_bad_moment_is_not_taken_for_the_limit() -> None:
    unlucky = [Probe(rate=8_000, sustained=False, delay_p95_ms=None)]
    assert next_rate(unlucky, 8_000) == 8_000
    recovered = [*unlucky, Probe(rate=8_000, sustained=True, delay_p95_ms=1.0)]
    assert next_rate(recovered, 8_000) == 16_000
    assert max_rate(recovered) == 8_000
    assert next_rate([*unlucky, *unlucky], 8_000) == 4_000


def test_a_lucky_run_above_a_failed_one_does_not_count() -> None:
    probes = [
        Probe(rate=rate, sustained=good, delay_p95_ms=1.0)
        for rate, good in ((10, True), (20, False), (40, True))
    ]
    assert max_rate(probes) == 10


def batches(delays_s: list[float]) -> list[BatchTime]:
    return [
        BatchTime(
            100, 500.0, {}, arrivals=Arrivals(started_s=float(at), delays=((delay * 1_000, 50), (10.0, 50)))
        )
        for at, delay in enumerate(delays_s)
    ]


def test_steady_delays_are_sustained_also_with_a_slow_batch_among_them() -> None:
    assert is_sustained(batches([1.2] * 20), 1.0)
    assert is_sustained(batches([1.2] * 15 + [6.0] + [1.2] * 4), 1.0)


def test_delays_that_grow_are_not() -> None:
    # A tenth too much: each second leaves a tenth of a second of work behind.
    assert not is_sustained(batches([1.0 + 0.1 * at for at in range(20)]), 1.0)
    assert is_sustained(batches([1.0 + 0.01 * at for at in range(20)]), 1.0)


def test_too_few_batches_are_not_sustained() -> None:
    assert not is_sustained(batches([5.0, 5.0]), 1.0)


def test_a_batch_that_takes_many_triggers_ends_a_try() -> None:
    assert not too_far_behind(4.0, 1.0)
    assert too_far_behind(9.0, 1.0)
