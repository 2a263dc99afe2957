"""Rows of unknown pattern: which store is chosen, and that nothing that happens on the way there or after it loses a
row or gives one out twice."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond._kernel import DamagedFile
from millpond.policy.compaction import Limits
from millpond.testing.state import Batch, Row, StateCase, StateRun
from tests.service_kit import observed_rows

LIMITS = Limits(max_space_amplification=1.5, max_runs=2, small_bytes=0)
Windows = Literal["aligned", "unaligned"]


def end_of(windows: Windows, key: int, time: int) -> int:
    """Of the window that a row is in: ten microseconds for all keys, or one of its own."""
    return (time // 10 + 1) * 10 if windows == "aligned" else time + 10 + 50 * key


def batch(windows: Windows, rows: Sequence[Row], watermark_us: int) -> Batch:
    """`rows`: key, value and time."""
    columns = [*zip(*rows, strict=True)] or [(), (), ()]
    ends = [end_of(windows, key, time) for key, _, time in rows]
    arrays = [pa.array(column, pa.int64()) for column in (columns[0], columns[1], ends)]
    return Batch((pa.record_batch(arrays, schema=observed_rows().input_schema),), watermark_us)


def case(observed_bytes: int) -> StateCase:
    return StateCase(observed_rows(), (), observed_bytes=observed_bytes)


def rows_at(time: int, keys: range) -> list[Row]:
    return [(key, 1_000 * time + key, time) for key in keys]


@pytest.mark.parametrize("windows", ["aligned", "unaligned"])
def test_the_store_is_chosen_by_what_was_seen(tmp_path: Path, windows: Windows) -> None:
    run = StateRun(case(observed_bytes=2_000), tmp_path)
    assert run.run(batch(windows, rows_at(1, range(50)), 0)) == []
    figures = run.figures()
    assert (figures["observing_shards"], figures["rows"]) == (1, 50)
    run.run(batch(windows, rows_at(2, range(50)), 0))
    figures = run.figures()
    assert figures[f"{windows}_shards"] == 1
    assert figures["rows"] == 100
    assert (figures["seen_windows"], figures["seen_ends"]) == (
        (50, 1) if windows == "aligned" else (100, 100)
    )
    assert "observing_shards" not in figures


def test_small_state_stays_in_memory(tmp_path: Path) -> None:
    run = StateRun(case(observed_bytes=3_000), tmp_path)
    for time in range(0, 1_000, 10):
        run.run(batch("aligned", rows_at(time, range(40)), time))
        assert run.figures()["observing_shards"] == 1
        run.compact(LIMITS)
    assert run.figures()["run_bytes"] < 20_000


@pytest.mark.parametrize("windows", ["aligned", "unaligned"])
def test_a_move_takes_several_batches_each_with_a_bounded_part(tmp_path: Path, windows: Windows) -> None:
    run = StateRun(case(observed_bytes=8_000), tmp_path)
    for time in range(4):
        run.run(batch(windows, rows_at(time, range(100)), 0))
    unmoved = [run.figures()["unmoved_rows"]]
    assert unmoved[0] > 250
    while unmoved[-1]:
        # Twenty-four bytes a row: a step is an eighth of the bytes that are observed.
        assert run.run(batch(windows, [], 0)) == []
        unmoved.append(run.figures()["unmoved_rows"])
        assert 0 < unmoved[-2] - unmoved[-1] <= 1_000 // 24
    assert run.figures()["rows"] == 400
    assert len(run.run(batch(windows, [], 10_000))) == 400


@pytest.mark.parametrize("windows", ["aligned", "unaligned"])
def test_memory_is_bounded_while_rows_are_in_both_places(tmp_path: Path, windows: Windows) -> None:
    run = StateRun(case(observed_bytes=1 << 20), tmp_path, memory_bytes=200_000)
    for time in range(40):
        run.run(batch(windows, rows_at(time, range(500)), 0))
        # Where windows end one by one, each has an entry in a table beside the rows.
        table_bytes = 0 if windows == "aligned" else 500 * (time + 1) * 160
        assert run.figures()["memory_bytes"] < 220_000 + table_bytes
    assert run.figures()["rows"] == 20_000
    assert run.figures()[f"{windows}_shards"] == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = StateRun(case(observed_bytes=1 << 20), tmp_path)
    run.run(batch("aligned", rows_at(1, range(50)), 0))
    (file,) = run.files()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedFile, match=file.name):
        run.kill()


class Model:
    """All rows that were committed and not given out."""

    def __init__(self, windows: Windows) -> None:
        self._windows: Windows = windows
        self._waiting: list[Row] = []
        self.watermark_us = 0

    def seal(self, rows: list[Row], watermark_us: int) -> tuple[list[Row], list[Row]]:
        """(what is given out, what waits)."""
        in_time = [row for row in rows if self._end(row) > self.watermark_us]
        every = [*self._waiting, *in_time]
        due = [row[:2] for row in every if self._end(row) <= watermark_us]
        return sorted(due, key=repr), [row for row in every if self._end(row) > watermark_us]

    def _end(self, row: Row) -> int:
        return end_of(self._windows, row[0], row[2])

    def commit(self, waiting: list[Row], watermark_us: int) -> None:
        self._waiting, self.watermark_us = waiting, watermark_us


STEPS = st.fixed_dictionaries(
    {
        "rows": st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=30),
        "passed": st.sampled_from([0, 3, 8, 200]),
        "flush_after": st.sampled_from([None, 0, 200]),
        "lost": st.lists(st.sampled_from(["sealed", "flushed", "saved"]), max_size=2),
        "lost_by": st.sampled_from(["abort", "kill"]),
        "after": st.lists(st.sampled_from(["kill", "compact", "read ahead"]), max_size=3),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(STEPS, min_size=3, max_size=14),
    windows=st.sampled_from(["aligned", "unaligned"]),
    observed_bytes=st.sampled_from([0, 500, 2_000, 10_000]),
    shards=st.sampled_from([1, 3]),
    memory_bytes=st.sampled_from([3_000, 1 << 24]),
)
def test_no_row_is_lost_or_given_out_twice(
    steps: list[dict[str, object]], windows: Windows, observed_bytes: int, shards: int, memory_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = StateRun(case(observed_bytes), Path(directory), shards, memory_bytes)
        model = Model(windows)
        for number, step in enumerate(steps):
            _take(run, model, windows, number, step)
        final, _ = model.seal([], 10**6)
        assert run.run(batch(windows, [], 10**6)) == final
        assert run.figures()["rows"] == 0


def _take(run: StateRun, model: Model, windows: Windows, number: int, step: dict[str, object]) -> None:
    now = model.watermark_us + step["passed"]  # type: ignore[operator]
    rows = [
        (key, 100 * number + i, model.watermark_us + ahead)
        for i, (key, ahead) in enumerate(step["rows"])  # type: ignore[arg-type, var-annotated]
    ]
    sent = batch(windows, rows, now)
    expected, waiting = model.seal(rows, now)
    flush_after: int | None = step["flush_after"]  # type: ignore[assignment]
    for point in step["lost"]:  # type: ignore[attr-defined]
        assert run.seal(sent, flush_after) == expected
        if point == "flushed":
            run.flush()
        elif point == "saved":
            run.save()
        getattr(run, str(step["lost_by"]))()
    assert run.seal(sent, flush_after) == expected
    run.save()
    run.commit()
    run.collect()
    model.commit(waiting, now)
    assert run.figures()["rows"] == len(waiting)
    for event in step["after"]:  # type: ignore[attr-defined]
        match event:
            case "kill":
                run.kill()
            case "compact":
                run.compact(LIMITS)
            case "read ahead":
                run.read_ahead()
