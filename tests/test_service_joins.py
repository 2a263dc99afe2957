"""Joins in a state service: against a model, over tries, restarts, kills and with next to no memory; and what looking
back reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.service_kit import Driver, Group, joined

FURTHEST, NEAREST = 30, 20
Row = tuple[int, int, int]
"""Key, value, time."""


def _left(row: Row) -> tuple[int, ...]:
    return (*row, row[2] - FURTHEST, row[2] - NEAREST, row[2] - NEAREST)


def _right(row: Row) -> tuple[int, ...]:
    return (*row, 0, 0, row[2] + FURTHEST)


class Model:
    """Spark's order: the batch's rows, then what expires at the watermark before the batch."""

    def __init__(self, *, outer: bool) -> None:
        self._outer = outer
        self._left: dict[Row, bool] = {}
        self._right: list[Row] = []

    def run(self, left: list[Row], right: list[Row], before_us: int) -> list[Group]:
        new = [[row for row in rows if row[2] > before_us] for rows in (left, right)]
        pairs = [(one, other) for one in new[0] for other in [*self._right, *new[1]]]
        pairs += [(one, other) for one in self._left for other in new[1]]
        found = [
            (one, other)
            for one, other in pairs
            if one[0] == other[0] and one[2] - FURTHEST <= other[2] <= one[2] - NEAREST
        ]
        self._left |= dict.fromkeys(new[0], False)
        self._left |= {one: True for one, _ in found}
        out: list[Group] = [(*one[:2], *other[:2]) for one, other in found]
        gone = {row: matched for row, matched in self._left.items() if row[2] - NEAREST <= before_us}
        if self._outer:
            out += [(*row[:2], None, None) for row, matched in gone.items() if not matched]  # type: ignore[list-item]
        self._left = {row: matched for row, matched in self._left.items() if row not in gone}
        self._right = [row for row in [*self._right, *new[1]] if row[2] + FURTHEST > before_us]
        return sorted(out, key=repr)


def run(
    driver: Driver, left: list[Row], right: list[Row], watermark_us: int, *, commit: bool = True
) -> list[Group]:
    at = driver.begin()
    receipts = [
        driver.stage(at, list(map(_left, left)), side=0),
        driver.stage(at, list(map(_right, right)), side=1),
    ]
    driver.seal(at, receipts, watermark_us)
    found = sorted(driver.outputs(at), key=repr)
    if commit:
        driver.commit(at, watermark_us)
    return found


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1 << 14])
@pytest.mark.parametrize("outer", [False, True])
def test_pairs_are_those_of_a_model_over_tries_restarts_and_kills(
    tmp_path: Path, outer: bool, memory_bytes: int
) -> None:
    dice = random.Random(repr((outer, memory_bytes)))
    model = Model(outer=outer)
    spec = joined("left outer" if outer else "inner")
    now_us, number, total = 0, 0, 0

    def rows() -> list[Row]:
        nonlocal number
        given = []
        for _ in range(dice.randrange(40)):
            number += 1
            given.append((dice.randrange(12), number, now_us + dice.randrange(-15, 15)))
        return given

    for _ in range(4):
        # Each driver takes over from what the last one committed; every other service is killed in a batch.
        with Driver(
            tmp_path / "state", spec=spec, mode="append", memory_bytes=memory_bytes, max_runs=2
        ) as driver:
            for _ in range(6):
                now_us += dice.randrange(15)
                left, right = rows(), rows()
                watermark_us = max(driver.watermark_us, now_us - 10)
                before_us = driver.watermark_us
                tried = run(driver, left, right, watermark_us, commit=False)
                found = run(driver, left, right, watermark_us)
                assert tried == found == model.run(left, right, before_us)
                total += len(found)
            run(driver, rows(), rows(), driver.watermark_us, commit=False)
            if dice.random() < 0.5:
                driver.service.kill()
    assert total > 200


def test_looking_back_reads_the_range_of_time_and_no_more(tmp_path: Path) -> None:
    keys, step = 300, 10
    spec = joined(furthest_us=300, nearest_us=290)

    def at(time: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        left = [(k, 0, time, time - 300, time - 290, time - 290) for k in range(keys)]
        return left, [(k, 0, time, 0, 0, time + 300) for k in range(keys)]

    with Driver(tmp_path / "state", spec=spec, mode="append", shards=1, memory_bytes=1 << 15) as driver:
        read, rows = [], []
        for time in range(step, 40 * step, step):
            batch = driver.begin()
            receipts = [driver.stage(batch, side, side=number) for number, side in enumerate(at(time))]
            rows.append(sum(driver.seal(batch, receipts, time - 5)))
            stats = driver.commit(batch, time - 5).stats[0]
            read.append(stats.read_bytes)
        # From here on each row has two behind it; before there was nothing to read.
        assert rows[-1] == 2 * keys
        assert rows[10] == read[10] == 0
        a_batch = (read[-1] - read[-6]) / 5
        assert 0 < a_batch < stats.run_bytes / 8
        assert stats.memory_bytes < (1 << 15) + 200 * stats.runs
