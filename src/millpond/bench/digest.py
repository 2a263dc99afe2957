"""What a run put out, reduced to a digest that does not depend on the order of rows.

In update mode a key's row replaces the one before it, so that only the last one counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["differences", "digest", "last_rows"]


_WINDOW_END = "window.end"


def last_rows(
    output: Path, keys: Sequence[str], *, only_last_batch: bool = False, ended_by: datetime | None = None
) -> pa.Table:
    """The last row of each key over the batches under `output`, in the order of the keys; without keys every row, in
    the order of all columns. `only_last_batch`: each batch is the whole result. `ended_by`: windows that end later
    never do, so that some engines give out rows of them and others none; they are left out."""
    directories = sorted(output.glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    tables = []
    for directory in directories[-1:] if only_last_batch else directories:
        # Spark keeps its own schema in the files' metadata; only names and types count here.
        tables += [_flat(pq.ParquetFile(file).read()) for file in sorted(directory.glob("*.parquet"))]
    if not tables:
        return pa.table({})
    rows = pa.concat_tables(tables)
    if ended_by is not None and _WINDOW_END in rows.column_names:
        is_later = pc.greater(rows[_WINDOW_END], pa.scalar(ended_by, rows[_WINDOW_END].type))
        rows = rows.filter(pc.invert(pc.fill_null(is_later, fill_value=False)))
    return _last(rows, keys) if keys else rows.sort_by([(name, "ascending") for name in rows.column_names])


def _flat(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    table = table.select(sorted(table.column_names))
    return table.cast(pa.schema([pa.field(field.name, field.type) for field in table.schema]))


def _last(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    others = [name for name in table.column_names if name not in keys]
    options = pc.ScalarAggregateOptions(skip_nulls=False)
    newest = table.group_by(list(keys), use_threads=False).aggregate(
        [(name, "last", options) for name in others]
    )
    newest = newest.rename_columns([name.removesuffix("_last") for name in newest.column_names])
    ordered = newest.select(table.column_names).sort_by([(key, "ascending") for key in keys])
    return ordered.combine_chunks()


def digest(rows: pa.Table) -> str:
    """SHA-256 of the rows in their order, with names and types; equal tables give equal bytes."""
    total = hashlib.sha256(f"{rows.num_rows}\n{rows.schema.to_string()}\n".encode())
    for column in rows.columns:
        for chunk in column.chunks:
            total.update(pc.is_valid(chunk).cast(pa.uint8()).to_numpy(zero_copy_only=False).tobytes())
            for buffer in _values(chunk):
                total.update(buffer)
    return total.hexdigest()


def _values(array: pa.Array) -> list[bytes]:
    """A column's bytes without its nulls and without the gaps that its buffers may have."""
    dense = array.drop_null()
    if pa.types.is_primitive(dense.type) and not pa.types.is_boolean(dense.type):
        width = dense.type.bit_width // 8
        return [dense.buffers()[1].slice(dense.offset * width, len(dense) * width).to_pybytes()]
    return [repr(value).encode() + b"\0" for value in dense.to_pylist()]


def differences(left: pa.Table, right: pa.Table, keys: Sequence[str], limit: int = 5) -> pa.Table:
    """The first rows in which two results differ: keys, then each other column of both sides. Without keys, rows that
    only one side has."""
    keys = keys or left.column_names
    if left.schema != right.schema:
        return pa.table({"left": [left.schema.to_string()], "right": [right.schema.to_string()]})
    others = [name for name in left.column_names if name not in keys]
    joined = left.append_column("in left", _marks(left)).join(
        right.append_column("in right", _marks(right)),
        keys=list(keys),
        join_type="full outer",
        left_suffix=" left",
        right_suffix=" right",
    )
    differs = pc.or_(pc.is_null(joined["in left"]), pc.is_null(joined["in right"]))
    for name in others:
        a, b = joined[f"{name} left"], joined[f"{name} right"]
        unequal = pc.fill_null(pc.not_equal(a, b), False)
        differs = pc.or_(differs, pc.or_(unequal, pc.xor(pc.is_null(a), pc.is_null(b))))
    found = joined.filter(differs).drop_columns(["in left", "in right"])
    return found.sort_by([(key, "ascending") for key in keys]).slice(0, limit)


def _marks(table: pa.Table) -> pa.Array:
    return pa.array([True] * table.num_rows, pa.bool_())
