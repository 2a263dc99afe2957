"""Generated data: the same for a seed, as many output rows as the query has, no late rows."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.bench.kernel import KernelMerge
from millpond.bench.keyed import Keyed, small_windows


def test_rows_are_dealt_out_to_batches_and_outputs_are_distinct_keys() -> None:
    batches = list(Keyed(rows=250, keys=40, batch_rows=100).batches())
    assert [rows.num_rows for rows, _ in batches] == [100, 100, 50]
    for rows, output in batches:
        assert output.num_rows == len(set(rows["key"].to_pylist()))
        assert sum(output["n"].to_pylist()) == rows.num_rows
        assert sum(output["total"].to_pylist()) == sum(rows["value"].to_pylist())


def test_a_seed_gives_the_same_data_again_and_another_seed_other_data() -> None:
    def first(seed: int) -> object:
        return next(iter(Keyed(rows=100, keys=1_000, batch_rows=100, seed=seed).batches()))[0].to_pylist()

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_small_windows_expire_and_no_row_is_late() -> None:
    workload = small_windows(seed=1)
    watermark_us: int | None = None
    first_end_us: int | None = None
    for rows, output in workload.batches():
        times = rows["ts"].cast("int64").to_numpy()
        if watermark_us is not None:
            assert times.min() > watermark_us
        watermark_us = int(times.max()) - workload.watermark_seconds * 1_000_000
        ends = output["window"].combine_chunks().field("end").cast("int64").to_numpy()
        first_end_us = first_end_us or int(ends.min())
        assert ends.min() > times.min()
    assert first_end_us is not None
    assert watermark_us is not None
    assert watermark_us > first_end_us


def test_each_row_stands_in_every_window_that_holds_its_time() -> None:
    rows, output = next(iter(small_windows(seed=1).batches()))
    expected = set()
    for key, ts in zip(rows["key"].to_pylist(), rows["ts"].cast("int64").to_pylist(), strict=True):
        newest = ts // 5_000_000 * 5_000_000
        expected |= {(key, newest - back * 5_000_000) for back in range(4)}
    starts = output["window"].combine_chunks().field("start").cast("int64").to_pylist()
    assert set(zip(output["key"].to_pylist(), starts, strict=True)) == expected
    assert output.num_rows == len(expected)


@pytest.mark.parametrize("keys", [1_000, 1_024, 1_025])
def test_the_kernel_workload_loads_every_key_once_and_then_draws_without_repetition(keys: int) -> None:
    workload = KernelMerge(keys=keys, batch_rows=256, measured_batches=3)
    draws = [batch for batch, _ in workload.draws()]
    loaded = np.concatenate(draws[: workload.loading_batches])
    assert len(np.unique(loaded)) == len(loaded) == keys
    assert [len(np.unique(batch)) for batch in draws[workload.loading_batches :]] == [256] * 3
