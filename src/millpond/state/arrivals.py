"""Rows of which it is not known yet how they are best kept: chunks in memory in the order in which they came, each of
them in a file as well.

What is due is picked out of all of them, which is nothing while they are few. A chunk's file is not written anew for
that: up to when rows have been given out is part of the state, and those of them that lie in files are left out when
they are read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import PackWriter, Router, read_blob
from millpond.errors import InternalError
from millpond.policy.compaction import Limits, PackUse, Rest, decide_pieces
from millpond.policy.compaction import Merge as DueMerge
from millpond.policy.observing import Observation
from millpond.semantics.operator import ObservedRowsSpec, OutputMode
from millpond.state.layout import key_layout
from millpond.state.shard import FlushedRun, Merge, OneStoreShard, Place
from millpond.storage.manifest import RunRef, StoreState

__all__ = ["ARRIVALS", "GIVEN_OUT", "ArrivalShard"]

# No window ends at these times.
ARRIVALS = -(2**62)
"""The slice of all rows."""
GIVEN_OUT = ARRIVALS + 1
"""The slice whose number of rows is the watermark up to which rows have been given out."""

_NOTHING_YET_US = -(2**63)


@dataclass
class _Chunk:
    rows: int
    """In the file."""
    batch: pa.RecordBatch
    """Those that wait."""
    left: pa.RecordBatch | None = None
    """What the running batch leaves of them; None: all."""
    length: int = 0
    """Of its run in a pack; 0: it has not been written."""

    @property
    def waiting(self) -> pa.RecordBatch:
        return self.batch if self.left is None else self.left

    @property
    def use(self) -> PackUse:
        """Of the file."""
        return PackUse(self.length * self.waiting.num_rows // max(self.rows, 1), self.length)


class ArrivalShard(OneStoreShard):
    store_text = "memory: rows in the order in which they came, and a log of them in files"

    def __init__(self, place: Place, spec: ObservedRowsSpec, piece_bytes: int) -> None:
        """`piece_bytes`: what a chunk may have, because it is moved at once."""
        super().__init__(place, spec)
        self._piece_bytes = piece_bytes
        self._schema = spec.input_schema
        self._output_schema = spec.output_schema
        self._key_columns = list(spec.key_columns)
        self._kept_columns = list(spec.kept_columns)
        self._end_column = spec.time.column
        self._key_layout = key_layout(spec)
        self._chunks: list[_Chunk] = []
        """What is committed, oldest first, each with its run in a pack."""
        self._fresh: list[_Chunk] = []
        """What the running batch brought: first what has been flushed, then what has not."""
        self._given_out_us = _NOTHING_YET_US
        self._fired_us: int | None = None
        """The watermark of the running batch, once it has fired."""
        self._reads = 0

    def _visible(self) -> list[_Chunk]:
        return [*self._chunks, *self._fresh]

    @property
    def rows(self) -> int:
        """Those that wait, as the running batch leaves them."""
        return sum(chunk.waiting.num_rows for chunk in self._visible())

    @property
    def bytes(self) -> int:
        return sum(chunk.waiting.nbytes for chunk in self._visible())

    def apply(self, rows: pa.RecordBatch) -> None:
        self._fresh.append(_Chunk(rows.num_rows, rows))

    # What leaves

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        if mode != "append":
            raise InternalError(f"{self.spec.name}: rows of windows are given out once, in append mode")
        for chunk in self._visible():
            waiting = chunk.waiting
            due = pc.less_equal(waiting.column(self._end_column), watermark_us)
            expired = waiting.filter(due)
            if expired.num_rows:
                self._reads += 1
                chunk.left = waiting.filter(pc.invert(due))
                columns = [expired.column(i) for i in self._kept_columns]
                yield pa.RecordBatch.from_arrays(columns, schema=self._output_schema)
        self._fired_us = max(watermark_us, self._given_out_us)

    def take(self, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """Rows that go to another store with the running batch, oldest first: a chunk, and as many more as are no
        larger together."""
        taken_bytes = 0
        for chunk in self._visible():
            waiting = chunk.waiting
            if waiting.num_rows == 0:
                continue
            if taken_bytes and taken_bytes + waiting.nbytes > most_bytes:
                return
            taken_bytes += waiting.nbytes
            chunk.left = waiting.slice(0, 0)
            yield waiting

    def observed(self) -> Observation:
        router = Router(self._key_layout, [0], None)
        hashes, ends, size = [pa.array([], pa.uint64())], [pa.array([], pa.int64())], 0
        for chunk in self._visible():
            waiting = chunk.waiting
            size += waiting.nbytes
            ends.append(waiting.column(self._end_column))
            hashes += [of_rows for *_, of_rows in router.route(waiting.select(self._key_columns))]
        windows, times = (pc.count_distinct(pa.chunked_array(seen)).as_py() for seen in (hashes, ends))
        return Observation(rows=self.rows, bytes=size, windows=windows, ends=times)

    # Files

    def slices(self) -> list[tuple[int, int]]:
        rows = self.rows
        given_out_us = self._given_out_us if self._fired_us is None else self._fired_us
        return [(ARRIVALS, rows), (GIVEN_OUT, given_out_us)] if rows else []

    def _named(self, slice_: int) -> list[RunRef]:
        return list(compress(super()._named(slice_), (chunk.waiting.num_rows for chunk in self._written())))

    def _written(self) -> list[_Chunk]:
        return [chunk for chunk in self._visible() if chunk.length]

    def _unwritten(self) -> list[_Chunk]:
        return [chunk for chunk in self._fresh if chunk.length == 0 and chunk.waiting.num_rows]

    @property
    def dirty_bytes(self) -> int:
        return sum(chunk.waiting.nbytes for chunk in self._unwritten())

    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        table = pa.Table.from_batches([chunk.waiting for chunk in self._unwritten()], self._schema)
        written = [chunk for chunk in self._fresh if chunk.length]
        flushed = []
        for batch in table.combine_chunks().to_batches():
            for piece in self._pieces(batch):
                offset, length = writer.append(piece.serialize().to_pybytes())
                written.append(_Chunk(piece.num_rows, piece, None, length))
                flushed.append(FlushedRun(ARRIVALS, offset, length, piece.num_rows))
        self._fresh = written
        return flushed

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = max(1, batch.num_rows * self._piece_bytes // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)

    def _attach(self, run: FlushedRun, path: str) -> None:
        """It is in memory as well, and read from the pack only by the next one who opens the state."""

    def restore(self, state: StoreState, paths: dict[str, str]) -> None:
        self._given_out_us = next(
            (slice_.rows for slice_ in state.slices if slice_.slice == GIVEN_OUT), _NOTHING_YET_US
        )
        super().restore(state, paths)

    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:  # noqa: ARG002
        self._chunks += [_Chunk(ref.rows, self._read(ref, path), None, ref.length) for ref, path in runs]

    def _read(self, ref: RunRef, path: str) -> pa.RecordBatch:
        blob = read_blob(path, ref.offset, ref.length, self.place.read_delay_us)
        rows = pa.ipc.read_record_batch(pa.py_buffer(blob), self._schema)
        return rows.filter(pc.greater(rows.column(self._end_column), self._given_out_us))

    def _commit(self) -> None:
        self._chunks = [chunk for chunk in self._written() if chunk.waiting.num_rows]
        for chunk in self._chunks:
            chunk.batch, chunk.left = chunk.waiting, None
        if self._fired_us is not None:
            self._given_out_us = self._fired_us
        self._forget_batch()

    def _abort(self) -> None:
        for chunk in self._chunks:
            chunk.left = None
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._fresh = []
        self._fired_us = None

    def live_bytes(self, slice_: int) -> int:
        return sum(chunk.use.live_bytes for chunk in self._chunks) if slice_ == ARRIVALS else 0

    def due_merge(self, slice_: int, limits: Limits) -> DueMerge | Rest:
        if slice_ != ARRIVALS:
            return Rest()
        return decide_pieces(self.run_uses(slice_), limits, self._piece_bytes)

    def run_uses(self, slice_: int) -> tuple[PackUse, ...]:
        return tuple(chunk.use for chunk in self._chunks) if slice_ == ARRIVALS else ()

    def rewrite_of(self, slice_: int, position: int) -> DueMerge:  # noqa: ARG002
        return DueMerge(position, 1)

    def merge_of(self, slice_: int, first: int, count: int) -> Merge:  # noqa: ARG002
        batches = [chunk.batch for chunk in self._chunks[first : first + count]]

        def merge(writer: PackWriter) -> tuple[int, int, int]:
            joined = pa.concat_batches(batches)
            return (*writer.append(joined.serialize().to_pybytes()), joined.num_rows)

        return merge

    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:  # noqa: ARG002
        batch = pa.concat_batches([chunk.batch for chunk in self._chunks[first : first + count]])
        self._chunks[first : first + count] = [_Chunk(ref.rows, batch, None, ref.length)]
        return True

    def stats(self) -> dict[str, int]:
        uses = [chunk.use for chunk in self._chunks]
        return {
            "rows": sum(chunk.waiting.num_rows for chunk in self._chunks),
            "memory_bytes": sum(chunk.batch.nbytes for chunk in self._chunks),
            "run_bytes": sum(use.total_bytes for use in uses),
            "live_bytes": sum(use.live_bytes for use in uses),
            "runs": len(self._chunks),
            "gets": self._reads,
            "memory_hits": self._reads,
        }
