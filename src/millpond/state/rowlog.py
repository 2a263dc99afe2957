"""Rows that are kept until their window ends: one log per slice, appended to in batches, read in order, then dropped.

Nothing is looked up and nothing is merged, so rows stay Arrow all the way: a run is one record batch as Arrow's IPC
format has it, in a pack, with a checksum. What memory holds of the log are the slices that end next, because those
are read next.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import PackWriter, read_blob
from millpond.errors import InternalError
from millpond.policy.compaction import Limits, Rest
from millpond.semantics.operator import KeyedTime, OutputMode, Panes, WindowRowsSpec
from millpond.semantics.windows import due_windows, expired_slices, pane_slices
from millpond.state.routing import SLICE, routed_schema
from millpond.state.shard import FlushedRun, Merge, OneStoreShard, Place
from millpond.storage.manifest import RunRef

__all__ = ["RowLogShard"]


@dataclass
class _Chunk:
    """Rows in a file, in memory, or both."""

    rows: int
    batch: pa.RecordBatch | None
    path: str | None = None
    offset: int = 0
    length: int = 0

    @property
    def memory_bytes(self) -> int:
        return 0 if self.batch is None else self.batch.nbytes


class RowLogShard(OneStoreShard):
    store_text = "one log of rows for each pane or window, read once when it ends and dropped whole"

    def __init__(self, place: Place, spec: WindowRowsSpec) -> None:
        super().__init__(place, spec)
        self._time = spec.time
        self._kept_schema = routed_schema(spec).remove(len(spec.kept_columns))
        self._logs: dict[int, list[_Chunk]] = {}
        """What is committed."""
        self._fresh: dict[int, list[_Chunk]] = {}
        """What the running batch appended: first what has been flushed, then what has not."""
        self._ended: set[int] = set()
        """Slices whose committed rows the running batch took."""
        self._reads = self._memory_hits = self._read_bytes = self._read_wait_ns = self._rewritten_bytes = 0

    def apply(self, rows: pa.RecordBatch) -> None:
        slice_ = rows.column(SLICE)[0].as_py()
        kept = rows.remove_column(rows.num_columns - 1)
        self._fresh.setdefault(slice_, []).append(_Chunk(kept.num_rows, kept))

    # Reading and removing

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        if mode != "append":
            raise InternalError(f"{self.spec.name}: rows of windows are given out once, in append mode")
        schema = self.spec.output_schema
        match self._time:
            case Panes() as panes:
                yield from self._fire_panes(panes, schema, before_us, watermark_us)
            case KeyedTime() as keyed:
                yield from self._fire_keyed(keyed, schema, watermark_us)

    def _fire_panes(
        self, panes: Panes, schema: pa.Schema, before_us: int, watermark_us: int
    ) -> Iterator[pa.RecordBatch]:
        live = [slice_ for slice_, _ in self.slices()]
        present = set(live)
        start_type, end_type = schema.types[-2], schema.types[-1]
        for start in due_windows(panes, live, before_us, watermark_us):
            for slice_ in pane_slices(panes, start):
                for rows in self._read(slice_) if slice_ in present else ():
                    bounds = [
                        pa.repeat(pa.scalar(start, start_type), rows.num_rows),
                        pa.repeat(pa.scalar(start + panes.size_us, end_type), rows.num_rows),
                    ]
                    yield pa.RecordBatch.from_arrays([*rows.columns, *bounds], schema=schema)
        for slice_ in expired_slices(panes, live, watermark_us):
            self._end(slice_)

    def _fire_keyed(self, keyed: KeyedTime, schema: pa.Schema, watermark_us: int) -> Iterator[pa.RecordBatch]:
        for slice_, _ in self.slices():
            if slice_ <= watermark_us:
                for rows in self._read(slice_):
                    yield pa.RecordBatch.from_arrays(rows.columns[: len(schema)], schema=schema)
                self._end(slice_)
            elif slice_ - keyed.slice_us < watermark_us:
                yield from self._fire_cut(slice_, schema, watermark_us)

    def _fire_cut(self, slice_: int, schema: pa.Schema, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """The watermark falls into the slice: some of its rows are due, the others wait on."""
        waiting: list[_Chunk] = []
        for rows in self._read(slice_):
            # Where a slice is more than one moment long, the expiry is kept as the last column.
            due = pc.less_equal(rows.columns[-1], watermark_us)
            expired, rest = rows.filter(due), rows.filter(pc.invert(due))
            if expired.num_rows:
                yield pa.RecordBatch.from_arrays(expired.columns[: len(schema)], schema=schema)
            if rest.num_rows:
                waiting.append(_Chunk(rest.num_rows, rest))
        self._end(slice_)
        if waiting:
            self._fresh[slice_] = waiting

    def _read(self, slice_: int) -> Iterator[pa.RecordBatch]:
        for chunk in self._visible(slice_):
            self._reads += 1
            if chunk.batch is not None:
                self._memory_hits += 1
                yield chunk.batch
            else:
                began = time.perf_counter_ns()
                bytes_ = self._load(chunk)
                self._read_wait_ns += time.perf_counter_ns() - began
                self._read_bytes += chunk.length
                yield self._decoded(bytes_)

    def _load(self, chunk: _Chunk) -> bytes:
        assert chunk.path is not None
        return read_blob(chunk.path, chunk.offset, chunk.length, self.place.read_delay_us)

    def _decoded(self, bytes_: bytes) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(bytes_), self._kept_schema)

    def _visible(self, slice_: int) -> list[_Chunk]:
        committed = [] if slice_ in self._ended else self._logs.get(slice_, [])
        return [*committed, *self._fresh.get(slice_, ())]

    def _end(self, slice_: int) -> None:
        self._fresh.pop(slice_, None)
        self._pending.pop(slice_, None)
        if slice_ in self._logs:
            self._ended.add(slice_)
            self._give_up(slice_)

    def slices(self) -> list[tuple[int, int]]:
        names = sorted((self._logs.keys() - self._ended) | self._fresh.keys())
        return [(slice_, sum(chunk.rows for chunk in self._visible(slice_))) for slice_ in names]

    # Files

    def _unwritten(self) -> Iterator[tuple[int, list[_Chunk]]]:
        for slice_, chunks in self._fresh.items():
            waiting = [chunk for chunk in chunks if chunk.length == 0]
            if waiting:
                yield slice_, waiting

    @property
    def dirty_bytes(self) -> int:
        return sum(chunk.memory_bytes for _, chunks in self._unwritten() for chunk in chunks)

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        flushed = []
        for slice_, waiting in list(self._unwritten()):
            batches = [chunk.batch for chunk in waiting if chunk.batch is not None]
            joined = pa.Table.from_batches(batches, self._kept_schema).combine_chunks().to_batches()
            written = [chunk for chunk in self._fresh[slice_] if chunk.length]
            for batch in joined:
                offset, length = writer.append(batch.serialize().to_pybytes())
                written.append(_Chunk(batch.num_rows, batch, None, offset, length))
                flushed.append(FlushedRun(slice_, offset, length, batch.num_rows))
            self._fresh[slice_] = written
        return flushed

    def add_pending(self, runs: Iterable[FlushedRun], pack: str, path: str) -> None:
        super().add_pending(runs, pack, path)
        self._relieve()

    def _attach(self, run: FlushedRun, path: str) -> None:
        chunks = self._fresh[run.slice]
        chunk = next(c for c in chunks if c.path is None and (c.offset, c.length) == (run.offset, run.length))
        chunk.path = path

    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:  # noqa: ARG002
        self._logs[slice_] = [_Chunk(ref.rows, None, path, ref.offset, ref.length) for ref, path in runs]

    def _commit(self) -> None:
        for slice_ in self._ended:
            del self._logs[slice_]
        for slice_, chunks in self._fresh.items():
            self._logs.setdefault(slice_, []).extend(chunks)
        self._forget_batch()
        self._relieve()

    def _abort(self) -> None:
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._ended.clear()
        self._fresh.clear()

    def _relieve(self) -> None:
        """Keeps the slices that end first; the others are read from their files when their time has come."""
        room = self.place.memory_bytes - self.dirty_bytes
        # What the running batch took is read again only if it is aborted.
        for slice_ in sorted(self._logs.keys() | self._fresh.keys(), key=lambda s: (s in self._ended, s)):
            for chunk in (*self._logs.get(slice_, ()), *self._fresh.get(slice_, ())):
                if chunk.path is not None:
                    room -= chunk.memory_bytes
                    if room < 0:
                        chunk.batch = None

    def live_bytes(self, slice_: int) -> int:
        return sum(chunk.length for chunk in self._logs.get(slice_, ()))

    def due_merge(self, slice_: int, limits: Limits) -> Rest:  # noqa: ARG002
        """None: a log is read once, from its beginning to its end, so that a row is written once."""
        return Rest()

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:
        """Rows are never merged, only moved out of packs that hold little else, each run as it lies there."""
        (chunk,) = self._logs[slice_][first : first + count]

        def merge(writer: PackWriter) -> tuple[int, int, int]:
            return (*writer.append(self._load(chunk)), chunk.rows)

        return merge

    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:
        if slice_ not in self._logs:
            return False
        moved = _Chunk(ref.rows, None, path, ref.offset, ref.length)
        self._logs[slice_][first : first + count] = [moved]
        self._rewritten_bytes += ref.length
        return True

    def _memory_bytes(self) -> int:
        logs = (*self._logs.values(), *self._fresh.values())
        return sum(chunk.memory_bytes for chunks in logs for chunk in chunks)

    def stats(self) -> dict[str, int]:
        chunks = [chunk for slice_ in self._logs.keys() - self._ended for chunk in self._logs[slice_]]
        written = sum(chunk.length for chunk in chunks)
        misses = self._reads - self._memory_hits
        return {
            "rows": sum(chunk.rows for chunk in chunks),
            "memory_bytes": self._memory_bytes(),
            "run_bytes": written,
            "live_bytes": written,
            "runs": len(chunks),
            "gets": self._reads,
            "memory_hits": self._memory_hits,
            "disk_probes": misses,
            "block_reads": misses,
            "read_requests": misses,
            "read_wait_ns": self._read_wait_ns,
            "read_bytes": self._read_bytes,
            "rewritten_bytes": self._rewritten_bytes,
            # A pane is read for each window over it, and all of it is given out each time.
            "taken_bytes": self._read_bytes,
        }
