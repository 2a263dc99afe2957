"""Traces of state accesses: the service writes what a committed batch did, and any store can do it again."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from typer import BadParameter

from millpond._kernel import BUCKETS, Store
from millpond.bench import trace
from millpond.bench.compare import Plan, compare
from millpond.bench.keyed import Keyed
from millpond.bench.trace import TraceReplay, kept_recording, steps
from millpond.cli.bench_trace import State, _workload
from millpond.errors import InvalidQuery
from millpond.semantics.operator import Aggregate, AggregateSpec, Column, KeyedTime
from millpond.service.trace import TRACE_FILE, RecordedAccess, TraceReader, TraceWriter
from millpond.state.layout import layout_of
from millpond.state.trace import Access
from tests.service_kit import Driver, Rows, counts, sessions
from tests.test_bench_runner import Quiet

WINDOW_US = 10_000_000


def rows_of(dice: random.Random, batch: int, rows: int = 400) -> Rows:
    start = batch * WINDOW_US // 2
    return [
        (dice.randrange(150), dice.randrange(1000), start + dice.randrange(WINDOW_US)) for _ in range(rows)
    ]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six batches in windows, one of them tried twice, as the service wrote them."""
    path = tmp_path / "service.arrow"
    monkeypatch.setenv(TRACE_FILE, str(path))
    dice = random.Random(7)
    with Driver(tmp_path / "state", spec=counts(WINDOW_US), shards=1, mode="append") as driver:
        for batch in range(6):
            rows = rows_of(dice, batch)
            if batch == 3:
                at = driver.begin()
                driver.seal(at, [driver.stage(at, rows)], batch * WINDOW_US // 2)
                driver.client.abort(at)
            driver.run(rows, batch * WINDOW_US // 2)
    monkeypatch.delenv(TRACE_FILE)
    return path


def replayed(
    path: Path, *engines: str
) -> tuple[dict[str, str | None], dict[str, int | None], list[str | None]]:
    plan = Plan(workload=TraceReplay.of(path), engines=engines, repeat=1, warmup_batches=1, time_limit_s=120)
    comparison = compare(plan, Quiet())
    return (
        {run.engine: run.digest for run in comparison.runs},
        {run.engine: run.measured.outcome.state_rows for run in comparison.runs},
        [run.measured.outcome.error for run in comparison.runs],
    )


def test_a_trace_has_each_committed_batch_once(recorded: Path) -> None:
    calls = list(TraceReader(recorded))
    assert sorted({call.batch for call in calls}) == list(range(6))
    merged = [call for call in calls if call.access.kind == "merge"]
    assert [call.batch for call in merged] == list(range(6))
    dropped = [call.access.slice for call in calls if call.access.kind == "drop"]
    assert len(dropped) == len(set(dropped)) == 2


def test_a_trace_merges_to_the_state_that_it_was_recorded_from(recorded: Path) -> None:
    reader = TraceReader(recorded)
    layout = layout_of(reader.operators[0])
    store = Store(layout, 0, BUCKETS, 1 << 30)
    for call in reader:
        if call.access.rows is not None:
            store.merge(trace.encoded_rows(layout, call.access.rows))
    dice = random.Random(7)
    expected = sum(value for batch in range(6) for _, value, _ in rows_of(dice, batch))
    groups = pa.Table.from_batches(store.scan([slice_ for slice_, _ in store.slices()]))
    assert sum(groups.column(2).to_pylist()) == expected


def test_without_the_variable_nothing_is_written(tmp_path: Path) -> None:
    with Driver(tmp_path / "state") as driver:
        driver.run([(1, 1, 0)])
    assert list(tmp_path.rglob("*.arrow")) == []


def test_a_trace_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "there.arrow"
    path.write_bytes(b"precious")
    monkeypatch.setenv(TRACE_FILE, str(path))
    with pytest.raises(InvalidQuery, match=r"there\.arrow, which exists already"):
        Driver(tmp_path / "state")
    assert path.read_bytes() == b"precious"


def test_sessions_are_refused_since_a_trace_would_miss_how_they_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACE_FILE, str(tmp_path / "service.arrow"))
    with pytest.raises(InvalidQuery, match="no place for sessions"):
        Driver(tmp_path / "state", spec=sessions(), shards=1, mode="append")


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no trace")
    with pytest.raises(InvalidQuery, match="text is no trace"):
        TraceReader(path)
    with pytest.raises(InvalidQuery, match="does not say what was recorded"):
        TraceReplay.of(recorded)


def test_all_stores_end_with_the_same_counts_and_sums(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.trace"
    assert kept_recording(recorded, path, "windows", {"rows": 2_400}) == 6
    workload = TraceReplay.of(path)
    assert (workload.name, workload.merges, workload.batches) == ("trace-windows", ("add",), 6)
    digests, state_rows, errors = replayed(path, "millpond", "rocksdb", "lmdb")
    assert errors == [None, None, None]
    assert len(set(digests.values())) == 1
    assert len(set(state_rows.values())) == 1


def test_batches_that_fill_the_state_are_replayed_and_do_not_count(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.trace"
    kept_recording(recorded, path, "windows", {}, filling_batches=2)
    workload = TraceReplay.of(path)
    assert workload.filling_batches == 2
    plan = Plan(workload=workload, engines=("millpond",), repeat=1, warmup_batches=1, time_limit_s=120)
    comparison = compare(plan, Quiet())
    assert (comparison.filling_batches, comparison.batches) == (2, 4)
    (run,) = comparison.runs
    assert len(run.measured.outcome.batches) == 6


def test_as_many_keys_are_recorded_as_asked_for() -> None:
    filled = _workload("q12", State.LARGE, 1_000, 500, 700, 1)
    assert sum(tables["bids"].num_rows for tables in filled.filling()) == 700
    keyed = _workload("keyed", State.LARGE, 1_000, 500, 30, 1)
    assert isinstance(keyed, Keyed)
    assert keyed.keys == 30
    with pytest.raises(BadParameter, match="ysb: the ads are those of the campaigns' table"):
        _workload("ysb", State.LARGE, 1_000, 500, 700, 1)


def test_a_store_that_loses_a_row_is_found_out(recorded: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.trace", tmp_path / "cut.trace"
    kept_recording(recorded, whole, "windows", {})
    shorter = TraceWriter(cut, TraceReader(whole).operators, TraceReader(whole).metadata)
    for call in TraceReader(whole):
        rows = call.access.rows
        if call.batch == 5 and rows is not None:
            call = RecordedAccess(5, 0, Access("merge", rows=rows.slice(1)))  # noqa: PLW2901
        shorter.write(call)
    shorter.close()
    assert replayed(whole, "millpond")[0]["millpond"] != replayed(cut, "millpond")[0]["millpond"]


def expiring() -> AggregateSpec:
    """The largest text per key, where the key carries its expiry: nothing that can be added."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("t", pa.int64())])
    out = pa.schema([("k", pa.int64()), ("v", pa.string())])
    return AggregateSpec(
        name="aggregate-0",
        keys=(Column("k", "bigint"),),
        aggregates=(Aggregate("max", (1,)),),
        time=KeyedTime(2, 100, Column("k", "bigint")),
        input_ipc=schema.serialize().to_pybytes(),
        output_ipc=out.serialize().to_pybytes(),
    )


def test_expired_groups_and_values_that_cannot_be_added(tmp_path: Path) -> None:
    from millpond._kernel import Combiner

    spec = expiring()
    layout = layout_of(spec)
    found = tmp_path / "found.arrow"
    writer = TraceWriter(found, (spec,))
    for batch in range(3):
        combiner = Combiner(layout, [0])
        columns = [list(range(50)), [f"text {batch}" * (key % 3) for key in range(50)], list(range(1, 51))]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, spec.input_schema, strict=True)
        ]
        combiner.push(pa.RecordBatch.from_arrays(arrays, schema=spec.input_schema))
        for _, rows in combiner.drain():
            writer.write(RecordedAccess(batch, 0, Access("merge", rows=rows)))
    # Expiries are from 1 to 50, all in the slice that ends at 100.
    writer.write(RecordedAccess(3, 0, Access("expire", slice=100, expired_at_us=10)))
    writer.close()
    path = tmp_path / "kept.trace"
    kept_recording(found, path, "expiring", {})
    assert TraceReplay.of(path).merges == ("put",)
    digests, state_rows, errors = replayed(path, "millpond", "rocksdb", "lmdb")
    assert errors == [None, None, None]
    assert state_rows == {"millpond": 40, "rocksdb": 40, "lmdb": 40}
    assert len(set(digests.values())) == 1


def test_a_key_that_comes_twice_in_a_call_is_read_and_written_twice(tmp_path: Path) -> None:
    spec = counts()
    layout = layout_of(spec)
    from millpond._kernel import Combiner

    combiner = Combiner(layout, [0])
    schema = spec.input_schema
    combiner.push(pa.RecordBatch.from_pydict({"k": [1, 2], "v": [10, 20], "t": [0, 0]}, schema=schema))
    ((_, once),) = combiner.drain()
    twice = pa.concat_batches([once, once.slice(0, 1)])
    found, path = tmp_path / "found.arrow", tmp_path / "kept.trace"
    writer = TraceWriter(found, (spec,))
    writer.write(RecordedAccess(0, 0, Access("merge", rows=twice)))
    writer.close()
    kept_recording(found, path, "twice", {})
    TraceReplay.of(path).prepare(tmp_path / "data")
    made = steps(tmp_path / "data", 0)
    assert [len(step.keys) for step in made] == [2, 1]
    assert [step.known.tolist() for step in made] == [[False, False], [True]]
    assert made[0].keys == sorted(made[0].keys)
    digests, _, _ = replayed(path, "millpond", "rocksdb")
    assert digests["millpond"] == digests["rocksdb"]
