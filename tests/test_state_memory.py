"""Stores of rows keep to their memory within a batch too: what a flush has written may go."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.testing.state import Batch, StateCase, StateRun
from tests.service_kit import group_rows, window_rows

WINDOWS, ROWS = 40, 2_000
MEMORY_BYTES = 128 << 10


def one_large_batch(spec: OperatorSpec, watermark_us: int) -> Batch:
    """Of more than a megabyte, in many windows."""
    count = WINDOWS * ROWS
    columns = [[i % 500 for i in range(count)], list(range(count)), [10 * (i // ROWS) for i in range(count)]]
    rows = pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=spec.input_of(0))
    return Batch((rows,), watermark_us)


@pytest.mark.parametrize(
    ("spec", "mode"), [(window_rows(10, 10), "append"), (group_rows(10, 10), "update")], ids=["log", "groups"]
)
def test_a_flush_within_a_batch_frees_memory(spec: OperatorSpec, mode: OutputMode, tmp_path: Path) -> None:
    case = StateCase(spec, [one_large_batch(spec, 0)], mode)
    run = StateRun(case, tmp_path / "little", memory_bytes=MEMORY_BYTES)
    outputs = run.seal(case.batches[0], flush_after_bytes=MEMORY_BYTES // 4)
    assert run.most_bytes <= 2 * MEMORY_BYTES
    assert outputs == StateRun(case, tmp_path / "much").run(case.batches[0])
    run.save()
    run.commit()
    assert run.figures()["memory_bytes"] <= MEMORY_BYTES
    assert run.figures()["rows"] == WINDOWS * ROWS


def test_the_log_keeps_the_windows_that_end_first(tmp_path: Path) -> None:
    spec = window_rows(10, 10)
    case = StateCase(spec, [one_large_batch(spec, 0)])
    run = StateRun(case, tmp_path, memory_bytes=MEMORY_BYTES)
    run.seal(case.batches[0], flush_after_bytes=MEMORY_BYTES // 4)
    run.save()
    run.commit()
    empty = case.batches[0].inputs[0].slice(0, 0)
    assert len(run.run(Batch((empty,), 20))) == 2 * ROWS
    figures = run.figures()
    assert figures["memory_hits"] == figures["gets"] > 0
