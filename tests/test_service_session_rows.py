"""Rows of sessions in a state service: what is given out when, over tries, restarts, a kill and with next to no
memory; and what that costs."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from millpond.service.messages import StatsReply
from tests.service_kit import Driver, Group, disk_bytes, session_rows

GAP = 10


def _row(key: int, value: int, time: int, gap: int = GAP) -> tuple[int, ...]:
    return key, value, time, time + gap


def test_rows_are_given_out_once_when_the_watermark_has_passed_the_end_of_their_session(
    tmp_path: Path,
) -> None:
    with Driver(tmp_path, spec=session_rows(), mode="append") as driver:
        assert driver.run([_row(1, 5, 0), _row(2, 1, 3)], watermark_us=9) == []
        assert driver.run([_row(1, 6, 8)], watermark_us=15) == [(2, 1, 3, 13)]
        # A late row does not count, one that touches the end does.
        assert driver.run([_row(1, 9, 5), _row(1, 7, 18)], watermark_us=20) == []
        assert driver.run([], watermark_us=28) == [(1, 5, 0, 28), (1, 6, 0, 28), (1, 7, 0, 28)]
        assert driver.run([], watermark_us=200) == []


def test_a_row_joins_two_sessions_of_other_batches(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=session_rows(), mode="append") as driver:
        assert driver.run([_row(1, 1, 20)], watermark_us=0) == []
        assert driver.run([_row(1, 2, 0)], watermark_us=0) == []
        assert driver.run([_row(1, 4, 10)], watermark_us=29) == []
        assert driver.run([], watermark_us=30) == [(1, 1, 0, 30), (1, 2, 0, 30), (1, 4, 0, 30)]


def _given_out(rows: list[tuple[int, ...]], before: int) -> list[Group]:
    by_key: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(row)
    found: list[Group] = []
    for key, of_key in by_key.items():
        sessions: list[list[tuple[int, ...]]] = []
        for row in sorted(of_key, key=lambda row: row[2]):
            if sessions and row[2] <= max(other[3] for other in sessions[-1]):
                sessions[-1].append(row)
            else:
                sessions.append([row])
        for session in sessions:
            start, end = session[0][2], max(row[3] for row in session)
            found += [(key, row[1], start, end) for row in session if end <= before]
    return sorted(found)


@pytest.mark.parametrize("gap_us", [GAP, None], ids=["one gap", "a gap per row"])
def test_rows_survive_restarts_and_a_kill_and_do_without_memory(tmp_path: Path, gap_us: int | None) -> None:
    """Rows in order of time, so that none is late: all batches together give the sessions of all rows."""
    dice = random.Random(3)
    rows: list[tuple[int, ...]] = []
    outputs: list[Group] = []
    for n in range(6):
        # Each batch has a service of its own.
        with Driver(
            tmp_path,
            spec=session_rows(gap_us),
            mode="append",
            memory_bytes=1 if n % 2 else 1 << 20,
            write_buffer_bytes=2000,
            max_runs=2,
            read_batch_ratio=0.1 * n,
        ) as driver:
            for part in range(2):
                start = (2 * n + part) * 30
                batch = [
                    _row(dice.randrange(300), n, start + dice.randrange(30), gap_us or dice.randrange(1, 25))
                    for _ in range(200)
                ]
                rows += batch
                outputs += driver.run(batch, watermark_us=start)
            at = driver.begin()
            driver.seal(at, [driver.stage(at, [_row(1, 1, start + 60)])], start + 30)
            driver.client.save(at)
            driver.service.kill()
    assert sorted(outputs) == _given_out(rows, 11 * 30)
    assert len(outputs) > 1000


def _run_many(driver: Driver, batches: int, first: int = 0) -> StatsReply:
    """Batches of ten time units, rows in order."""
    reply = None
    for n in range(first, first + batches):
        at = driver.begin()
        rows = [_row(1_000 * n + key, key, 10 * n) for key in range(1_000)]
        # One key in ten goes on and on.
        rows += [_row(key, n, 10 * n) for key in range(-100, 0)]
        driver.seal(at, [driver.stage(at, rows)], 10 * n - 5)
        reply = driver.commit(at, 10 * n - 5)
    assert reply is not None
    return reply.stats[0]


def test_files_stay_within_the_space_amplification_whatever_goes_on_for_ever(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=session_rows(), mode="append") as driver:
        _run_many(driver, 12)
        stats = _run_many(driver, 12, first=12)
        assert stats.rewritten_bytes > 0
        assert stats.runs <= 2 * 9
        # What was decided after the last commit is not adopted yet.
        assert stats.run_bytes < 3 * stats.live_bytes
        assert disk_bytes(tmp_path) < 6 * stats.live_bytes


@pytest.mark.parametrize("ratio", [0.001, 1.0])
def test_what_closes_next_is_read_ahead_and_counted(tmp_path: Path, ratio: float) -> None:
    with Driver(tmp_path, spec=session_rows(), mode="append", read_batch_ratio=ratio) as driver:
        stats = _run_many(driver, 10)
    # 1,000 sessions close with every batch from the third on, each with all its rows in files.
    assert stats.gets == 8_000
    assert stats.read_ahead_hits + stats.memory_hits > 0.5 * stats.gets
    # Only the larger share reaches those that go on and on.
    assert (stats.read_ahead_evicted > 0) == (ratio == 1.0)
    assert stats.read_bytes >= stats.taken_bytes > 0
    with Driver(tmp_path / "without", spec=session_rows(), mode="append", read_batch_ratio=0) as driver:
        stats = _run_many(driver, 10)
    assert (stats.read_ahead, stats.read_ahead_hits) == (0, 0)
    # One for each shard and batch that gives something out.
    assert stats.index_scans == 16
