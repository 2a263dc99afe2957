"""How much disk the state takes for each live byte: never more than is configured, and a pack."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.semantics.operator import OperatorSpec
from millpond.service.messages import StatsReply
from tests.service_kit import Driver, Rows, counts, group_rows, session_rows, window_rows

MSA = 1.5
SMALL_BYTES = 64 << 10
BATCHES = 25


def batches(kind: str) -> Iterator[tuple[Rows, int]]:
    """Rows and watermark of batches whose state pins packs in its own way."""
    dice = random.Random(5)
    rows: list[tuple[int, ...]] = []
    for number in range(BATCHES):
        now = 100 * number
        match kind:
            case "log":
                # Most rows go with the next batch; of each batch a few stay long.
                times = [now + (3_000 if dice.randrange(10) == 0 else 50) for _ in range(6_000)]
                rows = [(dice.randrange(500), dice.randrange(9), t) for t in times]
            case "sessions":
                # Some keys go on and on, the others come once.
                rows = [(key, dice.randrange(9), now + dice.randrange(50)) for key in range(300)]
                rows += [(1_000 + 10_000 * number + i, i, now) for i in range(5_000)]
                rows = [(*row, row[2] + 150) for row in rows]
            case "table" | "groups":
                # The same groups over and over, and some that are new.
                keys = [dice.randrange(4_000) for _ in range(6_000)]
                rows = [(key if key < 3_500 else key + 500 * number, 1, now) for key in keys]
        yield rows, now


CASES = {
    "log": (window_rows(100, 100), "append"),
    "sessions": (session_rows(150), "append"),
    "table": (counts(), "update"),
    "groups": (group_rows(), "update"),
}


@pytest.mark.parametrize("kind", CASES)
def test_space_amplification_is_bounded_after_each_commit(kind: str, tmp_path: Path) -> None:
    spec, mode = CASES[kind]
    seen: list[StatsReply] = []
    # Small runs and packs that all shards share.
    with Driver(tmp_path, spec=spec, shards=3, mode=mode, max_space_amplification=MSA) as driver:
        for rows, watermark_us in batches(kind):
            at = driver.begin()
            driver.seal(at, [driver.stage(at, rows)], watermark_us)
            stats = driver.commit(at, watermark_us).stats[0]
            largest = max(file.stat().st_size for file in tmp_path.rglob("packs/*"))
            assert stats.run_bytes <= max(MSA * stats.live_bytes, SMALL_BYTES) + largest
            seen.append(stats)
    assert any(stats.run_bytes > 1.02 * stats.live_bytes for stats in seen) or kind == "groups"


def test_garbage_of_shared_packs_counts(tmp_path: Path) -> None:
    spec: OperatorSpec = window_rows(100, 100)
    rows = [(key, 1, 0 if key % 3 else 1_000) for key in range(9_000)]
    with Driver(tmp_path, spec=spec, mode="append", max_space_amplification=4.0) as driver:
        driver.run(rows)
        at = driver.begin()
        driver.seal(at, [driver.stage(at, [])], 500)
        stats = driver.commit(at, 500).stats[0]
    # A third of the rows pins the pack of all.
    assert stats.rows == 3_000
    assert 2.5 < stats.run_bytes / stats.live_bytes < 3.5
