"""Merged groups in a shard without a service."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millpond.policy.compaction import Limits
from millpond.testing.state import Batch, StateCase, StateRun
from tests.service_kit import counts_by_end


def test_a_slice_that_comes_and_goes_within_a_batch_leaves_nothing(tmp_path: Path) -> None:
    spec = counts_by_end(slice_us=4)
    run = StateRun(StateCase(spec, ()), tmp_path)
    rows = pa.record_batch([pa.array([column], pa.int64()) for column in (1, 6, 5)], schema=spec.input_schema)
    # The watermark cuts the slice, which ends at 8.
    assert run.run(Batch((rows,), watermark_us=6)) == [(1, 6, 1, 5)]
    assert all(not store.committed_runs() for store in run.stores)
    assert run.compact(Limits(max_space_amplification=1.5, max_runs=8)) == 0
