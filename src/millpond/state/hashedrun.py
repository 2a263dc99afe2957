"""Rows in the order of their keys' hashes, in blocks, so that those of some keys are found without the others.

The hash is the last column. A run lies in a pack as `block... | index | tail`, each a blob with a checksum of its
own: a block is a record batch as Arrow's IPC format has it, the index says where each begins, and the tail how long
the index is. Rows of a key lie in the order in which they came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millpond._kernel import PackWriter, read_blob
from millpond.state.routing import HASH

__all__ = ["Block", "HashedRun", "in_hash_order", "merged_parts", "read_block", "write_run"]

_BLOCK_BYTES = 128 << 10
"""A cold key costs a block of each run: large enough for the disk, small enough for the key."""
_PART_BLOCKS = 256
"""What a merge holds of each run at a time."""
_TAIL = struct.Struct("<Q")
_TAIL_BYTES = 32 + _TAIL.size
_INDEX = pa.schema([("first", pa.uint64()), ("length", pa.uint64()), ("rows", pa.uint64())])

Hashes = Any
"""A sorted numpy array of uint64 without repetition."""


@dataclass
class Block:
    """Rows in a file, in memory, or both."""

    first: int
    """The hash of its first row."""
    rows: int
    offset: int
    length: int
    batch: pa.RecordBatch | None = None
    used: int = 0
    """When it was last read."""


@dataclass
class HashedRun:
    path: str | None
    """None: its pack has no name yet."""
    offset: int
    length: int
    rows: int
    blocks: list[Block]

    @staticmethod
    def open(path: str, offset: int, length: int, read_delay_us: int) -> HashedRun:
        tail = read_blob(path, offset + length - _TAIL_BYTES, _TAIL_BYTES, read_delay_us)
        (index_bytes,) = _TAIL.unpack(tail)
        at = offset + length - _TAIL_BYTES - index_bytes
        index = pa.ipc.read_record_batch(
            pa.py_buffer(read_blob(path, at, index_bytes, read_delay_us)), _INDEX
        )
        blocks, begin = [], offset
        for first, size, rows in zip(*(column.to_pylist() for column in index.columns), strict=True):
            blocks.append(Block(first, rows, begin, size))
            begin += size
        return HashedRun(path, offset, length, sum(block.rows for block in blocks), blocks)

    def with_keys(self, hashes: Hashes | None) -> Iterator[Block]:
        """The blocks that may hold rows with one of the hashes; None: all."""
        if hashes is None:
            yield from self.blocks
            return
        firsts = np.array([block.first for block in self.blocks], np.uint64)
        # The last key of a block may go on in the next.
        begins = np.searchsorted(hashes, firsts, side="left")
        ends = np.append(np.searchsorted(hashes, firsts[1:], side="right"), len(hashes))
        for block, begin, end in zip(self.blocks, begins, ends, strict=True):
            if begin < end:
                yield block


def in_hash_order(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch | None:
    """All rows as one batch; None where there are none."""
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    if table.num_rows == 0:
        return None
    order = np.argsort(table.column(HASH).to_numpy(), kind="stable")
    (batch,) = table.take(pa.array(order)).combine_chunks().to_batches()
    return batch


def write_run(writer: PackWriter, parts: Iterable[pa.RecordBatch | None], *, held: bool) -> HashedRun:
    """`parts`: rows in the order of hashes, from part to part as well. `held`: they stay in memory too."""
    blocks: list[Block] = []
    for part in parts:
        for batch in () if part is None else _blocks(part):
            bytes_ = batch.serialize().to_pybytes()
            offset, length = writer.append(bytes_)
            # Each block has memory of its own, because each is let go by itself.
            kept = pa.ipc.read_record_batch(pa.py_buffer(bytes_), batch.schema) if held else None
            blocks.append(Block(batch.column(HASH)[0].as_py(), batch.num_rows, offset, length, kept))
    columns = [
        [block.first for block in blocks],
        [block.length for block in blocks],
        [b.rows for b in blocks],
    ]
    index = pa.RecordBatch.from_arrays([pa.array(column, pa.uint64()) for column in columns], schema=_INDEX)
    _, index_bytes = writer.append(index.serialize().to_pybytes())
    tail_at, tail_bytes = writer.append(_TAIL.pack(index_bytes))
    begin = blocks[0].offset
    return HashedRun(None, begin, tail_at + tail_bytes - begin, sum(block.rows for block in blocks), blocks)


def _blocks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, _BLOCK_BYTES * batch.num_rows // max(batch.nbytes, 1))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def read_block(path: str, block: Block, schema: pa.Schema, read_delay_us: int) -> pa.RecordBatch:
    bytes_ = read_blob(path, block.offset, block.length, read_delay_us)
    return pa.ipc.read_record_batch(pa.py_buffer(bytes_), schema)


def merged_parts(
    runs: Sequence[HashedRun], schema: pa.Schema, read_delay_us: int
) -> Iterator[pa.RecordBatch | None]:
    """The rows of several runs, oldest first, as those of one: each stretch of hashes in turn, so that only some
    blocks of each run are in memory."""
    largest = max(runs, key=lambda run: len(run.blocks))
    borders = sorted({block.first for block in largest.blocks[_PART_BLOCKS::_PART_BLOCKS]})
    for begin, end in zip([0, *borders], [*borders, None], strict=True):
        parts = [
            _between(run, block, schema, read_delay_us, begin, end)
            for run in runs
            for block, following in zip(run.blocks, [*run.blocks[1:], None], strict=True)
            if (end is None or block.first < end) and (following is None or following.first >= begin)
        ]
        yield in_hash_order(parts, schema)


def _between(
    run: HashedRun, block: Block, schema: pa.Schema, read_delay_us: int, begin: int, end: int | None
) -> pa.RecordBatch:
    assert run.path is not None
    batch = block.batch
    if batch is None:
        batch = read_block(run.path, block, schema, read_delay_us)
    hashes = batch.column(HASH).to_numpy()
    first = int(np.searchsorted(hashes, np.uint64(begin), side="left"))
    last = batch.num_rows if end is None else int(np.searchsorted(hashes, np.uint64(end), side="left"))
    return batch.slice(first, last - first)
