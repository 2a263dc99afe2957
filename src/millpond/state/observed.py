"""Rows whose pattern is not known: kept as they came while they are few, and moved to the store that fits when it is
seen which one that is.

The move is part of the batches that go on meanwhile. From the decision on new rows go to the store that was chosen,
and with each batch a bounded part of the old ones follows, so that every row is in one of the two places and a commit
names what lies in both. What is due is taken from both. A batch that is not committed has moved nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from millpond._kernel import PackWriter, SessionRowsSorter
from millpond.policy.compaction import Limits, PackUse, Rest
from millpond.policy.compaction import Merge as DueMerge
from millpond.policy.observing import Observation, fitting
from millpond.semantics.operator import ObservedRowsSpec, OutputMode
from millpond.semantics.patterns import AccessPattern
from millpond.state.arrivals import ARRIVALS, GIVEN_OUT, ArrivalShard
from millpond.state.routing import RowRouter
from millpond.state.rowlog import RowLogShard
from millpond.state.shard import FlushedRun, Merge, OperatorShard, Place
from millpond.state.unalignedrows import UnalignedRowsShard, unaligned_rows_layout
from millpond.storage.manifest import RunRef, SliceState, StoreState

__all__ = ["ObservedShard"]

_STEPS = 8
"""A move takes about so many batches."""

_MEMORY_PARTS = 4
"""At most one of them is for rows whose store is not chosen yet; the others stay for that store."""

_DECIDED = {AccessPattern.AAR: GIVEN_OUT + 1, AccessPattern.AUR: GIVEN_OUT + 2}
"""Slices without runs: the one that is there says what was decided, its number of rows how many windows were seen."""

_ENDS = GIVEN_OUT + 3
"""One more, with the number of their ends."""


class _Sorter(Protocol):
    def push(self, batch: pa.RecordBatch) -> None: ...
    def drain(self) -> list[tuple[int, pa.RecordBatch]]: ...


class _Settled:
    """The store that was chosen, and what brings rows into the form that it takes."""

    def __init__(
        self, place: Place, spec: ObservedRowsSpec, pattern: AccessPattern, windows: int, ends: int
    ) -> None:
        self.pattern = pattern
        self.windows = windows
        self.ends = ends
        self.store: RowLogShard | UnalignedRowsShard
        self._sorter: _Sorter
        if pattern is AccessPattern.AAR:
            self.store = RowLogShard(place, spec.aligned)
            self._sorter = RowRouter(spec.aligned, (0,), None)
        else:
            self.store = UnalignedRowsShard(place, spec.unaligned)
            self._sorter = SessionRowsSorter(unaligned_rows_layout(spec.unaligned), [0])

    def apply(self, rows: pa.RecordBatch) -> None:
        """`rows`: as ingest tasks send them, before it is known where they go."""
        self._sorter.push(rows)
        for _, encoded in self._sorter.drain():
            self.store.apply(encoded)


class ObservedShard(OperatorShard):
    store_text = ArrivalShard.store_text

    def __init__(self, place: Place, spec: ObservedRowsSpec) -> None:
        super().__init__(place, spec)
        self._spec = spec
        self._most_bytes = min(place.observed_bytes, place.memory_bytes // _MEMORY_PARTS)
        self._step_bytes = max(1, self._most_bytes // _STEPS)
        self._arrivals = ArrivalShard(place, spec, self._step_bytes)
        self._settled: _Settled | None = None
        self._is_decision_committed = False

    def _settle(self, pattern: AccessPattern, windows: int, ends: int) -> None:
        left = self.place._replace(memory_bytes=self.place.memory_bytes - self._most_bytes)
        self._settled = _Settled(left, self._spec, pattern, windows, ends)
        self.reads_ahead = self._settled.store.reads_ahead

    def _stores(self) -> list[OperatorShard]:
        return [self._arrivals] if self._settled is None else [self._arrivals, self._settled.store]

    def _store_of(self, slice_: int) -> OperatorShard:
        if self._settled is None or slice_ in (ARRIVALS, GIVEN_OUT):
            return self._arrivals
        return self._settled.store

    # The batch

    def apply(self, rows: pa.RecordBatch) -> None:
        if self._settled is not None:
            self._settled.apply(rows)
            return
        self._arrivals.apply(rows)
        if self._arrivals.bytes > self._most_bytes:
            seen: Observation = self._arrivals.observed()
            self._settle(fitting(seen), seen.windows, seen.ends)

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        yield from self._arrivals.fire(mode, before_us, watermark_us)
        if self._settled is not None:
            for rows in self._arrivals.take(self._step_bytes):
                self._settled.apply(rows)
            yield from self._settled.store.fire(mode, before_us, watermark_us)

    @property
    def dirty_bytes(self) -> int:
        return sum(store.dirty_bytes for store in self._stores())

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        return [run for store in self._stores() for run in store.flush(writer)]

    def add_pending(self, runs: Iterable[FlushedRun], pack: str, path: str) -> None:
        for run in runs:
            self._store_of(run.slice).add_pending([run], pack, path)

    def version(self) -> StoreState:
        slices = [slice_ for store in self._stores() for slice_ in store.version().slices]
        if self._settled is not None:
            slices.append(SliceState(_DECIDED[self._settled.pattern], self._settled.windows, ()))
            slices.append(SliceState(_ENDS, self._settled.ends, ()))
        return StoreState(self.operator, self.shard, tuple(slices))

    def commit(self) -> None:
        for store in self._stores():
            store.commit()
        self._is_decision_committed = self._settled is not None

    def abort(self) -> None:
        for store in self._stores():
            store.abort()
        if not self._is_decision_committed:
            self._settled = None
            self.reads_ahead = False

    def restore(self, state: StoreState, paths: dict[str, str]) -> None:
        figures = {slice_.slice: slice_.rows for slice_ in state.slices}
        for pattern, slice_ in _DECIDED.items():
            if slice_ in figures:
                self._settle(pattern, figures[slice_], figures[_ENDS])
                self._is_decision_committed = True
        for store in self._stores():
            mine = [s for s in state.slices if self._store_of(s.slice) is store and not _is_figure(s.slice)]
            store.restore(StoreState(state.operator, state.shard, tuple(mine)), paths)

    # Beside the batch

    def committed_runs(self) -> dict[int, tuple[RunRef, ...]]:
        return {s: refs for store in self._stores() for s, refs in store.committed_runs().items()}

    def due_merge(self, slice_: int, limits: Limits) -> DueMerge | Rest:
        if self._settled is not None and slice_ == ARRIVALS:
            return Rest()  # They leave with the next batches.
        return self._store_of(slice_).due_merge(slice_, limits)

    def run_uses(self, slice_: int) -> tuple[PackUse, ...]:
        return self._store_of(slice_).run_uses(slice_)

    def rewrite_of(self, slice_: int, position: int) -> DueMerge:
        return self._store_of(slice_).rewrite_of(slice_, position)

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:
        return self._store_of(slice_).merge_of(slice_, first, count)

    def replace(self, slice_: int, merged: Sequence[RunRef], ref: RunRef, path: str) -> bool:
        return self._store_of(slice_).replace(slice_, merged, ref, path)

    def read_ahead(self) -> None:
        if self._settled is None:
            super().read_ahead()
        else:
            self._settled.store.read_ahead()

    # Figures

    def stats(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for store in self._stores():
            for name, value in store.stats().items():
                totals[name] = totals.get(name, 0) + value
        settled = self._settled
        if settled is None:
            return totals | {"observing_shards": 1}
        name = "aligned_shards" if settled.pattern is AccessPattern.AAR else "unaligned_shards"
        return totals | {
            name: 1,
            "seen_windows": settled.windows,
            "seen_ends": settled.ends,
            "unmoved_rows": self._arrivals.rows,
        }


def _is_figure(slice_: int) -> bool:
    return slice_ == _ENDS or slice_ in _DECIDED.values()
