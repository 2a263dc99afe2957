"""Generated data: the same for a seed, dealt out to batches, with no late rows and all windows closed at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.bench.kernel import KernelMerge
from millpond.bench.keyed import Keyed, small_windows
from millpond.bench.papers import CLOSING_BATCHES, Paper
from millpond.bench.rehearsal import prepare_rehearsal
from millpond.bench.workload import load
from millpond.workloads.queries.catalog import QUERIES
from millpond.workloads.scales import (
    EVENTS_PER_SECOND,
    STREAMS,
    Shape,
    batches,
    check_shape,
    crowding,
    stream_schema,
)


def test_rows_are_dealt_out_to_batches() -> None:
    inputs = [tables["input"] for tables in Keyed(rows=250, keys=40, batch_rows=100).inputs()]
    assert [rows.num_rows for rows in inputs] == [100, 100, 50]
    assert len(set(pa.concat_tables(inputs)["key"].to_pylist())) == 40


def test_a_seed_gives_the_same_data_again_and_another_seed_other_data() -> None:
    def first(seed: int) -> object:
        return next(iter(Keyed(rows=100, keys=1_000, batch_rows=100, seed=seed).inputs()))[
            "input"
        ].to_pylist()

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_small_windows_expire_and_no_row_is_late() -> None:
    workload = small_windows(seed=1)
    inputs = [tables["input"]["ts"].cast("int64").to_numpy() for tables in workload.inputs()]
    watermark_us = 0
    for times in inputs:
        assert times.min() > watermark_us
        watermark_us = int(times.max()) - workload.watermark_seconds * 1_000_000
    assert watermark_us > inputs[0].min() + workload.window_seconds * 1_000_000


def test_a_query_reads_its_streams_and_ends_with_rows_that_close_its_windows() -> None:
    workload = Paper(query_name="q8", size="small", events=5_000, batch_events=2_000)
    inputs = list(workload.inputs())
    assert len(inputs) == 3 + CLOSING_BATCHES
    assert {name for tables in inputs for name in tables} == {"persons", "auctions"}
    # One event in fifty is a person, three are auctions.
    assert [tables["persons"].num_rows for tables in inputs[:3]] == [40, 40, 20]
    assert [tables["auctions"].num_rows for tables in inputs[:3]] == [120, 120, 60]
    times = [tables["persons"]["ts"].to_pylist() for tables in inputs]
    assert max(times[2]) < min(times[3])
    assert times[3] == times[4] == times[5], "closing rows must not close each other's windows"


def test_every_stream_has_the_same_columns_with_and_without_rows() -> None:
    for stream in STREAMS:
        (rows,) = batches({stream: ()}, size="small", seed=1, events=200, batch_events=200)
        assert rows[stream].num_rows > 0
        assert rows[stream].schema == stream_schema(stream)


def test_large_spreads_bids_over_many_more_bidders_than_small() -> None:
    def bidders(size: str) -> int:
        workload = Paper(query_name="q12", size=size, events=50_000, batch_events=50_000)  # type: ignore[arg-type]
        return len(set(next(iter(workload.inputs()))["bids"]["bidder"].to_pylist()))

    assert bidders("large") > 5 * bidders("small")


@pytest.mark.parametrize("keys", [1_000, 1_024, 1_025])
def test_the_kernel_workload_loads_every_key_once_and_then_draws_without_repetition(keys: int) -> None:
    workload = KernelMerge(keys=keys, batch_rows=256, measured_batches=3)
    draws = [batch for batch, _ in workload.draws()]
    loaded = np.concatenate(draws[: workload.loading_batches])
    assert len(np.unique(loaded)) == len(loaded) == keys
    assert [len(np.unique(batch)) for batch in draws[workload.loading_batches :]] == [256] * 3


def test_keys_and_hot_keys_can_be_varied() -> None:
    def distinct(stream: str, column: str, **shape: int) -> int:
        (rows,) = batches(
            {stream: (column,)},
            size="large",
            seed=1,
            events=20_000,
            batch_events=20_000,
            shape=Shape(**shape),
        )
        return len(set(rows[stream][column].to_pylist()))

    assert distinct("records", "id", keys=50) == 50
    assert distinct("positions", "vehicle", keys=70) == 70
    few, many = distinct("bids", "bidder", keys=500), distinct("bids", "bidder", keys=500_000)
    assert few < 1_000 < many
    hot, cold = distinct("bids", "auction", hot_ratio=50), distinct("bids", "auction", hot_ratio=1)
    assert hot < cold / 10
    with pytest.raises(ValueError, match="hot keys"):
        check_shape(["positions"], Shape(hot_ratio=2))
    with pytest.raises(ValueError, match="can't be varied"):
        check_shape(["ads"], Shape(keys=2))


def test_lasting_state_is_filled_with_every_key_that_the_stream_draws_from() -> None:
    bids = Paper(query_name="q12", size="large", events=200_000, batch_events=100_000, keys=1_000)
    filled = pa.concat_tables(tables["bids"] for tables in bids.filling())["bidder"].to_pylist()
    assert len(filled) == len(set(filled)) == 1_000
    drawn = {bidder for tables in bids.inputs() for bidder in tables["bids"]["bidder"].to_pylist()}
    # People become more while the stream goes on, and ids may run a little ahead.
    assert min(filled) <= min(drawn)
    assert len(drawn & set(filled)) > 900
    records = Paper(query_name="readwrite", size="large", events=100, batch_events=100, keys=500)
    rows = pa.concat_tables(tables["records"] for tables in records.filling())
    assert rows["id"].to_pylist() == list(range(500))
    assert rows.schema == next(iter(records.inputs()))["records"].schema


def test_small_state_live_traffic_and_windows_begin_empty() -> None:
    assert not list(Paper(query_name="q12", size="small").filling())
    assert not list(Paper(query_name="q7", size="large").filling())


def test_a_rehearsal_is_the_first_batches_half_of_them_in_pieces(tmp_path: Path) -> None:
    workload = Paper(query_name="q12", size="large", events=400_000, batch_events=100_000, keys=1_000)
    prepared = workload.prepare(tmp_path / "data")
    assert (prepared.filling_batches, len(prepared.batches)) == (1, 5)
    prepare_rehearsal(tmp_path / "data", workload, 4, tmp_path / "rehearsal")
    rehearsed = load(tmp_path / "rehearsal")
    assert rehearsed.filling_batches == 0
    assert [batch.rows for batch in rehearsed.batches] == [30_666, 30_667, 30_667] * 2 + [92_000] * 2
    files = (sorted((tmp_path / name / "bids").iterdir()) for name in ("data", "rehearsal"))
    whole, pieces = (pa.concat_tables(pq.read_table(path) for path in paths) for paths in files)
    assert pieces == whole.slice(1_000)


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_large_batch_has_hundreds_of_thousands_of_rows_whatever_its_streams_are(name: str) -> None:
    streams, thinned = QUERIES[name].streams, QUERIES[name].thinned
    times = crowding(streams, "large")
    sample = batches(
        dict.fromkeys(streams, ()),
        size="large",
        seed=1,
        events=5_000 * times // thinned,
        batch_events=5_000 * times // thinned,
        rate=EVENTS_PER_SECOND * times // thinned,
    )
    assert sum(rows.num_rows for rows in next(iter(sample)).values()) * thinned >= 2_500
