"""What a batch spends is told by part: in order, with nothing counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from millpond.service.messages import SealRequest
from millpond.service.spent import Spent, Stopwatch
from tests.service_kit import Driver, counts

WINDOW_US = 10_000_000


def test_sleeping_takes_time_and_no_cpu() -> None:
    watch = Stopwatch()
    with watch.on("state_read"):
        time.sleep(0.05)
    spent = watch.spent()
    assert spent.wall_ms["state_read"] >= 50
    assert spent.cpu_ms.get("state_read", 0) < 25
    assert "io_wait" not in spent.wall_ms


def test_what_work_on_files_does_not_compute_is_waiting() -> None:
    watch = Stopwatch()
    with watch.on_files("state_write"):
        time.sleep(0.05)
    spent = watch.spent()
    assert spent.wall_ms["io_wait"] >= 25
    assert spent.wall_ms.get("state_write", 0) < 25
    assert "io_wait" not in spent.cpu_ms


def test_a_part_that_was_measured_within_another_is_moved_and_never_more_than_there_is() -> None:
    watch = Stopwatch()
    with watch.on("state_write"):
        time.sleep(0.02)
    before = watch.spent().wall_ms["state_write"]
    watch.move("state_write", "state_read", 5_000_000)
    spent = watch.spent()
    assert spent.wall_ms == {"state_write": pytest.approx(before - 5), "state_read": 5.0}
    assert spent.cpu_ms["state_read"] < spent.cpu_ms["state_write"]
    watch.move("state_write", "removal", 10**12)
    assert set(watch.spent().wall_ms) == {"state_read", "removal"}
    assert sum(watch.spent().wall_ms.values()) == pytest.approx(before)


def test_threads_side_by_side_fit_into_the_time_that_passed() -> None:
    both = Spent({"state_write": 30.0}, {"state_write": 30.0}) + Spent(
        {"state_write": 30.0, "state_read": 20.0}
    )
    assert both.within(40) == Spent({"state_write": 30.0, "state_read": 10.0}, {"state_write": 30.0})
    assert both.within(100) == both


def test_a_batch_of_the_service_tells_its_parts(tmp_path: Path) -> None:
    rows = [(key, 1, key % WINDOW_US) for key in range(20_000)]
    with Driver(tmp_path / "state", spec=counts(WINDOW_US), mode="append") as driver:
        driver.run(rows)
    # A new service has everything on disk, and the watermark closes the window.
    with Driver(tmp_path / "state", spec=counts(WINDOW_US), mode="append") as driver:
        at = driver.begin()
        receipt = driver.stage(at, rows)
        request = SealRequest(at, 0, "append", (receipt,), driver.watermark_us, WINDOW_US)
        sealed = driver.client.seal(request).spent
        saved = driver.client.save(at).spent
        committed = driver.commit(at, WINDOW_US).spent
    assert {"state_write", "state_read", "io_wait"} <= set(sealed.wall_ms)
    assert {"state_write", "state_read"} <= set(sealed.cpu_ms)
    assert "io_wait" in saved.wall_ms
    assert "removal" in committed.wall_ms
    assert all(ms > 0 for spent in (sealed, saved, committed) for ms in spent.wall_ms.values())


def test_merges_beside_the_batches_show_as_cpu_time(tmp_path: Path) -> None:
    found = 0.0
    with Driver(tmp_path / "state", max_runs=2) as driver:
        for first in range(0, 240_000, 20_000):
            at = driver.begin()
            # New keys leave no garbage, for whose merging a commit would wait.
            driver.seal(at, [driver.stage(at, [(key, 1, 0) for key in range(first, first + 20_000)])])
            spent = driver.commit(at).spent
            found = max(found, spent.cpu_ms["compaction"] - spent.wall_ms.get("compaction", 0.0))
    assert found > 0.5
