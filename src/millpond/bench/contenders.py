"""The stores that run the kernel workload: Millpond's own and RocksDB.

Both get the batches ready to use (encoded rows, or keys as bytes with the values to add); only the work on the
store is timed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.bench.job import BatchTime, Job, Outcome
from millpond.bench.kernel import KERNEL_ENGINES, KernelMerge
from millpond.service.spent import Stopwatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["run_kernel"]

MEMORY_BYTES = 1 << 30
KEY_BYTES = 8
VALUE_BYTES = 16
HASH_BUCKETS = 1 << 21
INPUT = pa.schema([("key", pa.int64()), ("value", pa.int64())])


class _Contender(Protocol):
    def ready(self, keys: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Brings a batch into the form that the store takes; not timed."""

    def merge(self, watch: Stopwatch) -> None:
        """Adds the batch to the store, in sections of the stopwatch."""

    def loaded(self) -> None:
        """Every key is in the store now; not timed."""

    def contents(self) -> pa.Table:
        """key, n, total."""

    def state(self) -> tuple[int | None, int | None]:
        """Rows and bytes."""


def run_kernel(workload: KernelMerge, job: Job) -> Outcome:
    # One core for the store's own threads too.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    contender: _Contender
    match job.engine:
        case "millpond":
            contender = _Millpond(Path(job.directory))
        case "rocksdb":
            contender = _RocksDB(Path(job.directory, "rocksdb"))
        case other:
            raise ValueError(f"no engine {other!r} for the kernel; there are {', '.join(KERNEL_ENGINES)}")
    times = []
    for number, (keys, values) in enumerate(workload.draws()):
        if number == workload.loading_batches:
            contender.loaded()
        contender.ready(keys, values)
        watch = Stopwatch()
        started = time.perf_counter()
        contender.merge(watch)
        ms = (time.perf_counter() - started) * 1_000
        spent = watch.spent()
        times.append(BatchTime(len(keys), ms, {}, spent.wall_ms, spent.cpu_ms))
    output = job.output / "batch=0"
    output.mkdir(parents=True)
    pq.write_table(contender.contents(), output / "state.parquet")
    rows, size = contender.state()
    return Outcome(batches=tuple(times), state_rows=rows, state_bytes=size)


class _Millpond:
    """The loaded keys are committed; the draws that follow belong to one running batch."""

    def __init__(self, directory: Path) -> None:
        from millpond import _kernel

        self._pack = str(directory / "loaded.pack")

        self._kernel = _kernel
        self._layout = _kernel.Layout(INPUT, 1, [("count", [], None), ("sum_int", [1], None)])
        self._store = _kernel.Store(self._layout, 0, _kernel.BUCKETS, MEMORY_BYTES)
        self._encoded: list[pa.RecordBatch] = []

    def ready(self, keys: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        combiner = self._kernel.Combiner(self._layout, [0])
        combiner.push(pa.record_batch([pa.array(keys), pa.array(values)], schema=INPUT))
        self._encoded = [encoded for _, encoded in combiner.drain()]

    def merge(self, watch: Stopwatch) -> None:
        lookups_before, _ = self._store.spent_ns
        with watch.on("state_write"):
            for encoded in self._encoded:
                self._store.merge(encoded)
        watch.move("state_write", "state_read", self._store.spent_ns[0] - lookups_before)

    def loaded(self) -> None:
        writer = self._kernel.PackWriter(self._pack)
        flushed = self._store.flush(writer)
        writer.finish()
        for number, offset, length, _ in flushed:
            self._store.add_pending(number, self._kernel.Run.open(self._layout, self._pack, offset, length))
        self._store.commit()

    def contents(self) -> pa.Table:
        slices = [number for number, _ in self._store.slices()]
        table = pa.Table.from_batches(self._store.scan(slices), self._layout.output_schema)
        return table.rename_columns(["key", "n", "total"])

    def state(self) -> tuple[int | None, int | None]:
        stats = self._store.stats()
        return stats["rows"], stats["memory_bytes"]


class _RocksDB:
    """At its best: no log, one memtable that holds everything, many keys a call, sums in numpy."""

    def __init__(self, path: Path) -> None:
        import rocksdict

        self._rocksdict = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(MEMORY_BYTES)
        options.set_max_write_buffer_number(4)
        options.set_allow_concurrent_memtable_write(False)
        # A hash table of keys: five times as fast here as the skip list, which walks from key to key.
        options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(KEY_BYTES))
        options.set_memtable_factory(rocksdict.MemtableFactory.hash_link_list(bucket_count=HASH_BUCKETS))
        options.set_inplace_update_support(True)
        self._db = rocksdict.Rdict(str(path), options)
        no_log = rocksdict.WriteOptions()
        no_log.disable_wal = True
        self._db.set_write_options(no_log)
        self._known = False
        self._keys: list[bytes] = []
        self._added: NDArray[np.int64] = np.empty((0, 2), dtype=np.int64)
        self._rows = 0

    def ready(self, keys: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        # Reads of many keys are faster in the order of the keys; it is brought about outside the timed part.
        order = np.argsort(keys)
        packed = keys[order].astype(">i8").tobytes()
        self._keys = [packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)]
        self._added = np.column_stack([np.ones_like(values), values[order]])

    def merge(self, watch: Stopwatch) -> None:
        with watch.on("state_read"):
            found = self._db[self._keys]
        with watch.on("state_write"):
            self._write(found)

    def _write(self, found: list[bytes]) -> None:
        # The batches that load the keys find none of them, all others find every one.
        new = self._added
        if found[0] is not None:
            new = new + np.frombuffer(b"".join(found), dtype=np.int64).reshape(-1, 2)
        else:
            self._rows += len(new)
        packed = new.tobytes()
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        at = 0
        for key in self._keys:
            batch[key] = packed[at : at + VALUE_BYTES]
            at += VALUE_BYTES
        self._db.write(batch)

    def loaded(self) -> None:
        """The memtable holds them."""

    def contents(self) -> pa.Table:
        every = self._rocksdict.ReadOptions()
        every.set_total_order_seek(True)
        keys, values = [], []
        for key, value in self._db.items(read_opt=every):
            keys.append(key)
            values.append(value)
        sums = np.frombuffer(b"".join(values), dtype=np.int64).reshape(-1, 2)
        names = np.frombuffer(b"".join(keys), dtype=">i8").astype(np.int64)
        return pa.table({"key": names, "n": sums[:, 0].copy(), "total": sums[:, 1].copy()})

    def state(self) -> tuple[int | None, int | None]:
        return self._rows, self._db.property_int_value("rocksdb.cur-size-all-mem-tables")
