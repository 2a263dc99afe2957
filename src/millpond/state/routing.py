"""Sorts out the rows of operators that keep rows as they are: each goes to one shard, mostly into one slice."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import Router
from millpond.semantics.operator import GroupRowsSpec, ObservedRowsSpec, WindowRowsSpec
from millpond.state.layout import key_layout, routing_layout

__all__ = ["HASH", "SLICE", "ArrivalRouter", "RowRouter", "routed_schema"]

HASH = "hash"
"""The column with the hash of a row's key."""

SLICE = "slice"
"""The column that says where a row belongs; all rows of a batch belong to one slice."""


def routed_schema(spec: WindowRowsSpec | GroupRowsSpec) -> pa.Schema:
    """The kept columns, the hash of the key where rows are found by it, then the slice."""
    schema = spec.input_schema
    hashes = [pa.field(HASH, pa.uint64())] if isinstance(spec, GroupRowsSpec) else []
    return pa.schema([*(schema.field(i) for i in spec.kept_columns), *hashes, pa.field(SLICE, pa.int64())])


class RowRouter:
    def __init__(
        self, spec: WindowRowsSpec | GroupRowsSpec, shard_starts: tuple[int, ...], late_before_us: int | None
    ) -> None:
        self.schema = routed_schema(spec)
        layout, self._looked_at = routing_layout(spec)
        self._kept = list(spec.kept_columns)
        self._with_hash = isinstance(spec, GroupRowsSpec)
        self._late_column = spec.late_column if isinstance(spec, GroupRowsSpec) else None
        self._late_before_us = late_before_us
        self._left_out = 0
        self._router = Router(layout, list(shard_starts), late_before_us)
        self._gathered: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self.memory_bytes = 0

    @property
    def rows(self) -> int:
        return self._router.rows + self._left_out

    @property
    def late_rows(self) -> int:
        return self._router.late_rows + self._left_out

    def push(self, batch: pa.RecordBatch) -> None:
        if self._late_column is not None and self._late_before_us is not None:
            given = batch.num_rows
            batch = _in_time(batch, self._late_column, self._late_before_us)
            self._left_out += given - batch.num_rows
        kept = batch.select(self._kept)
        for shard, slice_, rows, hashes in self._router.route(batch.select(self._looked_at)):
            # Rows of one batch mostly go many ways; where all go one way there is nothing to pick out.
            part = kept if len(rows) == batch.num_rows else kept.take(rows)
            if self._with_hash:
                part = part.append_column(HASH, hashes)
            self._gathered.setdefault((shard, slice_), []).append(part)
            self.memory_bytes += part.nbytes

    def drain(self) -> list[tuple[int, pa.RecordBatch]]:
        gathered, self._gathered = self._gathered, {}
        self.memory_bytes = 0
        return [
            (shard, self._with_slice(batch, slice_))
            for (shard, slice_), parts in gathered.items()
            for batch in _joined(parts)
        ]

    def _with_slice(self, batch: pa.RecordBatch, slice_: int) -> pa.RecordBatch:
        number = pa.repeat(pa.scalar(slice_, pa.int64()), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, number], schema=self.schema)


class ArrivalRouter:
    """For rows of which it is not known yet how they will be kept: they stay in the form in which they were read."""

    def __init__(
        self, spec: ObservedRowsSpec, shard_starts: tuple[int, ...], late_before_us: int | None
    ) -> None:
        self.schema = spec.input_schema
        self._keys = list(spec.key_columns)
        self._end = spec.time.column
        self._late_before_us = late_before_us
        self._router = Router(key_layout(spec), list(shard_starts), None)
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self.rows = self.late_rows = self.memory_bytes = 0

    def push(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        in_time = batch
        if self._late_before_us is not None:
            in_time = _in_time(batch, self._end, self._late_before_us)
            self.late_rows += batch.num_rows - in_time.num_rows
        for shard, _, rows, _ in self._router.route(in_time.select(self._keys)):
            part = in_time if len(rows) == in_time.num_rows else in_time.take(rows)
            self._gathered.setdefault(shard, []).append(part)
            self.memory_bytes += part.nbytes

    def drain(self) -> list[tuple[int, pa.RecordBatch]]:
        gathered, self._gathered = self._gathered, {}
        self.memory_bytes = 0
        return [(shard, batch) for shard, parts in gathered.items() for batch in _joined(parts)]


def _in_time(batch: pa.RecordBatch, column: int, late_before_us: int) -> pa.RecordBatch:
    return batch.filter(pc.greater(batch.column(column), late_before_us))


def _joined(parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(parts).combine_chunks().to_batches() if len(parts) > 1 else parts
