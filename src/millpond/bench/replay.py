"""The stores that replay a trace: Millpond's kernel, RocksDB and LMDB, each alone on one core.

Only the work on the store is timed: reading, merging, writing and removing. Nothing is made durable in that time:
RocksDB has no log, LMDB does not sync, and Millpond's flush to files, which its commit needs, happens between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.bench.job import BatchTime, Job, Outcome
from millpond.bench.trace import (
    REPLAY_ENGINES,
    Step,
    TraceReplay,
    adds,
    asked,
    encoded_rows,
    steps,
    sums,
    trace_batches,
)
from millpond.bench.workload import load
from millpond.service.spent import Stopwatch
from millpond.service.trace import TraceReader

__all__ = ["run_replay"]

MEMORY_BYTES = 1 << 30
HASH_BUCKETS = 1 << 21
LMDB_LARGEST_KEY = 511
LMDB_MAP_BYTES = 1 << 38
"""The most that the file may become; what is not written takes no space."""


class _Replayer(Protocol):
    def batches(self) -> Iterator[Any]:
        """The batches in the form that the store takes; not timed."""

    def apply(self, batch: Any, watch: Stopwatch) -> None:
        """Does the batch's work in sections of the stopwatch."""

    def values(self, operator: int, groups: pa.Table) -> list[bytes | None]:
        """For each of the groups its counts and sums, nothing where the operator keeps other things, and None where
        it does not exist."""

    def state(self) -> tuple[int, int]:
        """Rows and bytes."""


def run_replay(workload: TraceReplay, job: Job) -> Outcome:
    # One core for the store's own threads too.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    replayer = _replayer(workload, job)
    rows = [batch.rows for batch in load(Path(job.data)).batches]
    times = []
    for number, batch in enumerate(replayer.batches()):
        watch = Stopwatch()
        replayer.apply(batch, watch)
        spent = watch.spent()
        times.append(BatchTime(rows[number], sum(spent.wall_ms.values()), {}, spent.wall_ms, spent.cpu_ms))
    state_rows, state_bytes = replayer.state()
    contents = _contents(workload, replayer, Path(job.data))
    if contents.num_rows != state_rows:
        raise RuntimeError(f"the store has {state_rows} keys, of which the trace knows {contents.num_rows}")
    output = job.output / "batch=0"
    output.mkdir(parents=True)
    pq.write_table(contents, output / "state.parquet")
    return Outcome(batches=tuple(times), state_rows=state_rows, state_bytes=state_bytes)


def _replayer(workload: TraceReplay, job: Job) -> _Replayer:
    data, directory = Path(job.data), Path(job.directory)
    match job.engine:
        case "millpond":
            return _Millpond(TraceReader(Path(workload.path)), directory)
        case "rocksdb":
            return _RocksDB(data, workload.merges, directory / "rocksdb")
        case "lmdb":
            return _Lmdb(data, workload.merges, directory / "lmdb")
        case other:
            raise ValueError(f"no engine {other!r} for a trace; there are {', '.join(REPLAY_ENGINES)}")


def _contents(workload: TraceReplay, replayer: _Replayer, data: Path) -> pa.Table:
    tables = []
    for operator in range(len(workload.merges)):
        groups = asked(data, operator)
        values = replayer.values(operator, groups)
        exist = [value is not None for value in values]
        there = groups.filter(pa.array(exist, pa.bool_()))
        tables.append(
            pa.table(
                {
                    "operator": pa.array([operator] * there.num_rows, pa.int64()),
                    "slice": there.column("slice"),
                    "key": there.column("key").cast(pa.binary()),
                    "value": pa.array(list(compress(values, exist)), pa.binary()),
                }
            )
        )
    return pa.concat_tables(tables)


class _Millpond:
    """One store per operator; a batch is merged, removed from and committed."""

    def __init__(self, reader: TraceReader, directory: Path) -> None:
        from millpond import _kernel
        from millpond.state.layout import layout_of

        self._kernel = _kernel
        self._reader = reader
        self._directory = directory
        self._layouts = [layout_of(spec) for spec in reader.operators]
        share = MEMORY_BYTES // len(self._layouts)
        self._stores = [_kernel.Store(layout, 0, _kernel.BUCKETS, share) for layout in self._layouts]
        self._packs = 0

    def batches(self) -> Iterator[list[tuple[int, Any, pa.RecordBatch | None]]]:
        for calls in trace_batches(self._reader):
            yield [
                (
                    call.operator,
                    call.access,
                    None
                    if call.access.rows is None
                    else encoded_rows(self._layouts[call.operator], call.access.rows),
                )
                for call in calls
            ]

    def apply(self, batch: list[tuple[int, Any, pa.RecordBatch | None]], watch: Stopwatch) -> None:
        lookups_before, _ = self._spent_ns()
        for operator, access, rows in batch:
            store = self._stores[operator]
            if rows is not None:
                with watch.on("state_write"):
                    store.merge(rows)
            elif access.kind == "drop":
                with watch.on("removal"):
                    store.drop(access.slice)
            else:
                with watch.on("removal"):
                    store.delete_expired(access.slice, access.expired_at_us)
        _, removals_before = self._spent_ns()
        self._flush()
        with watch.on("state_write"):
            for store in self._stores:
                store.commit()
        lookups, removals = self._spent_ns()
        watch.move("state_write", "state_read", lookups - lookups_before)
        watch.move("state_write", "removal", removals - removals_before)

    def _spent_ns(self) -> tuple[int, int]:
        spent = [store.spent_ns for store in self._stores]
        return sum(lookups for lookups, _ in spent), sum(removals for _, removals in spent)

    def _flush(self) -> None:
        path = str(self._directory / f"{self._packs}.pack")
        self._packs += 1
        writer = self._kernel.PackWriter(path)
        flushed = [store.flush(writer) for store in self._stores]
        if writer.finish() == 0:
            return
        for store, layout, runs in zip(self._stores, self._layouts, flushed, strict=True):
            for slice_, offset, length, _ in runs:
                store.add_pending(slice_, self._kernel.Run.open(layout, path, offset, length))

    def values(self, operator: int, groups: pa.Table) -> list[bytes | None]:
        spec, layout, store = (
            self._reader.operators[operator],
            self._layouts[operator],
            self._stores[operator],
        )
        found: list[bytes | None] = []
        for batch in groups.drop_columns(["name"]).to_batches():
            exist = store.get(batch)[1].to_pylist()
            values = [b""] * batch.num_rows
            if adds(spec):
                packed = sums(layout, len(spec.keys), batch, store)
                width = len(packed) // batch.num_rows
                values = [packed[at : at + width] for at in range(0, len(packed), width)]
            found += [value if there else None for value, there in zip(values, exist, strict=True)]
        return found

    def state(self) -> tuple[int, int]:
        stats = [store.stats() for store in self._stores]
        return sum(each["rows"] for each in stats), sum(each["memory_bytes"] for each in stats)


class _Peer:
    """A store of bytes, which takes the steps that were made from the trace."""

    def __init__(self, data: Path, merges: tuple[str, ...]) -> None:
        self._data = data
        self._merges = merges
        self._batches = len(load(data).batches)

    def batches(self) -> Iterator[list[Step]]:
        for number in range(self._batches):
            yield steps(self._data, number)

    def _key_lengths(self, operator: int) -> set[int]:
        return set(pc.unique(pc.binary_length(asked(self._data, operator)["name"])).to_pylist())

    def _comparable(self, operator: int, found: list[bytes | None]) -> list[bytes | None]:
        """What was put in place of a merge is not the merged value, so only its being there counts."""
        if self._merges[operator] == "add":
            return found
        return [None if value is None else b"" for value in found]


def _added(step: Step, found: list[bytes]) -> list[bytes]:
    """The step's vectors with those added that were found, which are those of the known keys in their order."""
    assert step.values is not None
    width = len(step.values[0])
    new = np.frombuffer(b"".join(step.values), dtype="<i8").reshape(len(step.keys), -1).copy()
    if found:
        new[step.known] += np.frombuffer(b"".join(found), dtype="<i8").reshape(len(found), -1)
    packed = new.tobytes()
    return [packed[at : at + width] for at in range(0, len(packed), width)]


class _RocksDB(_Peer):
    """At its best: no log, one memtable that holds everything, many keys a call in order, sums in numpy."""

    def __init__(self, data: Path, merges: tuple[str, ...], path: Path) -> None:
        import rocksdict

        super().__init__(data, merges)
        self._rocksdict = rocksdict
        path.mkdir()
        self._stores = [
            self._open(path / str(operator), self._key_lengths(operator)) for operator in range(len(merges))
        ]

    def _open(self, path: Path, key_lengths: set[int]) -> Any:
        rocksdict = self._rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(MEMORY_BYTES // len(self._merges))
        options.set_max_write_buffer_number(4)
        options.set_allow_concurrent_memtable_write(False)
        if len(key_lengths) == 1:
            # A hash table of keys, much faster than the skip list; it wants keys of one length.
            (length,) = key_lengths
            options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(length))
            options.set_memtable_factory(rocksdict.MemtableFactory.hash_link_list(bucket_count=HASH_BUCKETS))
        options.set_inplace_update_support(True)
        store = rocksdict.Rdict(str(path), options)
        no_log = rocksdict.WriteOptions()
        no_log.disable_wal = True
        store.set_write_options(no_log)
        return store

    def apply(self, batch: list[Step], watch: Stopwatch) -> None:
        for step in batch:
            store = self._stores[step.operator]
            if step.values is None:
                with watch.on("removal"):
                    deletes = self._rocksdict.WriteBatch(raw_mode=True)
                    for key in step.keys:
                        deletes.delete(key)
                    store.write(deletes)
                continue
            with watch.on("state_read"):
                found = store[step.keys]
            with watch.on("state_write"):
                values = _added(step, list(filter(None, found))) if step.adds else step.values
                writes = self._rocksdict.WriteBatch(raw_mode=True)
                for key, value in zip(step.keys, values, strict=True):
                    writes[key] = value
                store.write(writes)

    def values(self, operator: int, groups: pa.Table) -> list[bytes | None]:
        names = groups.column("name").to_pylist()
        return self._comparable(operator, self._stores[operator][names] if names else [])

    def state(self) -> tuple[int, int]:
        every = self._rocksdict.ReadOptions()
        every.set_total_order_seek(True)
        rows = sum(1 for store in self._stores for _ in store.keys(read_opt=every))
        sizes = [store.property_int_value("rocksdb.cur-size-all-mem-tables") for store in self._stores]
        return rows, sum(sizes)


class _Lmdb(_Peer):
    """At its best: a writable map, no sync, one transaction a batch, many keys a call in order, sums in numpy."""

    def __init__(self, data: Path, merges: tuple[str, ...], path: Path) -> None:
        import lmdb

        super().__init__(data, merges)
        longest = max(length for operator in range(len(merges)) for length in self._key_lengths(operator))
        if longest > LMDB_LARGEST_KEY:
            raise ValueError(
                f"not supported: LMDB takes keys of up to {LMDB_LARGEST_KEY} bytes, the trace has {longest}"
            )
        self._env = lmdb.open(
            str(path),
            map_size=LMDB_MAP_BYTES,
            writemap=True,
            sync=False,
            metasync=False,
            lock=False,
            readahead=False,
            meminit=False,
            max_dbs=len(merges),
        )
        self._tables = [self._env.open_db(str(operator).encode()) for operator in range(len(merges))]

    def apply(self, batch: list[Step], watch: Stopwatch) -> None:
        with watch.on("state_write"):
            transaction = self._env.begin(write=True)
            cursors = [transaction.cursor(db=table) for table in self._tables]
        for step in batch:
            cursor = cursors[step.operator]
            if step.values is None:
                with watch.on("removal"):
                    for key in step.keys:
                        transaction.delete(key, db=self._tables[step.operator])
                continue
            with watch.on("state_read"):
                found = cursor.getmulti(step.keys)
            with watch.on("state_write"):
                values = _added(step, [value for _, value in found]) if step.adds else step.values
                cursor.putmulti(zip(step.keys, values, strict=True))
        with watch.on("state_write"):
            transaction.commit()

    def values(self, operator: int, groups: pa.Table) -> list[bytes | None]:
        with self._env.begin() as transaction:
            names = groups.column("name").to_pylist()
            found = [transaction.get(name, db=self._tables[operator]) for name in names]
        return self._comparable(operator, found)

    def state(self) -> tuple[int, int]:
        with self._env.begin() as transaction:
            rows = sum(transaction.stat(table)["entries"] for table in self._tables)
        return rows, (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
