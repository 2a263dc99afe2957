"""Storage that waits: each request pays once, what is local pays nothing, and the waiting is counted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millpond import _kernel as kernel
from millpond.semantics.operator import Column, Panes, WindowRowsSpec
from millpond.service.spent import Stopwatch
from millpond.state.opening import open_shard, sorter_of
from millpond.state.shard import OperatorShard, Place
from millpond.storage.delayed import DelayedStorage, waited_ns
from millpond.storage.local import LocalStorage
from millpond.storage.store import open_storage
from millpond.testing.storage import CONFORMANCE_CHECKS, MemoryStorage
from tests.service_kit import joined, session_rows


class ManualClock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 0

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def read_ns(self) -> int:
        return self.now_ns


def delayed(latency_ms: float) -> DelayedStorage:
    clock = ManualClock()
    return DelayedStorage(MemoryStorage(), latency_ms, sleep=clock.sleep, clock_ns=clock.read_ns)


@pytest.mark.parametrize("check", CONFORMANCE_CHECKS, ids=lambda check: check.__name__)
def test_it_is_a_storage_like_any_other(check) -> None:
    check(delayed(23))


def test_each_request_waits_once_and_is_counted() -> None:
    storage = delayed(1.5)
    storage.put("a", b"abc")
    storage.get("a", 1, 1)
    storage.list("")
    storage.delete("a")
    assert storage.requests == 4
    assert storage.waited_ns == 4 * 1_500_000
    assert waited_ns(storage) == storage.waited_ns


def test_a_failed_request_has_waited_too() -> None:
    storage = delayed(1.5)
    with pytest.raises(Exception, match="missing"):
        storage.get("nothing here")
    assert (storage.requests, storage.waited_ns) == (1, 1_500_000)


def test_only_a_latency_makes_storage_wait(tmp_path: Path) -> None:
    assert isinstance(open_storage(str(tmp_path)), LocalStorage)
    assert isinstance(open_storage(str(tmp_path), 1.5), DelayedStorage)
    assert waited_ns(open_storage(str(tmp_path))) == 0


LAYOUT = kernel.Layout(pa.schema([("k", pa.int64())]), 1, [("count", [], None)])


def encoded(keys: range) -> pa.RecordBatch:
    combiner = kernel.Combiner(LAYOUT, [0])
    combiner.push(pa.record_batch([pa.array(keys)], names=["k"]))
    [(_, rows)] = combiner.drain()
    return rows


def test_block_reads_that_miss_memory_wait_once_a_request(tmp_path: Path) -> None:
    path = str(tmp_path / "pack")
    store = kernel.Store(LAYOUT, 0, kernel.BUCKETS, 1 << 26)
    store.merge(encoded(range(100_000)))
    writer = kernel.PackWriter(path)
    [(_, offset, length, rows)] = store.flush(writer)
    writer.finish()

    cold = kernel.Store(LAYOUT, 0, kernel.BUCKETS, 1 << 26)
    cold.restore(0, rows, [kernel.Run.open(LAYOUT, path, offset, length, 2_000)])
    cold.merge(encoded(range(5)))
    first = cold.stats()
    assert first["disk_probes"] == 5
    # Neighbouring blocks come with one request.
    assert 1 <= first["read_requests"] <= first["block_reads"] <= 5
    assert first["read_wait_ns"] >= first["read_requests"] * 2_000_000
    cold.merge(encoded(range(5)))
    second = cold.stats()
    assert second["memory_hits"] == first["memory_hits"] + 5
    assert second["read_requests"] == first["read_requests"]


KEPT = pa.schema([("k", pa.int64()), ("t", pa.int64())])
KEPT_ROWS = WindowRowsSpec(
    name="rows-0",
    keys=(Column("k", "bigint"),),
    key_columns=(0,),
    kept_columns=(0, 1),
    kept=(Column("k", "bigint"), Column("t", "bigint")),
    purpose="a test",
    time=Panes(1, 10, 10, 0, Column("window", "struct")),
    input_ipc=KEPT.serialize().to_pybytes(),
    output_ipc=pa.schema([*KEPT, ("start", pa.int64()), ("end", pa.int64())]).serialize().to_pybytes(),
)


def save(store: OperatorShard, path: Path) -> None:
    """Flushes and commits what the running batch brought."""
    writer = kernel.PackWriter(str(path))
    flushed = store.flush(writer)
    writer.finish()
    store.add_pending(flushed, path.name, str(path))
    store.commit()


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20], ids=["from its file", "from memory"])
def test_kept_rows_that_are_read_from_a_file_wait_once_a_read(tmp_path: Path, memory_bytes: int) -> None:
    store = open_shard(Place(0, 0, 0, kernel.BUCKETS, memory_bytes, read_delay_us=2_000), KEPT_ROWS)
    columns = [pa.array([1, 2]), pa.array([3, 4]), pa.array([0, 0])]
    store.apply(pa.record_batch(columns, names=["k", "t", "slice"]))
    save(store, tmp_path / "pack")

    watch = Stopwatch()
    with watch.on("state_read"):
        assert sum(rows.num_rows for rows in store.fire("append", 0, 10)) == 2
    stats = store.stats()
    reads = 0 if memory_bytes else 1
    assert (stats["gets"], stats["disk_probes"], stats["read_requests"]) == (1, reads, reads)
    assert stats["read_wait_ns"] >= reads * 2_000_000
    # Where time went: this was waiting, not work.
    assert (watch.spent().wall_ms.get("io_wait", 0.0) >= 2.0) == bool(reads)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20], ids=["from its file", "from memory"])
def test_a_join_that_reads_kept_rows_from_a_file_waits_once_a_read(tmp_path: Path, memory_bytes: int) -> None:
    spec = joined()
    store = open_shard(Place(0, 0, 0, kernel.BUCKETS, memory_bytes, read_delay_us=2_000), spec)

    def take(side: int, row: list[int]) -> int:
        sorter, _ = sorter_of(spec, side, (0,), None, None)
        sorter.push(pa.record_batch([pa.array([value]) for value in row], schema=spec.input_of(side)))
        [(_, rows)] = sorter.drain()
        store.apply(rows)
        found = sum(batch.num_rows for batch in store.fire("append", 0, 0))
        save(store, tmp_path / f"pack-{side}")
        return found

    assert take(1, [7, 1, 75, 0, 0, 105]) == 0
    assert take(0, [7, 2, 100, 70, 80, 80]) == 1
    stats = store.stats()
    reads = 0 if memory_bytes else 1
    assert (stats["memory_hits"], stats["disk_probes"], stats["read_requests"]) == (1 - reads, reads, reads)
    assert stats["read_wait_ns"] >= reads * 2_000_000


def test_rows_of_sessions_that_are_read_from_a_file_wait_once_a_read(tmp_path: Path) -> None:
    spec = session_rows()
    store = open_shard(Place(0, 0, 0, kernel.BUCKETS, 0, read_delay_us=2_000), spec)
    sorter, _ = sorter_of(spec, 0, (0,), None, None)
    sorter.push(pa.record_batch([pa.array([value]) for value in (1, 2, 3, 13)], schema=spec.input_schema))
    [(_, rows)] = sorter.drain()
    store.apply(rows)
    save(store, tmp_path / "pack")
    watch = Stopwatch()
    with watch.on("state_read"):
        assert sum(batch.num_rows for batch in store.fire("append", 0, 20)) == 1
    # One read of the index, one of the rows.
    assert watch.spent().wall_ms["io_wait"] >= 4.0
