"""What is kept in the kernel's read-modify-write store: first of all, aggregates that are kept merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pyarrow as pa

from millpond._kernel import BUCKETS, Layout, PackWriter, Run, Store, merge_runs
from millpond.errors import InvalidQuery
from millpond.semantics.operator import AggregateSpec, OperatorSpec, OutputMode, Sessions
from millpond.state.firing import fire
from millpond.state.layout import layout_of
from millpond.state.shard import FlushedRun, Merge, OneStoreShard, Place
from millpond.state.trace import Access, TracedStore
from millpond.storage.manifest import RunRef

__all__ = ["MergedShard", "StoreShard"]


class StoreShard(OneStoreShard):
    """The store's part in the life of a shard; what rows do to it is left open."""

    def __init__(self, place: Place, spec: OperatorSpec, layout: Layout) -> None:
        super().__init__(place, spec)
        self._layout = layout
        self._store = Store(layout, place.first_bucket, place.end_bucket, place.memory_bytes)

    @property
    def dirty_bytes(self) -> int:
        return self._store.dirty_bytes

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        return [FlushedRun(*run) for run in self._store.flush(writer)]

    def slices(self) -> list[tuple[int, int]]:
        return self._store.slices()

    def live_bytes(self, slice_: int) -> int:
        return self._store.slice_stats(slice_)["live_bytes"]

    def vain_ns(self, slice_: int) -> int:
        return self._store.slice_stats(slice_)["vain_ns"]

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:
        layout, place = self._layout, self.place
        runs = self._store.runs(slice_)[first : first + count]
        whole = first == 0
        return lambda writer: merge_runs(layout, runs, writer, place.first_bucket, place.end_bucket, whole)

    def stats(self) -> dict[str, int]:
        return self._store.stats()

    @property
    def spent_ns(self) -> tuple[int, int]:
        return self._store.spent_ns

    def _open(self, path: str, run: RunRef | FlushedRun) -> Run:
        return Run.open(self._layout, path, run.offset, run.length, self.place.read_delay_us)

    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:
        self._store.restore(slice_, rows, [self._open(path, ref) for ref, path in runs])

    def _attach(self, run: FlushedRun, path: str) -> None:
        self._store.add_pending(run.slice, self._open(path, run))

    def _commit(self) -> None:
        self._store.commit()

    def _abort(self) -> None:
        self._store.abort()

    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:
        return self._store.replace(slice_, first, count, self._open(path, ref))


class MergedShard(StoreShard):
    store_text = (
        "hash tables in memory over hash-ordered runs, one for each pane, window or interval that ends"
    )

    def __init__(self, place: Place, spec: AggregateSpec) -> None:
        super().__init__(place, spec, layout_of(spec))
        self._spec = spec

    def apply(self, rows: pa.RecordBatch) -> None:
        self._store.merge(rows)

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        if not self._spec.keys and self._spec.time is None:
            self._merge_identity()
        return fire(self._store, self._spec, mode, before_us, watermark_us)

    def _merge_identity(self) -> None:
        """An aggregate without keys has its one group even when no row ever came."""
        identity = self._layout.identity()
        bucket = identity.column("hash")[0].as_py() * BUCKETS >> 64
        if self.place.first_bucket <= bucket < self.place.end_bucket:
            self._store.merge(identity)

    def record(self, tell: Callable[[Access], None]) -> None:
        if isinstance(self._spec.time, Sessions):
            raise InvalidQuery(
                f"{self._spec.name}: a trace has no place for sessions, which grow together and close. Record a "
                "query without a window, or with windows of a fixed length"
            )
        self._store = cast("Store", TracedStore(self._store, tell))
