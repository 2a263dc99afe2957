"""Deduplication as the service does it: against a model, across tasks, restarts and repeated tries."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.service_kit import Driver, Group, RowsWithNulls, first_rows

NEVER = 2**63 - 1


class Model:
    """Spark's order: the batch's rows, then what expires at the watermark before the batch."""

    def __init__(self, keys: tuple[int, ...], *, timed: bool, forget_after_us: int | None) -> None:
        self._keys = keys
        self._timed = timed or 2 in keys or forget_after_us is not None
        self._forget_after_us = forget_after_us
        self._seen: dict[tuple[int | None, ...], int] = {}
        self._watermark_us = 0

    def run(self, rows: RowsWithNulls, watermark_us: int) -> list[Group]:
        new: list[Group] = []
        for row in rows:
            time = row[2]
            if self._timed and time is not None and time <= self._watermark_us:
                continue
            key = tuple(row[i] for i in self._keys)
            if key not in self._seen:
                self._seen[key] = self._expiry(time)
                new.append(row)  # type: ignore[arg-type]
        before, self._watermark_us = self._watermark_us, watermark_us
        self._seen = {key: expiry for key, expiry in self._seen.items() if expiry > before}
        return sorted(new, key=repr)

    def _expiry(self, time: int | None) -> int:
        if self._forget_after_us is not None:
            return (time or 0) + self._forget_after_us
        return time if 2 in self._keys and time is not None else NEVER

    @property
    def keys(self) -> int:
        return len(self._seen)


def random_rows(dice: random.Random, now_us: int) -> RowsWithNulls:
    return [
        (
            dice.choice((None, *range(30))),
            dice.randrange(3),
            None if dice.random() < 0.05 else now_us + dice.randrange(-40, 60),
        )
        for _ in range(dice.randrange(1, 80))
    ]


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1 << 16])
@pytest.mark.parametrize(
    ("keys", "timed", "forget_after_us"),
    [((0,), False, None), ((0,), True, None), ((0, 2), False, None), ((0, 1), False, 25), ((0,), False, 0)],
    ids=["for ever", "late rows", "time in the key", "within a delay", "within no time"],
)
def test_new_keys_are_those_of_a_model(
    tmp_path: Path, keys: tuple[int, ...], timed: bool, forget_after_us: int | None, memory_bytes: int
) -> None:
    dice = random.Random(repr((keys, timed, forget_after_us, memory_bytes)))
    spec = first_rows(keys, timed=timed, forget_after_us=forget_after_us)
    model = Model(keys, timed=timed, forget_after_us=forget_after_us)
    now_us = 0
    for _ in range(3):
        # Each driver takes over from what the last one committed.
        with Driver(tmp_path / "state", spec=spec, mode="append", memory_bytes=memory_bytes) as driver:
            for _ in range(6):
                now_us += dice.randrange(30)
                rows = random_rows(dice, now_us)
                watermark_us = max(driver.watermark_us, now_us - 20)
                at = driver.begin()
                tried = driver.stage(at, random_rows(dice, now_us))
                driver.seal(at, [tried], watermark_us)
                at = driver.begin()  # what the try before did is forgotten
                driver.seal(at, [driver.stage(at, rows)], watermark_us)
                found = sorted(driver.outputs(at), key=repr)
                assert found == model.run(rows, watermark_us)
                reply = driver.commit(at, watermark_us)
                if 2 not in keys:  # keys that hold their time stay until their whole slice ends
                    assert reply.stats[0].rows == model.keys


def test_the_first_task_wins_a_key(tmp_path: Path) -> None:
    with Driver(tmp_path / "state", spec=first_rows(), mode="append") as driver:
        at = driver.begin()
        receipts = [driver.stage(at, [(1, task, 5), (10 + task, 0, 5)], task=task) for task in range(3)]
        driver.seal(at, receipts)
        assert driver.outputs(at) == [(1, 0, 5), (10, 0, 5), (11, 0, 5), (12, 0, 5)]


def test_late_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    with Driver(tmp_path / "state", spec=first_rows(timed=True), mode="append") as driver:
        driver.run([(1, 0, 50)], watermark_us=40)
        at = driver.begin()
        receipt = driver.stage(at, [(2, 0, 40), (3, 0, 41), (4, 0, None)])
        assert (receipt.input_rows, receipt.late_rows) == (3, 1)
        driver.seal(at, [receipt], 40)
        assert driver.outputs(at) == [(3, 0, 41), (4, 0, None)]
