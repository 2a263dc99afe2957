"""Rows of two joined streams, kept by key and by the time at which they can be forgotten: the kernel's join store.

A slice is a part of one side. Up to which watermark rows have been let go is part of the state, because a part that
the watermark has cut still holds rows that went out; it travels as a slice without runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millpond._kernel import JoinStore, PackWriter, Run
from millpond.semantics.operator import JoinSpec, OutputMode
from millpond.state.layout import join_layout
from millpond.state.shard import FlushedRun, Merge, OneStoreShard, Place
from millpond.storage.manifest import RunRef

__all__ = ["JoinShard"]

_LET_GO = -(2**62)
"""The slice whose number of rows is the watermark at which rows were last let go."""


class JoinShard(OneStoreShard):
    store_text = "for each stream runs of rows by key, in parts by the time at which rows can be forgotten"

    def __init__(self, place: Place, spec: JoinSpec) -> None:
        super().__init__(place, spec)
        self._layout = join_layout(spec)
        self._expires = spec.time is not None
        self._store = JoinStore(self._layout, place.first_bucket, place.end_bucket, place.memory_bytes)
        self.reads_ahead = any(side.times for side in spec.sides)

    def apply(self, rows: pa.RecordBatch) -> None:
        self._store.apply(rows)

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Pairs are given out once, in any mode. As in Spark, rows expire at the watermark before the batch."""
        schema = self.spec.output_schema
        self._store.begin_fire(before_us)
        while (rows := self._store.next_output()) is not None:
            yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)

    @property
    def dirty_bytes(self) -> int:
        return self._store.dirty_bytes

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        return [FlushedRun(*run) for run in self._store.flush(writer)]

    def slices(self) -> list[tuple[int, int]]:
        let_go = [(_LET_GO, self._store.evicted_us)] if self._expires else []
        return [*let_go, *self._store.parts()]

    def live_bytes(self, slice_: int) -> int:
        """Rows are never written twice; what expired goes with its part."""
        return self._store.run_bytes(slice_)

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:
        layout, buckets = self._layout, (self.place.first_bucket, self.place.end_bucket)
        runs = self._store.runs(slice_)[first : first + count]
        whole, evicted_us = first == 0, self._store.evicted_us
        return lambda writer: layout.merge_runs(slice_, runs, writer, buckets, whole, evicted_us)

    def stats(self) -> dict[str, int]:
        return self._store.stats()

    def read_ahead(self) -> None:
        self._store.read_ahead()

    def _open(self, path: str, run: RunRef | FlushedRun) -> Run:
        return self._layout.open_run(path, run.offset, run.length, self.place.read_delay_us)

    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:
        if slice_ == _LET_GO:
            self._store.restore_evicted(rows)
        else:
            self._store.restore(slice_, rows, [self._open(path, ref) for ref, path in runs])

    def _attach(self, run: FlushedRun, path: str) -> None:
        self._store.add_pending(run.slice, self._open(path, run))

    def _commit(self) -> None:
        self._store.commit()

    def _abort(self) -> None:
        self._store.abort()

    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:
        return self._store.replace(slice_, first, count, self._open(path, ref))
