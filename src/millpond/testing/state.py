"""Stores without a service: batches on the shards of one operator, with everything that may happen to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from millpond._kernel import BUCKETS, PackWriter
from millpond.policy.compaction import Limits, Merge
from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.semantics.times import OperatorTimes, Watermarks, operator_times
from millpond.state.opening import open_shard, sorter_of
from millpond.state.shard import OperatorShard, Place
from millpond.storage.manifest import RunRef, StoreState

__all__ = ["Batch", "OpenShard", "Row", "StateCase", "StateRun"]

Row = tuple[Any, ...]

OpenShard = Callable[[Place, OperatorSpec], OperatorShard]


class Batch(NamedTuple):
    """Rows in the operator's input schema, for each of its inputs, and the watermark that includes them."""

    inputs: tuple[pa.RecordBatch, ...]
    watermark_us: int = 0


@dataclass(frozen=True)
class StateCase:
    """A store with something to do."""

    spec: OperatorSpec
    batches: Sequence[Batch]
    mode: OutputMode = "append"
    open: OpenShard = open_shard
    observed_bytes: int = 0
    """How large the state may become before a store for it is chosen, where that depends on it."""
    table_bytes: int = 0
    """What has to be in memory however little of it there is, for example a table of the open windows."""


@dataclass
class StateRun:
    """An operator's state in a directory, in one or more shards. A batch is sealed, saved, and committed or aborted;
    `kill` is possible at any time."""

    case: StateCase
    directory: Path
    shards: int = 1
    memory_bytes: int = 64 << 20
    most_bytes: int = field(init=False, default=0)
    """The most that was in memory after a flush."""
    _stores: list[OperatorShard] = field(init=False)
    _committed: list[StoreState] = field(init=False, default_factory=list)
    _saved: list[StoreState] = field(init=False, default_factory=list)
    _marks: Watermarks = field(init=False, default=Watermarks(0, 0, 0))
    _sealed_us: int = field(init=False, default=0)
    _packs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._stores = self._opened()

    @property
    def stores(self) -> Sequence[OperatorShard]:
        return self._stores

    @property
    def _starts(self) -> tuple[int, ...]:
        return tuple(shard * BUCKETS // self.shards for shard in range(self.shards))

    def _opened(self) -> list[OperatorShard]:
        starts = (*self._starts, BUCKETS)
        memory = self.memory_bytes // self.shards
        places = [
            Place(0, shard, starts[shard], starts[shard + 1], memory, 0.5, 0, self.case.observed_bytes)
            for shard in range(self.shards)
        ]
        return [self.case.open(place, self.case.spec) for place in places]

    # The batch

    def run(self, batch: Batch) -> list[Row]:
        """All of it; gives its outputs."""
        outputs = self.seal(batch)
        self.save()
        self.commit()
        return outputs

    def seal(self, batch: Batch, flush_after_bytes: int | None = None) -> list[Row]:
        """Applies the rows and fires; gives the outputs, sorted. `flush_after_bytes`: flushes as soon as there is
        more to be written than that."""
        times = self._times(batch.watermark_us)
        outputs: list[pa.RecordBatch] = []
        for shard, rows in self._sorted(batch, times):
            store = self._stores[shard]
            store.apply(rows)
            outputs += store.ready()
            if flush_after_bytes is not None and store.dirty_bytes > flush_after_bytes:
                self.flush()
        for store in self._stores:
            outputs += store.fire(self.case.mode, times.before_us, times.watermark_us)
        self._sealed_us = batch.watermark_us
        rows_of = (zip(*(c.to_pylist() for c in output.columns), strict=True) for output in outputs)
        return sorted((row for rows in rows_of for row in rows), key=repr)

    def _times(self, watermark_us: int) -> OperatorTimes:
        marks = Watermarks(self._marks.earlier_us, self._marks.before_us, watermark_us)
        return operator_times(self.case.spec, marks, lag_us=0, delayed=False)

    def _sorted(self, batch: Batch, times: OperatorTimes) -> Iterator[tuple[int, pa.RecordBatch]]:
        late_us = times.late_before_us if self.case.spec.drops_late_rows else None
        for side, rows in enumerate(batch.inputs):
            sorter, _ = sorter_of(self.case.spec, side, self._starts, late_us, None)
            sorter.push(rows)
            yield from sorter.drain()

    def flush(self) -> None:
        writer, path = self._pack()
        flushed = [store.flush(writer) for store in self._stores]
        if writer.finish():
            for store, runs in zip(self._stores, flushed, strict=True):
                store.add_pending(runs, path.name, str(path))
        self.most_bytes = max(self.most_bytes, self.figures()["memory_bytes"])

    def _pack(self) -> tuple[PackWriter, Path]:
        self._packs += 1
        path = self.directory / f"pack-{self._packs}"
        return PackWriter(str(path)), path

    def save(self) -> None:
        self.flush()
        self._saved = [store.version() for store in self._stores]

    def commit(self) -> None:
        for store in self._stores:
            store.commit()
        self._committed = self._saved
        self._marks = Watermarks(self._marks.before_us, self._sealed_us, self._sealed_us)

    def abort(self) -> None:
        for store in self._stores:
            store.abort()

    def kill(self) -> None:
        """What is in memory is lost; the last committed version is opened."""
        self._stores = self._opened()
        paths = {run.pack: str(self.directory / run.pack) for run in self._named()}
        for store, state in zip(self._stores, self._committed, strict=False):
            store.restore(state, paths)

    # Beside the batch

    def compact(self, limits: Limits) -> int:
        """Merges what is due between two batches; gives the number of merges."""
        merges = 0
        for store in self._stores:
            for slice_, refs in store.committed_runs().items():
                match store.due_merge(slice_, limits):
                    case Merge(first=first, count=count):
                        writer, path = self._pack()
                        offset, length, rows = store.merge_of(slice_, first, count)(writer)
                        writer.finish()
                        ref = RunRef(path.name, offset, length, rows)
                        store.replace(slice_, refs[first : first + count], ref, str(path))
                        merges += 1
        return merges

    def read_ahead(self) -> None:
        for store in self._stores:
            if store.reads_ahead:
                store.read_ahead()

    # Files

    def _named(self) -> list[RunRef]:
        return [run for state in self._committed for slice_ in state.slices for run in slice_.runs]

    def files(self) -> list[Path]:
        """Those that the committed version needs."""
        return sorted({self.directory / run.pack for run in self._named()})

    def collect(self) -> int:
        """Deletes all others; gives their number. Between a compaction and the next commit that would be too much."""
        needed = set(self.files())
        others = [file for file in self.directory.iterdir() if file not in needed]
        for file in others:
            file.unlink()
        return len(others)

    def figures(self) -> dict[str, int]:
        """Summed over the shards, by the names of `StatsReply`."""
        totals: dict[str, int] = {}
        for store in self._stores:
            for name, value in store.stats().items():
                totals[name] = totals.get(name, 0) + value
        return totals
