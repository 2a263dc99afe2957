"""Count windows in a state service: what is given out when, over tries, tasks and restarts, merged and as rows."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from millpond.semantics.operator import OperatorSpec
from tests.service_kit import Driver, Group, counted, counted_rows


def _rows(keys: list[int], first: int = 0) -> list[tuple[int, ...]]:
    return [(key, first + i, 0) for i, key in enumerate(keys)]


def test_a_window_is_given_out_with_the_row_that_fills_it(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=counted(3), mode="append") as driver:
        assert driver.run(_rows([1, 1, 2])) == []
        assert driver.run(_rows([2, 1, 1], first=10)) == [(1, 0, 0 + 1 + 11)]
        # Two windows of a key in one batch, the first of which was begun before.
        assert driver.run(_rows([1, 1, 1, 1, 1], first=20)) == [(1, 1, 12 + 20 + 21), (1, 2, 22 + 23 + 24)]
        assert driver.run([]) == []


def test_update_mode_gives_windows_that_are_not_full_too(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=counted(3), mode="update") as driver:
        assert driver.run(_rows([1, 1, 2])) == [(1, 0, 1), (2, 0, 2)]
        assert driver.run(_rows([1, 1], first=10)) == [(1, 0, 11), (1, 1, 11)]
        assert driver.run(_rows([1, 1], first=20)) == [(1, 1, 11 + 20 + 21)]


def test_rows_of_several_tasks_count_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=counted_rows(2), mode="append") as driver:
        at = driver.begin()
        later = driver.stage(at, _rows([1, 1], first=10), task=1)
        earlier = driver.stage(at, _rows([1], first=5), task=0)
        driver.seal(at, [later, earlier])
        assert driver.outputs(at) == [(1, 5, 0), (1, 10, 0)]
        driver.commit(at)
        assert driver.run(_rows([1], first=20)) == [(1, 11, 1), (1, 20, 1)]


@pytest.mark.parametrize("rows", [False, True], ids=["merged", "rows"])
def test_windows_go_on_over_restarts_with_next_to_no_memory(tmp_path: Path, rows: bool) -> None:
    dice = random.Random(7)
    size = 5
    given: list[Group] = []
    sent: dict[int, list[int]] = defaultdict(list)
    value = 0
    for _ in range(6):
        spec: OperatorSpec = counted_rows(size) if rows else counted(size)
        with Driver(
            tmp_path, spec=spec, mode="append", memory_bytes=1 << 20, write_buffer_bytes=1 << 16, max_runs=2
        ) as driver:
            for _ in range(4):
                batch = []
                for _ in range(dice.randrange(3_000)):
                    key = dice.randrange(600)
                    batch.append((key, value, dice.randrange(100)))
                    sent[key].append(value)
                    value += 1
                given += driver.run(batch)
    expected: list[Group] = []
    for key, values in sent.items():
        for number in range(len(values) // size):
            window = values[number * size : (number + 1) * size]
            expected += [(key, v, number) for v in window] if rows else [(key, number, sum(window))]
    assert sorted(given) == sorted(expected)


def test_windows_that_are_expected_next_are_read_ahead(tmp_path: Path) -> None:
    def run(directory: Path, *, predicted: bool) -> tuple[int, int]:
        with Driver(directory, spec=counted_rows(2), mode="append", read_batch_ratio=0.1) as driver:
            # The keys below 100 are said to be read first.
            driver.run([(key, key, key if predicted else None) for key in range(1_000)])
            at = driver.begin()
            driver.client.abort(at)
            at = driver.begin()
            driver.seal(at, [driver.stage(at, [(key, -key, None) for key in range(100)])])
            assert len(driver.outputs(at)) == 200
            (stats,) = driver.commit(at).stats
            return stats.read_ahead_hits, stats.index_scans

    # Each of two shards reads ahead a tenth of its own.
    hits, _ = run(tmp_path / "predicted", predicted=True)
    assert hits > 80
    assert run(tmp_path / "unknown", predicted=False) == (0, 2)
