"""Rows of which only the first of each key counts: the keys that were seen, and the rows that bring new ones.

A row is not kept. It travels beside its encoded key, and leaves again if the key is new.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import Distinct
from millpond.semantics.operator import DedupSpec, Forgetting, KeyedTime, OutputMode
from millpond.state.firing import NEVER
from millpond.state.layout import dedup_layout
from millpond.state.merged import StoreShard
from millpond.state.shard import Place

__all__ = ["DedupShard", "FirstRows"]

_KEYS = NEVER
"""The slice of all keys, where they are forgotten by timers; the other slices are those of the timers."""


class FirstRows:
    """The rows of a task that may be the first of their key, each beside its key, sorted out by shard."""

    def __init__(self, spec: DedupSpec, shard_starts: tuple[int, ...], late_before_us: int | None) -> None:
        self._spec = spec
        layout = dedup_layout(spec)
        keys = len(spec.key_columns)
        late_column = keys + (spec.time is not None or spec.forgetting is not None)
        self._distinct = Distinct(
            layout,
            list(shard_starts),
            None if late_before_us is None else (late_column, late_before_us),
            None if spec.forgetting is None else (keys, spec.forgetting.slice_us),
        )
        emitted = (spec.input_schema.field(i) for i in spec.emitted_columns)
        self.schema = pa.schema([*emitted, *layout.encoded_schema])
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._gathered_bytes = 0

    @property
    def rows(self) -> int:
        return self._distinct.rows

    @property
    def late_rows(self) -> int:
        return self._distinct.late_rows

    @property
    def memory_bytes(self) -> int:
        return self._gathered_bytes + self._distinct.memory_bytes

    def push(self, batch: pa.RecordBatch) -> None:
        emitted = batch.select(list(self._spec.emitted_columns))
        for shard, rows, encoded in self._distinct.push(self._looked_at(batch)):
            picked = emitted if len(rows) == batch.num_rows else emitted.take(rows)
            part = pa.RecordBatch.from_arrays([*picked.columns, *encoded.columns], schema=self.schema)
            self._gathered.setdefault(shard, []).append(part)
            self._gathered_bytes += part.nbytes

    def _looked_at(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the layout."""
        columns = [batch.column(i) for i in self._spec.key_columns]
        match self._spec:
            case DedupSpec(time=KeyedTime() as keyed):
                columns.append(batch.column(keyed.column))
            case DedupSpec(forgetting=Forgetting() as forgetting):
                # Spark takes a missing time for 0.
                time = pc.fill_null(batch.column(forgetting.column), 0)
                columns.append(pc.add(time, forgetting.delay_us))
        if self._spec.late_column is not None:
            columns.append(batch.column(self._spec.late_column))
        return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])

    def drain(self) -> list[tuple[int, pa.RecordBatch]]:
        gathered, self._gathered = self._gathered, {}
        self._gathered_bytes = 0
        self._distinct.clear()
        return [
            (shard, batch)
            for shard, parts in gathered.items()
            for batch in pa.Table.from_batches(parts).combine_chunks().to_batches()
        ]


class DedupShard(StoreShard):
    store_text = "hash tables of keys in memory over hash-ordered runs, and timers that forget them"

    def __init__(self, place: Place, spec: DedupSpec) -> None:
        super().__init__(place, spec, dedup_layout(spec))
        self._spec = spec
        self._new: list[pa.RecordBatch] = []

    def apply(self, rows: pa.RecordBatch) -> None:
        emitted = len(self._spec.emitted_columns)
        keys = rows.select(range(emitted, rows.num_columns))
        is_new = self._store.insert(keys, None if self._spec.forgetting is None else _KEYS)
        new = rows.select(range(emitted)).filter(is_new)
        if new.num_rows:
            self._new.append(pa.RecordBatch.from_arrays(new.columns, schema=self._spec.output_schema))

    def ready(self) -> list[pa.RecordBatch]:
        new, self._new = self._new, []
        return new

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """As in Spark, keys are forgotten after the batch's rows, by the watermark before the batch."""
        slices = [slice_ for slice_, _ in self._store.slices() if slice_ != NEVER]
        if self._spec.forgetting is not None:
            for slice_ in slices:
                if slice_ - self._spec.forgetting.slice_us < before_us:
                    self._store.forget(slice_, _KEYS, before_us)
        elif self._spec.time is not None:
            # Keys of the slice that the watermark cuts may stay: their rows are late.
            for slice_ in slices:
                if slice_ <= before_us:
                    self._store.drop(slice_)
        return iter(())

    def _abort(self) -> None:
        super()._abort()
        self._new.clear()

    def stats(self) -> dict[str, int]:
        figures = super().stats()
        if self._spec.forgetting is not None:
            figures["rows"] = dict(self._store.slices()).get(_KEYS, 0)
        return figures
