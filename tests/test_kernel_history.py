"""Looking back into a long past: what is read of it, when it is read, and what it takes in memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond._kernel import JoinLayout
from tests.test_kernel_join import Kernel, Row

FURTHEST, NEAREST, SLICE = 300, 290, 10
INPUT = pa.schema(
    [("k", pa.int64()), ("ts", pa.int64()), ("far", pa.int64()), ("near", pa.int64()), ("expiry", pa.int64())]
)
KEYS = 400


def layout() -> JoinLayout:
    """Each row of the left side with those of the right that are 290 to 300 older."""
    left: dict[str, Any] = {
        "input": INPUT,
        "keys": [0],
        "matchable": None,
        "late": 1,
        "expiry": 4,
        "comparands": [2, 3],
        "times": [],
        "expires_after_us": 0,
        "kept": [0, 1],
        "null_keys": False,
        "outer": False,
        "once": False,
    }
    right = left | {"comparands": [1, 1], "times": [0, 1], "expires_after_us": FURTHEST}
    return JoinLayout(left, right, ["<=", ">="], SLICE)


def now_at(k: int, ts: int) -> Row:
    return {"k": k, "ts": ts, "far": ts - FURTHEST, "near": ts - NEAREST, "expiry": ts - NEAREST}


def past_at(k: int, ts: int) -> Row:
    return {"k": k, "ts": ts, "far": None, "near": None, "expiry": ts + FURTHEST}


class Unhurried(random.Random):
    """A batch is flushed at its end alone."""

    def random(self) -> float:
        return 1.0


class History:
    """A batch brings each key's row of a moment, on both sides; a batch is ten moments after the last."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        self.kernel = Kernel(layout(), directory, memory_bytes, INPUT)
        self.at = 0
        self.chance = Unhurried()

    def stats(self) -> dict[str, int]:
        return self.kernel.store.stats()

    def batch(self) -> list[tuple[Any, ...]]:
        self.at += SLICE
        rows = [[side(k, self.at) for k in range(KEYS)] for side in (now_at, past_at)]
        found = self.kernel.take((rows[0], rows[1]), self.at - 15, self.chance)
        self.kernel.commit()
        for part, runs in list(self.kernel.runs.items()):
            if len(runs) > 1:
                self.kernel.merge(part, 0, len(runs))
        return found

    def build(self) -> None:
        while self.at < FURTHEST:
            self.batch()


def test_a_row_finds_the_rows_of_its_range_of_the_past_and_no_others(tmp_path: Path) -> None:
    history = History(tmp_path, 0)
    history.build()
    found = history.batch()
    wanted = [(k, history.at, k, then) for k in range(KEYS) for then in (history.at - 300, history.at - 290)]
    assert sorted(found) == sorted(wanted)


def test_only_the_range_that_is_asked_for_is_read(tmp_path: Path) -> None:
    history = History(tmp_path, 0)
    history.build()
    before = history.stats()
    history.batch()
    after = history.stats()
    read = after["read_bytes"] - before["read_bytes"]
    # Two of thirty parts, each in one read.
    assert 0 < read < after["run_bytes"] / 10
    assert after["read_requests"] - before["read_requests"] <= 4


def test_what_time_makes_readable_is_in_memory_before_it_is_asked_for(tmp_path: Path) -> None:
    history = History(tmp_path, 60_000)
    history.build()
    history.batch()
    history.kernel.store.read_ahead()
    ahead = history.stats()["read_ahead"]
    assert ahead > 0
    for _ in range(3):
        before = history.stats()
        assert len(history.batch()) == 2 * KEYS
        after = history.stats()
        assert after["disk_probes"] == before["disk_probes"]
        assert after["memory_hits"] - before["memory_hits"] == 2 * KEYS
        assert after["read_ahead_hits"] - before["read_ahead_hits"] > 0
        history.kernel.store.read_ahead()


@pytest.mark.parametrize("memory_bytes", [10_000, 60_000])
def test_a_long_past_keeps_to_its_memory(tmp_path: Path, memory_bytes: int) -> None:
    history = History(tmp_path, memory_bytes)
    history.build()
    history.batch()
    history.kernel.store.read_ahead()
    stats = history.stats()
    assert stats["run_bytes"] > 300_000
    # Beside blocks, indexes and filters a run takes a little in any case.
    assert stats["memory_bytes"] < memory_bytes + 200 * stats["runs"]


def test_a_restart_reads_on_where_it_was(tmp_path: Path) -> None:
    history = History(tmp_path, 20_000)
    history.build()
    history.kernel.restart()
    for _ in range(3):
        assert len(history.batch()) == 2 * KEYS
