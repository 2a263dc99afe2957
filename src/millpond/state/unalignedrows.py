"""Rows that are kept until their session or window ends, or is full: the kernel's append, unaligned read store.

A store rests on runs, one or more for each batch, each with rows and an index. All of them are one slice: a run is
dropped when none of its rows waits any more, in whatever order that comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import PackWriter, SessionRowsLayout, SessionRowsRun, SessionRowsStore
from millpond.errors import InternalError
from millpond.policy.compaction import Limits, PackUse, Rest, decide_log
from millpond.policy.compaction import Merge as DueMerge
from millpond.semantics.operator import CountWindows, KeyedTime, OutputMode, Sessions, UnalignedRowsSpec
from millpond.state.shard import FlushedRun, Merge, OneStoreShard, Place
from millpond.storage.manifest import RunRef

__all__ = ["UnalignedRowsShard", "unaligned_rows_layout"]

_SLICE = 0


def unaligned_rows_layout(spec: UnalignedRowsSpec) -> SessionRowsLayout:
    schema, keys, kept = spec.input_schema, list(spec.key_columns), list(spec.kept_columns)
    match spec.time:
        case CountWindows(rows=rows):
            return SessionRowsLayout(schema, keys, kept, rows=rows, expected=spec.next_read)
        case KeyedTime(column=end):
            return SessionRowsLayout(schema, keys, kept, end, expected=spec.next_read)
        case Sessions(start=start, gap_us=int(gap_us), by_calendar=False):
            return SessionRowsLayout(schema, keys, kept, start, gap_us=gap_us, expected=spec.next_read)
        case Sessions(start=start, end=end):
            return SessionRowsLayout(schema, keys, kept, start, end=end, expected=spec.next_read)


class UnalignedRowsShard(OneStoreShard):
    store_text = "log of rows with an index in the order in which sessions are expected to end"
    reads_ahead = True
    merges_read_ahead = True

    def __init__(self, place: Place, spec: UnalignedRowsSpec) -> None:
        super().__init__(place, spec)
        self._time = spec.time
        self._layout = unaligned_rows_layout(spec)
        self._output_schema = spec.output_schema
        self._store = SessionRowsStore(self._layout, place.first_bucket, place.end_bucket, place.memory_bytes)

    def apply(self, rows: pa.RecordBatch) -> None:
        self._store.append(rows)

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        if mode != "append":
            raise InternalError(f"{self.spec.name}: kept rows are given out once, in append mode")
        for rows in self._store.take_due(watermark_us):
            *columns, start, end = rows.columns
            named = [*columns, *self._window(start, end)]
            yield pa.RecordBatch.from_arrays(named, schema=self._output_schema)

    def _window(self, start: pa.Array, end: pa.Array) -> list[pa.Array]:
        """What is emitted of the windows of rows."""
        match self._time:
            case CountWindows(rows=rows):
                # Rows of a key are numbered, and the window starts with its first.
                return [pc.divide(start, rows)]
            case KeyedTime():
                return []
            case Sessions():
                types = self._output_schema.types
                return [start.cast(types[-2]), end.cast(types[-1])]

    @property
    def dirty_bytes(self) -> int:
        return self._store.dirty_bytes

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        run = self._store.flush(writer)
        return [] if run is None else [FlushedRun(_SLICE, *run)]

    def slices(self) -> list[tuple[int, int]]:
        return [(_SLICE, self._store.rows)] if self._store.sessions else []

    def live_bytes(self, slice_: int) -> int:  # noqa: ARG002
        return sum(live for live, _ in self._store.run_uses())

    def stats(self) -> dict[str, int]:
        return self._store.stats()

    def _open(self, path: str, run: RunRef | FlushedRun) -> SessionRowsRun:
        return SessionRowsRun.open(self._layout, path, run.offset, run.length, self.place.read_delay_us)

    def _attach(self, run: FlushedRun, path: str) -> None:
        self._store.add_pending(self._open(path, run))

    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:  # noqa: ARG002
        self._store.restore([self._open(path, ref) for ref, path in runs])

    def _still_used(self, slice_: int) -> Sequence[RunRef]:
        return list(compress(super()._still_used(slice_), self._store.runs_in_use()))

    def _commit(self) -> None:
        self._store.commit()

    def _abort(self) -> None:
        self._store.abort()

    # Beside the batch

    def read_ahead(self) -> None:
        self._store.read_ahead(self.place.read_batch_ratio)

    def due_merge(self, slice_: int, limits: Limits) -> DueMerge | Rest:
        return decide_log(self.run_uses(slice_), limits)

    def run_uses(self, slice_: int) -> tuple[PackUse, ...]:  # noqa: ARG002
        return tuple(PackUse(live, total) for live, total in self._store.run_uses())

    def rewrite_of(self, slice_: int, position: int) -> DueMerge:  # noqa: ARG002
        return DueMerge(position, 1)

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:  # noqa: ARG002
        runs = self._store.runs()[first : first + count]
        return lambda writer: self._store.rewrite(self.place.read_batch_ratio, runs, writer)

    def replace(self, slice_: int, merged: Sequence[RunRef], ref: RunRef, path: str) -> bool:
        # The oldest runs may have lost their last rows while they were rewritten, and be gone.
        left = [old for old in self._committed.get(slice_, ()) if old in merged]
        return bool(left) and super().replace(slice_, left, ref, path)

    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:  # noqa: ARG002
        self._store.replace(first, count, self._open(path, ref))
        return True
