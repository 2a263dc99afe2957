"""Sessions in a state service: what closes when, over batches, tries, restarts and with next to no memory."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from tests.service_kit import Driver, Group, sessions

GAP = 10


def _row(key: int, value: int, time: int) -> tuple[int, ...]:
    return key, value, time, time + GAP


def test_a_session_is_given_out_once_when_the_watermark_has_passed_its_end(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=sessions(), mode="append") as driver:
        assert driver.run([_row(1, 5, 0), _row(2, 1, 3)], watermark_us=9) == []
        # The first grows past its timer, the second does not.
        assert driver.run([_row(1, 6, 8)], watermark_us=15) == [(2, 1, 1, 3, 13)]
        assert driver.run([_row(3, 1, 40)], watermark_us=18) == [(1, 2, 11, 0, 18)]
        assert driver.run([], watermark_us=100) == [(3, 1, 1, 40, 50)]
        assert driver.run([], watermark_us=200) == []


def test_a_late_row_does_not_reach_a_session_that_still_waits(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=sessions(), mode="append") as driver:
        assert driver.run([_row(1, 1, 0), _row(1, 1, 10), _row(1, 1, 20)], watermark_us=15) == []
        assert driver.run([_row(1, 100, 5), _row(1, 1, 6)], watermark_us=30) == [(1, 4, 4, 0, 30)]


def test_a_row_joins_two_sessions_of_other_batches(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=sessions(), mode="append") as driver:
        assert driver.run([_row(1, 1, 20)], watermark_us=0) == []
        assert driver.run([_row(1, 2, 0)], watermark_us=0) == []
        assert driver.run([_row(1, 4, 10)], watermark_us=29) == []
        assert driver.run([], watermark_us=30) == [(1, 3, 7, 0, 30)]


def _closed(rows: list[tuple[int, ...]], before: int) -> list[Group]:
    by_key: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(row)
    found: list[Group] = []
    for key, of_key in by_key.items():
        merged: list[list[int]] = []
        for _, value, start, end in sorted(of_key, key=lambda row: row[2]):
            if merged and start <= merged[-1][3]:
                last = merged[-1]
                merged[-1] = [last[0] + 1, last[1] + value, last[2], max(last[3], end)]
            else:
                merged.append([1, value, start, end])
        found += [(key, *session) for session in merged if session[3] <= before]
    return sorted(found)


def test_sessions_survive_restarts_and_do_without_memory(tmp_path: Path) -> None:
    """Rows in order of time, so that none is late: all batches together give the sessions of all rows."""
    dice = random.Random(3)
    rows: list[tuple[int, ...]] = []
    outputs: list[Group] = []
    for n in range(6):
        # Each batch has a service of its own.
        with Driver(
            tmp_path,
            spec=sessions(),
            mode="append",
            memory_bytes=1 if n % 2 else 1 << 20,
            write_buffer_bytes=2000,
            max_runs=2,
        ) as driver:
            for part in range(2):
                start = (2 * n + part) * 30
                batch = [_row(dice.randrange(300), n, start + dice.randrange(30)) for _ in range(200)]
                rows += batch
                outputs += driver.run(batch, watermark_us=start)
    assert sorted(outputs) == _closed(rows, 11 * 30)
    assert len(outputs) > 200


def test_complete_mode_gives_all_sessions_and_keeps_them(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=sessions(timer_us=0), mode="complete") as driver:
        assert driver.run([_row(1, 5, 0), _row(1, 1, 50)]) == [(1, 1, 1, 50, 60), (1, 1, 5, 0, 10)]
        assert driver.run([_row(1, 2, 60)], watermark_us=500) == [(1, 1, 5, 0, 10), (1, 2, 3, 50, 70)]
        assert driver.run([]) == [(1, 1, 5, 0, 10), (1, 2, 3, 50, 70)]
