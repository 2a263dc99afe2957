"""Brings the rows that an operator emits together by group before they reach Spark, as Arrow: Spark's own tables of
lists hold a Java object for each value.

It runs in the tasks that read the outputs, and in the driver for small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import BUCKETS, Layout, Router

__all__ = ["Gathered", "Gathering", "gather"]

_HELD_BYTES = 256 << 20
"""Of rows; where there are more, the groups are gathered in several passes over them."""
_BATCH_GROUPS = 32_768
Rows = Iterable[pa.RecordBatch]
Values = tuple[np.ndarray, pa.Array]
"""The values of one group after the other, and where each group's begin; nulls left out."""


class Gathered(msgspec.Struct, frozen=True):
    """What is made of one column of a group's rows, nulls left out."""

    op: Literal["list", "percentile"]
    column: int
    fraction: float = 0.0
    """Of a percentile: 0.5 is the median."""


class Gathering(msgspec.Struct, frozen=True):
    """Rows are grouped by their first columns and, where windows have bounds, by the last two. What is given out are
    those, with the gathered values between them."""

    keys: int
    bounds: bool
    values: tuple[Gathered, ...]
    output_ipc: bytes

    @property
    def output_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.output_ipc))

    def grouped(self, columns: int) -> list[int]:
        """The positions, among so many columns, of those that rows are grouped by."""
        return [*range(self.keys), *(range(columns - 2, columns) if self.bounds else ())]


def gather(
    read: Callable[[], Rows], gathering: Gathering, held_bytes: int = _HELD_BYTES
) -> Iterator[pa.RecordBatch]:
    """`read` gives all rows, as often as it is called."""
    held: list[pa.RecordBatch] = []
    bytes_ = total = 0
    for batch in read():
        total += batch.nbytes
        bytes_ += batch.nbytes
        held.append(batch)
        if bytes_ > held_bytes:
            held.clear()
            bytes_ = 0
    if total <= held_bytes:
        yield from _groups(held, gathering)
        return
    held.clear()
    passes = -(-total // held_bytes)
    for number in range(passes):
        yield from _groups(_part(read(), gathering, number, passes), gathering)


def _part(rows: Rows, gathering: Gathering, number: int, parts: int) -> Iterator[pa.RecordBatch]:
    """The rows of one of several parts, each of which has whole groups."""
    router: Router | None = None
    for batch in rows:
        columns = [batch.column(i) for i in gathering.grouped(batch.num_columns)]
        # With one more column the hash is another than the one by which rows came to their shard.
        salted = pa.RecordBatch.from_arrays(
            [pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows), *columns],
            names=[f"c{i}" for i in range(len(columns) + 1)],
        )
        if router is None:
            starts = [BUCKETS * part // parts for part in range(parts)]
            router = Router(Layout(salted.schema, salted.num_columns, []), starts)
        for part, _, picked, _ in router.route(salted):
            if part == number:
                yield batch.take(picked)


def _groups(batches: Rows, gathering: Gathering) -> Iterator[pa.RecordBatch]:
    batches = list(batches)
    if not batches:
        return
    columns = [column.combine_chunks() for column in pa.Table.from_batches(batches).columns]
    grouped = [columns[i] for i in gathering.grouped(len(columns))]
    starts, rows = _order(grouped)
    first = rows.take(pa.array(starts[:-1]))
    values = [_value(columns[value.column].take(rows), starts, value) for value in gathering.values]
    keys = [column.take(first) for column in grouped]
    made = [*keys[: gathering.keys], *values, *keys[gathering.keys :]]
    schema = gathering.output_schema
    arrays = [array.cast(kind) for array, kind in zip(made, schema.types, strict=True)]
    yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(max_chunksize=_BATCH_GROUPS)


def _order(grouped: list[pa.Array]) -> tuple[np.ndarray, pa.Array]:
    """The numbers of the rows, one group after the other, and where each group's begin, with the end of the last."""
    parts = [part for column in grouped for part in _plain(column)]
    names = [f"c{i}" for i in range(len(parts))]
    rows = pa.array(np.arange(len(grouped[0])))
    table = pa.Table.from_arrays([*parts, rows], names=[*names, "row"])
    lists = table.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"]
    whole = pa.concat_arrays(lists.chunks)
    return whole.offsets.to_numpy(), whole.values


def _plain(column: pa.Array) -> Iterator[pa.Array]:
    """Arrow groups by no structs, so their fields stand for them."""
    if pa.types.is_struct(column.type):
        yield column.is_valid()
        for field in column.flatten():
            yield from _plain(field)
    else:
        yield column


def _value(values: pa.Array, starts: np.ndarray, wanted: Gathered) -> pa.Array:
    if values.null_count:
        valid = values.is_valid()
        counted = np.concatenate([[0], np.cumsum(valid.to_numpy(zero_copy_only=False))])
        starts, values = counted[starts], values.filter(valid)
    match wanted.op:
        case "list":
            return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
        case "percentile":
            return _percentiles(values, starts, wanted.fraction)


def _percentiles(values: pa.Array, starts: np.ndarray, fraction: float) -> pa.Array:
    """Between two values on a straight line, computed as Spark's `percentile` does, to the last bit."""
    counts = np.diff(starts)
    groups = np.repeat(np.arange(len(counts)), counts)
    numbers = values.to_numpy(zero_copy_only=False)
    ordered = numbers[np.lexsort((numbers, groups))].astype(np.float64)
    if not len(ordered):
        return pa.nulls(len(counts), pa.float64())
    place = np.maximum(counts - 1, 0) * fraction
    below, above = np.floor(place), np.ceil(place)
    last = len(ordered) - 1
    low = ordered[np.minimum(starts[:-1] + below.astype(np.int64), last)]
    high = ordered[np.minimum(starts[:-1] + above.astype(np.int64), last)]
    with np.errstate(invalid="ignore"):
        between = low + (high - low) * (place - below)
    found = np.where((below == above) | (low == high), low, between)
    return pc.if_else(pa.array(counts > 0), pa.array(found), pa.scalar(None, pa.float64()))
