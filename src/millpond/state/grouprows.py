"""Rows that are kept by group for as long as the group is: lists that grow, each read whole whenever it has grown.

A batch appends its rows as a run in the order of hashes; the rows of a group lie in as many runs as batches have
brought some, until compaction gathers them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millpond._kernel import PackWriter
from millpond.semantics.operator import GroupRowsSpec, KeyedTime, OutputMode, Panes
from millpond.semantics.windows import expired_slices, pane_slices, windows_of_slice
from millpond.state.hashedrun import (
    Block,
    HashedRun,
    in_hash_order,
    merged_parts,
    read_block,
    write_run,
)
from millpond.state.routing import HASH, SLICE, routed_schema
from millpond.state.shard import FlushedRun, Merge, OneStoreShard, Place
from millpond.storage.manifest import RunRef

__all__ = ["GroupRowsShard"]

_OUTPUT_ROWS = 65_536
"""Rows of an output batch, where there are so many."""


class GroupRowsShard(OneStoreShard):
    store_text = "runs of rows in the order of their keys' hashes, which compaction gathers by key"

    def __init__(self, place: Place, spec: GroupRowsSpec) -> None:
        super().__init__(place, spec)
        self._time = spec.time
        self._kept_schema = routed_schema(spec).remove(len(spec.kept_columns) + 1)
        self._runs: dict[int, list[HashedRun]] = {}
        """What is committed."""
        self._fresh_runs: dict[int, list[HashedRun]] = {}
        """What the running batch has flushed."""
        self._fresh: dict[int, list[pa.RecordBatch]] = {}
        """What it has not."""
        self._touched: dict[int, list[Any]] = {}
        """The hashes of the running batch's rows."""
        self._ended: set[int] = set()
        self._clock = 0
        self._reads = self._memory_hits = self._read_wait_ns = 0
        self._read_bytes = self._taken_bytes = 0
        self._held_bytes = 0
        """Of blocks in memory."""

    def apply(self, rows: pa.RecordBatch) -> None:
        slice_ = rows.column(SLICE)[0].as_py()
        kept = rows.remove_column(rows.num_columns - 1)
        self._fresh.setdefault(slice_, []).append(kept)
        self._touched.setdefault(slice_, []).append(np.unique(kept.column(HASH).to_numpy()))

    # Reading

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        self._clock += 1
        live = [slice_ for slice_, _ in self.slices()]
        match self._time:
            case Panes() as panes:
                yield from self._fire_windows(panes, set(live), before_us)
                ended = expired_slices(panes, live, watermark_us)
            case KeyedTime():
                for slice_ in sorted(self._touched):
                    yield from self._rows(slice_, self._hashes(slice_), [])
                # Groups of the slice that the watermark cuts may stay: their rows are late.
                ended = [slice_ for slice_ in live if slice_ <= watermark_us]
            case _:
                # The one group of an aggregate without keys is in the result of every batch.
                whole = mode == "complete" or not self.spec.keys
                for slice_ in live:
                    yield from self._rows(slice_, None if whole else self._hashes(slice_), [])
                ended = []
        for slice_ in ended:
            self._end(slice_)

    def _fire_windows(self, panes: Panes, present: set[int], before_us: int) -> Iterator[pa.RecordBatch]:
        touched = {start for slice_ in self._touched for start in windows_of_slice(panes, slice_)}
        start_type, end_type = self.spec.output_schema.types[-2:]
        for start in sorted(start for start in touched if start + panes.size_us > before_us):
            bounds = [pa.scalar(start, start_type), pa.scalar(start + panes.size_us, end_type)]
            slices = [slice_ for slice_ in pane_slices(panes, start) if slice_ in present]
            hashes = self._hashes(*slices)
            for slice_ in slices:
                yield from self._rows(slice_, hashes, bounds)

    def _hashes(self, *slices: int) -> Any:
        """Of the groups that the running batch touched in one of the slices."""
        touched = [hashes for slice_ in slices for hashes in self._touched.get(slice_, ())]
        return np.unique(np.concatenate(touched)) if touched else np.array([], np.uint64)

    def _rows(self, slice_: int, hashes: Any, constants: Sequence[pa.Scalar]) -> Iterator[pa.RecordBatch]:
        """The rows of the groups in the order in which they came, with the constants as last columns. `hashes`: which
        groups; None: all."""
        gathered: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._found(slice_, hashes):
            gathered.append(batch)
            rows += batch.num_rows
            if rows >= _OUTPUT_ROWS:
                yield from self._as_output(gathered, constants)
                gathered, rows = [], 0
        yield from self._as_output(gathered, constants)

    def _as_output(
        self, batches: list[pa.RecordBatch], constants: Sequence[pa.Scalar]
    ) -> Iterator[pa.RecordBatch]:
        for batch in pa.Table.from_batches(batches, self._kept_schema).combine_chunks().to_batches():
            given = [pa.repeat(constant, batch.num_rows) for constant in constants]
            yield pa.RecordBatch.from_arrays([*batch.columns[:-1], *given], schema=self.spec.output_schema)

    def _found(self, slice_: int, hashes: Any) -> Iterator[pa.RecordBatch]:
        for run in self._visible(slice_):
            for block in run.with_keys(hashes):
                is_held = block.batch is not None
                found = _of_keys(self._loaded(run, block), hashes)
                if not is_held:
                    self._taken_bytes += block.length * found.num_rows // block.rows
                if found.num_rows:
                    yield found
        for batch in self._fresh.get(slice_, ()):
            yield _of_keys(batch, hashes)

    def _loaded(self, run: HashedRun, block: Block) -> pa.RecordBatch:
        self._reads += 1
        block.used = self._clock
        if block.batch is not None:
            self._memory_hits += 1
            return block.batch
        assert run.path is not None
        began = time.perf_counter_ns()
        batch = read_block(run.path, block, self._kept_schema, self.place.read_delay_us)
        self._read_wait_ns += time.perf_counter_ns() - began
        self._read_bytes += block.length
        if self._held_bytes + block.length <= self.place.memory_bytes:
            block.batch = batch
            self._held_bytes += block.length
        return batch

    def _visible(self, slice_: int) -> list[HashedRun]:
        committed = [] if slice_ in self._ended else self._runs.get(slice_, [])
        return [*committed, *self._fresh_runs.get(slice_, ())]

    def _end(self, slice_: int) -> None:
        self._fresh.pop(slice_, None)
        self._fresh_runs.pop(slice_, None)
        self._pending.pop(slice_, None)
        if slice_ in self._runs:
            self._ended.add(slice_)
            self._give_up(slice_)

    def slices(self) -> list[tuple[int, int]]:
        names = (self._runs.keys() - self._ended) | self._fresh_runs.keys() | self._fresh.keys()
        return [(slice_, self._count(slice_)) for slice_ in sorted(names)]

    def _count(self, slice_: int) -> int:
        fresh: int = sum(batch.num_rows for batch in self._fresh.get(slice_, ()))
        return fresh + sum(run.rows for run in self._visible(slice_))

    # Files

    @property
    def dirty_bytes(self) -> int:
        return sum(batch.nbytes for batches in self._fresh.values() for batch in batches)

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        flushed = []
        for slice_, batches in self._fresh.items():
            run = write_run(writer, [in_hash_order(batches, self._kept_schema)], held=True)
            for block in run.blocks:
                block.used = self._clock
            self._fresh_runs.setdefault(slice_, []).append(run)
            flushed.append(FlushedRun(slice_, run.offset, run.length, run.rows))
        self._fresh.clear()
        return flushed

    def add_pending(self, runs: Iterable[FlushedRun], pack: str, path: str) -> None:
        super().add_pending(runs, pack, path)
        self._relieve()

    def _attach(self, run: FlushedRun, path: str) -> None:
        self._fresh_runs[run.slice][-1].path = path

    def _open(self, path: str, ref: RunRef) -> HashedRun:
        return HashedRun.open(path, ref.offset, ref.length, self.place.read_delay_us)

    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:  # noqa: ARG002
        self._runs[slice_] = [self._open(path, ref) for ref, path in runs]

    def _commit(self) -> None:
        for slice_ in self._ended:
            del self._runs[slice_]
        for slice_, runs in self._fresh_runs.items():
            self._runs.setdefault(slice_, []).extend(runs)
        self._forget_batch()
        self._relieve()

    def _abort(self) -> None:
        self._forget_batch()
        self._relieve()

    def _forget_batch(self) -> None:
        self._ended.clear()
        self._fresh.clear()
        self._fresh_runs.clear()
        self._touched.clear()

    def _blocks(self) -> list[Block]:
        every = (*self._runs.values(), *self._fresh_runs.values())
        return [block for runs in every for run in runs for block in run.blocks]

    def _relieve(self) -> None:
        """Keeps the blocks that were read or written last."""
        self._held_bytes = 0
        held = [block for block in self._blocks() if block.batch is not None]
        for block in sorted(held, key=lambda block: block.used, reverse=True):
            if self._held_bytes + block.length <= self.place.memory_bytes:
                self._held_bytes += block.length
            else:
                block.batch = None

    def live_bytes(self, slice_: int) -> int:
        """Rows are never replaced; they go with their slice."""
        return sum(run.length for run in self._runs.get(slice_, ()))

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:
        runs, schema, delay_us = (
            self._runs[slice_][first : first + count],
            self._kept_schema,
            self.place.read_delay_us,
        )

        def merge(writer: PackWriter) -> tuple[int, int, int]:
            merged = write_run(writer, merged_parts(runs, schema, delay_us), held=False)
            return merged.offset, merged.length, merged.rows

        return merge

    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:
        if slice_ not in self._runs:
            return False
        self._runs[slice_][first : first + count] = [self._open(path, ref)]
        return True

    def stats(self) -> dict[str, int]:
        runs = [run for slice_ in self._runs.keys() - self._ended for run in self._runs[slice_]]
        written = sum(run.length for run in runs)
        misses = self._reads - self._memory_hits
        return {
            "rows": sum(run.rows for run in runs),
            "memory_bytes": self._held_bytes + self.dirty_bytes,
            "run_bytes": written,
            "live_bytes": written,
            "runs": len(runs),
            "gets": self._reads,
            "memory_hits": self._memory_hits,
            "disk_probes": misses,
            "block_reads": misses,
            "read_requests": misses,
            "read_wait_ns": self._read_wait_ns,
            "read_bytes": self._read_bytes,
            "taken_bytes": self._taken_bytes,
        }


def _of_keys(batch: pa.RecordBatch, hashes: Any) -> pa.RecordBatch:
    if hashes is None:
        return batch
    own = batch.column(HASH).to_numpy()
    places = np.searchsorted(hashes, own)
    places[places == len(hashes)] = 0
    is_wanted = hashes[places] == own if len(hashes) else np.zeros(len(own), bool)
    return batch if is_wanted.all() else batch.filter(pa.array(is_wanted))
