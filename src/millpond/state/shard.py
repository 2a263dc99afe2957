"""One operator in one shard: the kernel's store and the names of the runs that it rests on.

The kernel knows runs, the storage knows packs; this is where the two are kept in step. A batch's runs are
pending until the batch is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from millpond._kernel import Layout, PackWriter, Run, Store
from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.state.firing import fire
from millpond.storage.manifest import RunRef, SliceState, StoreState

__all__ = ["FlushedRun", "OperatorShard"]


class FlushedRun(NamedTuple):
    """A run that lies in a pack which has no name yet."""

    slice: int
    offset: int
    length: int
    rows: int


class OperatorShard:
    def __init__(
        self,
        operator: int,
        shard: int,
        spec: OperatorSpec,
        layout: Layout,
        *,
        first_bucket: int,
        end_bucket: int,
        memory_bytes: int,
        read_delay_us: int = 0,
    ) -> None:
        self.operator = operator
        self.shard = shard
        self.spec = spec
        self.layout = layout
        self.first_bucket = first_bucket
        self.end_bucket = end_bucket
        self._read_delay_us = read_delay_us
        self._store = Store(layout, first_bucket, end_bucket, memory_bytes)
        self._committed: dict[int, list[RunRef]] = {}
        self._pending: dict[int, list[RunRef]] = {}

    def restore(self, state: StoreState, paths: dict[str, str]) -> None:
        """Puts a committed version in place; `paths` says where each pack can be read."""
        for slice_ in state.slices:
            runs = [self._open(paths[ref.pack], ref.offset, ref.length) for ref in slice_.runs]
            self._store.restore(slice_.slice, slice_.rows, runs)
            self._committed[slice_.slice] = list(slice_.runs)

    def _open(self, path: str, offset: int, length: int) -> Run:
        return Run.open(self.layout, path, offset, length, self._read_delay_us)

    def merge(self, rows: pa.RecordBatch) -> None:
        self._store.merge(rows)

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        return fire(self._store, self.spec, mode, before_us, watermark_us)

    @property
    def dirty_bytes(self) -> int:
        return self._store.dirty_bytes

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        return [FlushedRun(*run) for run in self._store.flush(writer)]

    def add_pending(self, runs: Iterable[FlushedRun], pack: str, path: str) -> None:
        for run in runs:
            self._store.add_pending(run.slice, self._open(path, run.offset, run.length))
            ref = RunRef(pack=pack, offset=run.offset, length=run.length, rows=run.rows)
            self._pending.setdefault(run.slice, []).append(ref)

    def version(self) -> StoreState:
        """The state that a commit of the running batch would make, as the manifest says it."""
        return StoreState(
            operator=self.operator,
            shard=self.shard,
            slices=tuple(
                SliceState(
                    slice=slice_,
                    rows=rows,
                    runs=(*self._committed.get(slice_, ()), *self._pending.get(slice_, ())),
                )
                for slice_, rows in self._store.slices()
            ),
        )

    def commit(self) -> None:
        self._store.commit()
        for slice_, refs in self._pending.items():
            self._committed.setdefault(slice_, []).extend(refs)
        self._pending.clear()
        kept = {slice_ for slice_, _ in self._store.slices()}
        for slice_ in self._committed.keys() - kept:
            del self._committed[slice_]

    def abort(self) -> set[str]:
        """Forgets the running batch; returns the packs that it had written."""
        self._store.abort()
        packs = {ref.pack for refs in self._pending.values() for ref in refs}
        self._pending.clear()
        return packs

    def committed_runs(self) -> dict[int, tuple[RunRef, ...]]:
        return {slice_: tuple(refs) for slice_, refs in self._committed.items()}

    def open_runs(self, slice_: int) -> list[Run]:
        return self._store.runs(slice_)

    def live_bytes(self, slice_: int) -> int:
        return self._store.slice_stats(slice_)["live_bytes"]

    def replace(self, slice_: int, merged: Sequence[RunRef], ref: RunRef, path: str) -> bool:
        """Puts a merged run in the place of its inputs; False when the slice has gone meanwhile."""
        refs = self._committed.get(slice_, [])
        first = next((i for i in range(len(refs)) if refs[i : i + len(merged)] == list(merged)), None)
        if first is None:
            return False
        run = self._open(path, ref.offset, ref.length)
        if not self._store.replace(slice_, first, len(merged), run):
            return False
        refs[first : first + len(merged)] = [ref]
        return True

    def stats(self) -> dict[str, int]:
        return self._store.stats()
