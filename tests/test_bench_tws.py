"""Spark's `transformWithState` as a peer: the results of other engines where it applies, said where it does not."""

from __future__ import annotations

import pytest

from millpond.bench.compare import Plan, compare
from millpond.bench.keyed import Keyed, small_windows
from millpond.bench.papers import Paper
from millpond.bench.settings import engine_settings
from tests.test_bench_runner import Quiet


@pytest.mark.parametrize(
    "workload", [small_windows(1), Paper(query_name="q5", events=2_000, batch_events=1_000)]
)
def test_what_is_not_written_with_it_is_said_to_be_not_supported(workload: Keyed | Paper) -> None:
    plan = Plan(workload=workload, engines=("spark-tws",), repeat=1, warmup_batches=0, time_limit_s=120)
    (run,) = compare(plan, Quiet()).runs
    error = run.measured.outcome.error
    assert error is not None
    assert error.startswith(f"not supported: {workload.name}")


def test_it_has_the_store_and_the_memory_of_the_tuned_peer() -> None:
    workload = Keyed(rows=10, keys=2, batch_rows=10)
    tws, peer = (
        engine_settings(engine, workload, 64 << 20, partitions=4) for engine in ("spark-tws", "spark-rocksdb")
    )
    assert tws == peer
    sizes = {name.rpartition(".")[2]: int(value) for name, value in tws.items() if value.isdigit()}
    in_each = sizes["blockCacheSizeMB"] + sizes["maxWriteBufferNumber"] * sizes["writeBufferSizeMB"]
    assert 4 * in_each == 64
