"""The store as Python drives it: batches, flushes, commits, aborts, windows, recovery, compaction."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from millpond import _kernel as kernel

INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
MEMORY_BYTES = 1 << 26


def counting_layout(**time: tuple[int, ...]) -> kernel.Layout:
    return kernel.Layout(INPUT, 1, [("count", [], None), ("sum_int", [1], None)], **time)


def encode(layout: kernel.Layout, rows: Iterable[tuple[object, object]]) -> list[pa.RecordBatch]:
    combiner = kernel.Combiner(layout, [0])
    keys, values = zip(*rows, strict=True)
    schema = INPUT if isinstance(keys[0], int) else pa.schema([("k", pa.string()), ("v", pa.string())])
    combiner.push(pa.record_batch([pa.array(keys), pa.array(values)], schema=schema))
    return [batch for _, batch in combiner.drain()]


class Shard:
    """A store with its packs, driven as the state service does."""

    def __init__(self, layout: kernel.Layout, directory: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self.layout = layout
        self.directory = directory
        self.memory_bytes = memory_bytes
        self.numbers = count()
        self.store = kernel.Store(layout, 0, kernel.BUCKETS, memory_bytes)

    def merge(self, rows: Iterable[tuple[object, object]]) -> None:
        for batch in encode(self.layout, rows):
            self.store.merge(batch)

    def flush(self) -> int:
        path = str(self.directory / f"pack{next(self.numbers)}")
        writer = kernel.PackWriter(path)
        written = self.store.flush(writer)
        length = writer.finish()
        for slice_, offset, run_length, rows in written:
            run = kernel.Run.open(self.layout, path, offset, run_length)
            assert (run.rows, run.length) == (rows, run_length)
            self.store.add_pending(slice_, run)
        return length

    def commit(self) -> None:
        self.flush()
        self.store.commit()

    def reopen(self) -> None:
        store = kernel.Store(self.layout, 0, kernel.BUCKETS, self.memory_bytes)
        for slice_, rows in self.store.slices():
            store.restore(slice_, rows, self.store.runs(slice_))
        self.store = store

    def compact(self, slice_: int) -> None:
        runs = self.store.runs(slice_)
        path = str(self.directory / f"pack{next(self.numbers)}")
        writer = kernel.PackWriter(path)
        offset, length, _ = kernel.merge_runs(self.layout, runs, writer, 0, kernel.BUCKETS, whole=True)
        writer.finish()
        assert self.store.replace(slice_, 0, len(runs), kernel.Run.open(self.layout, path, offset, length))

    def groups(self, slices: list[int] | None = None, **options: object) -> dict[object, tuple[object, ...]]:
        chosen = [slice_ for slice_, _ in self.store.slices()] if slices is None else slices
        found: dict[object, tuple[object, ...]] = {}
        for batch in self.store.scan(chosen, **options):
            for row in batch.to_pylist():
                key, *buffers = row.values()
                assert key not in found
                found[key] = tuple(buffers)
        return found


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(counting_layout(), tmp_path)


def test_rows_of_one_group_are_merged_across_batches(shard: Shard) -> None:
    shard.merge([(1, 10), (2, 20), (1, 5)])
    shard.commit()
    shard.merge([(2, 1), (3, 7)])
    assert shard.groups() == {1: (2, 15), 2: (2, 21), 3: (1, 7)}
    assert shard.groups([0], touched_only=True) == {2: (2, 21), 3: (1, 7)}
    assert shard.store.slices() == [(0, 3)]
    assert shard.store.touched_slices() == [0]


def test_an_aborted_batch_leaves_nothing(shard: Shard) -> None:
    shard.merge([(1, 10), (2, 20)])
    shard.commit()
    shard.merge([(1, 1), (3, 3)])
    shard.flush()
    shard.merge([(3, 1)])
    shard.store.abort()
    assert shard.groups() == {1: (1, 10), 2: (1, 20)}
    assert shard.store.slices() == [(0, 2)]
    assert shard.store.touched_slices() == []
    assert shard.store.dirty_bytes == 0


def test_put_replaces_and_delete_removes(shard: Shard) -> None:
    shard.merge([(1, 10), (2, 20), (3, 30)])
    shard.commit()
    for batch in encode(shard.layout, [(1, 99)]):
        shard.store.put(batch)
    for batch in encode(shard.layout, [(2, 0), (7, 0)]):
        shard.store.delete(batch)
    assert shard.groups() == {1: (1, 99), 3: (1, 30)}
    shard.commit()
    shard.reopen()
    assert shard.groups() == {1: (1, 99), 3: (1, 30)}
    assert shard.store.slices() == [(0, 2)]


def test_get_gives_each_key_its_group_and_says_which_exist(shard: Shard) -> None:
    shard.merge([(1, 10), (2, 20)])
    shard.commit()
    shard.reopen()
    [batch] = encode(shard.layout, [(2, 0), (5, 0), (1, 0)])
    groups, exist = shard.store.get(batch)
    assert groups.column(0).to_pylist() == [2, 5, 1]
    assert exist.to_pylist() == [True, False, True]
    assert groups.column(2).to_pylist() == [20, None, 10]


def test_a_reopened_store_reads_what_was_committed(shard: Shard) -> None:
    for start in range(0, 4000, 1000):
        shard.merge([(key, key) for key in range(start, start + 2000)])
        shard.commit()
    before = shard.groups()
    assert len(before) == 5000
    shard.reopen()
    assert shard.groups() == before
    assert len(shard.store.run_lengths(0)) == 4
    shard.compact(0)
    assert shard.groups() == before
    assert [rows for _, rows in shard.store.run_lengths(0)] == [5000]
    stats = shard.store.slice_stats(0)
    assert stats["rows"] == 5000
    assert stats["runs"] == 1
    assert stats["live_bytes"] == stats["run_bytes"]


def test_a_batch_larger_than_the_memory_is_kept(tmp_path: Path) -> None:
    shard = Shard(counting_layout(), tmp_path, memory_bytes=200_000)
    for _ in range(2):
        for start in range(0, 20_000, 1000):
            shard.merge([(key, 1) for key in range(start, start + 1000)])
            if shard.store.dirty_bytes > 50_000:
                shard.flush()
        assert len(shard.groups([0], touched_only=True)) == 20_000
        shard.commit()
    assert shard.store.stats()["memory_bytes"] < 400_000
    assert shard.store.slices() == [(0, 20_000)]
    assert set(shard.groups().values()) == {(2, 2)}


def test_windows_are_merged_from_panes_and_dropped_whole(tmp_path: Path) -> None:
    # Windows of 10 µs every 5 µs over the column v: a pane every 5 µs.
    shard = Shard(counting_layout(panes=(1, 10, 5, 0)), tmp_path)
    shard.merge([(1, 1), (1, 6), (2, 7), (1, 12)])
    panes = [slice_ for slice_, _ in shard.store.slices()]
    assert len(panes) == 3
    shard.commit()
    assert shard.groups(panes[:2]) == {1: (2, 7), 2: (1, 7)}
    assert shard.groups(panes[1:]) == {1: (2, 18), 2: (1, 7)}
    shard.merge([(2, 13)])
    assert shard.groups(panes[1:], touched_only=True) == {2: (2, 20)}
    shard.store.drop(panes[0])
    assert [slice_ for slice_, _ in shard.store.slices()] == panes[1:]
    shard.store.abort()
    assert [slice_ for slice_, _ in shard.store.slices()] == panes
    shard.store.drop(panes[0])
    shard.store.commit()
    assert [slice_ for slice_, _ in shard.store.slices()] == panes[1:]
    assert not shard.store.replace(panes[0], 0, 1, shard.store.runs(panes[1])[0])


def test_a_dropped_slice_takes_no_rows_until_the_batch_ends(shard: Shard) -> None:
    shard.merge([(1, 1)])
    shard.store.drop(0)
    with pytest.raises(ValueError, match="dropped"):
        shard.merge([(1, 1)])
    shard.store.commit()
    shard.merge([(1, 1)])
    assert shard.groups() == {1: (1, 1)}


def test_groups_that_carry_their_time_expire_one_by_one(tmp_path: Path) -> None:
    shard = Shard(counting_layout(keyed_time=(0, 1000)), tmp_path)
    shard.merge([(key, 1) for key in (100, 200, 300, 5000)])
    shard.commit()
    shard.reopen()
    slices = [slice_ for slice_, _ in shard.store.slices()]
    assert len(slices) == 2
    assert set(shard.groups(slices, expired_at_us=200)) == {100, 200}
    assert shard.store.delete_expired(slices[0], 200) == 2
    assert shard.store.delete_expired(slices[0], 200) == 0
    assert set(shard.groups()) == {300, 5000}
    shard.commit()
    shard.reopen()
    assert set(shard.groups()) == {300, 5000}


def test_text_keys_and_values_of_any_length(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    layout = kernel.Layout(schema, 1, [("max", [1], None), ("count", [], None)])
    shard = Shard(layout, tmp_path, memory_bytes=100_000)
    for turn in range(5):
        shard.merge([(f"key{n}" * (n % 5), f"{turn}" * (n % 300)) for n in range(2000)])
        shard.commit()
    expected: dict[object, tuple[object, ...]] = {}
    for n in range(2000):
        key = f"key{n}" * (n % 5)
        largest, times = expected.get(key, ("", 0))
        expected[key] = (max(str(largest), "4" * (n % 300)), int(str(times)) + 5)
    assert shard.groups() == expected
    shard.reopen()
    assert shard.groups() == expected


def test_a_scan_of_a_store_that_changed_is_an_error(shard: Shard) -> None:
    shard.merge([(key, 1) for key in range(10)])
    scan = shard.store.scan([0], max_rows=4)
    assert next(scan).num_rows == 4
    shard.merge([(1, 1)])
    with pytest.raises(ValueError, match="changed during a scan"):
        next(scan)


def test_commit_refuses_to_lose_changes(shard: Shard, tmp_path: Path) -> None:
    shard.merge([(1, 1)])
    with pytest.raises(ValueError, match="flush before the commit"):
        shard.store.commit()
    writer = kernel.PackWriter(str(tmp_path / "lone"))
    shard.store.flush(writer)
    writer.finish()
    for forgotten in (shard.store.commit, lambda: shard.merge([(2, 2)])):
        with pytest.raises(ValueError, match="add_pending"):
            forgotten()
    shard.store.abort()
    assert shard.groups() == {}


def test_rows_of_another_shard_or_layout_are_refused(shard: Shard) -> None:
    half = kernel.Store(shard.layout, 0, kernel.BUCKETS // 2, MEMORY_BYTES)
    [batch] = encode(shard.layout, [(key, 1) for key in range(100)])
    with pytest.raises(ValueError, match="does not belong to this shard"):
        half.merge(batch)
    with pytest.raises(ValueError, match="layout"):
        shard.store.merge(batch.select(["hash", "slice", "key"]))
    with pytest.raises(ValueError, match="buckets"):
        kernel.Store(shard.layout, 7, 7, MEMORY_BYTES)


def test_an_overflow_is_an_error_and_the_batch_can_be_aborted(shard: Shard) -> None:
    shard.merge([(1, 2**62)])
    shard.commit()
    with pytest.raises(kernel.Overflow):
        shard.merge([(1, 2**62)])
    shard.store.abort()
    assert shard.groups() == {1: (1, 2**62)}


def test_a_failed_batch_leaves_nothing_of_what_it_read_back_from_its_own_runs(tmp_path: Path) -> None:
    shard = Shard(counting_layout(), tmp_path, memory_bytes=0)
    shard.merge([(1, 2**62), (2, 5)])
    shard.commit()
    shard.merge([(1, 1), (2, 1)])
    shard.flush()
    with pytest.raises(kernel.Overflow):
        shard.merge([(1, 2**62), (2, 1)])
    shard.store.abort()
    assert shard.groups() == {1: (1, 2**62), 2: (1, 5)}


def test_a_compaction_does_not_disturb_a_scan(shard: Shard) -> None:
    for value in range(3):
        shard.merge([(key, value) for key in range(1000)])
        shard.commit()
    shard.reopen()
    scan = shard.store.scan([0], max_rows=100)
    found = next(scan).num_rows
    shard.compact(0)
    assert found + sum(batch.num_rows for batch in scan) == 1000


def test_statistics_can_be_read_while_another_thread_writes(shard: Shard) -> None:
    batches = encode(shard.layout, [(key, 1) for key in range(50_000)])
    stop = threading.Event()

    def write() -> None:
        try:
            for _ in range(20):
                for batch in batches:
                    shard.store.merge(batch)
        finally:
            stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        assert shard.store.stats()["rows"] in (0, 50_000)
    writer.join()
    assert set(shard.groups().values()) == {(20, 20)}


def test_the_statistics_have_all_their_names(shard: Shard) -> None:
    shard.merge([(1, 1)])
    shard.commit()
    stats = shard.store.stats()
    assert set(stats) == {
        "rows",
        "memory_bytes",
        "run_bytes",
        "live_bytes",
        "runs",
        "gets",
        "memory_hits",
        "filter_negatives",
        "disk_probes",
        "block_reads",
        "read_requests",
        "read_wait_ns",
        "false_positives",
        "read_bytes",
        "lookup_ns",
        "removal_ns",
    }
    assert (stats["rows"], stats["runs"], stats["gets"], stats["block_reads"]) == (1, 1, 1, 0)
    assert set(shard.store.slice_stats(0)) == {"rows", "live_bytes", "run_bytes", "runs", "vain_ns"}


def test_what_a_merge_would_have_spared_look_ups_is_counted_until_there_is_one(shard: Shard) -> None:
    for first in range(0, 20_000, 5_000):
        shard.merge([(key, 1) for key in range(first, first + 5_000)])
        shard.commit()
    # All groups were in memory so far.
    assert shard.store.slice_stats(0)["vain_ns"] == 0
    shard.reopen()
    shard.merge([(key, 1) for key in range(20_000, 25_000)])
    shard.commit()
    assert shard.store.slice_stats(0)["vain_ns"] > 0
    shard.compact(0)
    assert shard.store.slice_stats(0)["vain_ns"] == 0
    shard.reopen()
    shard.merge([(key, 1) for key in range(25_000, 30_000)])
    # One run is what a merge leaves.
    assert shard.store.slice_stats(0)["vain_ns"] == 0


def test_looking_for_cold_groups_takes_time_of_its_own(shard: Shard) -> None:
    shard.merge([(key, 1) for key in range(5_000)])
    shard.commit()
    shard.merge([(key, 1) for key in range(5_000)])
    shard.commit()
    assert shard.store.spent_ns == (0, 0)
    shard.reopen()
    files_before = kernel.thread_files_ns()
    shard.merge([(key, 1) for key in range(5_000)])
    lookups_ns, removals_ns = shard.store.spent_ns
    assert lookups_ns > 0
    assert removals_ns == 0
    assert kernel.thread_files_ns() > files_before


def test_removal_takes_time_of_its_own(shard: Shard, tmp_path: Path) -> None:
    shard.merge([(key, 1) for key in range(5_000)])
    shard.store.drop(0)
    shard.commit()
    lookups_ns, removals_ns = shard.store.spent_ns
    assert lookups_ns == 0
    assert removals_ns > 0


def test_what_a_thread_spends_on_files_is_its_own(shard: Shard) -> None:
    before = kernel.thread_files_ns()
    elsewhere: list[int] = []

    def commit() -> None:
        shard.merge([(key, 1) for key in range(1_000)])
        shard.commit()
        elsewhere.append(kernel.thread_files_ns())

    thread = threading.Thread(target=commit)
    thread.start()
    thread.join()
    assert elsewhere[0] > 0
    assert kernel.thread_files_ns() == before
