"""Windows of so many rows of a key, kept merged. A key has one that is not full; full ones are given out at once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import InternalError
from millpond.semantics.operator import AggregateSpec, CountWindows, OutputMode
from millpond.state.layout import layout_of
from millpond.state.merged import StoreShard
from millpond.state.shard import Place

__all__ = ["CountedShard"]


class CountedShard(StoreShard):
    store_text = "a hash table in memory over hash-ordered runs, with each key's window that is not full"

    def __init__(self, place: Place, spec: AggregateSpec) -> None:
        super().__init__(place, spec, layout_of(spec))
        if not isinstance(spec.time, CountWindows):
            raise InternalError(f"{spec.name}: its windows do not end with their rows")
        self._rows = spec.time.rows
        self._count_at = len(spec.keys)
        self._output_schema = spec.output_schema
        self._full: list[pa.RecordBatch] = []

    def apply(self, rows: pa.RecordBatch) -> None:
        self._full += self._store.count(rows, self._rows)

    def ready(self) -> list[pa.RecordBatch]:
        full, self._full = self._full, []
        return [self._numbered(groups) for groups in full]

    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """In update mode, the values so far of the windows that have some of their rows."""
        if mode == "update":
            for groups in self._store.scan([slice_ for slice_, _ in self._store.slices()], touched_only=True):
                begun = groups.filter(self._begun(groups.column(self._count_at)))
                if begun.num_rows:
                    yield self._numbered(begun)

    def _begun(self, counts: pa.Array) -> pa.Array:
        full_rows = pc.multiply(pc.divide(counts, self._rows), self._rows)
        return pc.not_equal(counts, full_rows)

    def _numbered(self, groups: pa.RecordBatch) -> pa.RecordBatch:
        """With the window's number in the place of the key's rows so far."""
        columns = list(groups.columns)
        columns[self._count_at] = pc.divide(pc.subtract(columns[self._count_at], 1), self._rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._output_schema)

    def _abort(self) -> None:
        self._full.clear()
        super()._abort()
