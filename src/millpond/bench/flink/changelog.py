"""What Flink's sink wrote, as the rows that count at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["KIND", "final_rows"]

KIND = "__kind"
"""The column that holds the kind of change, if the query is in update mode."""
DELETE = 3
"""Flink's number of the kind; the others that an upsert sink sees (0, 2) both set the row of a key."""
PART = re.compile(r"part-.*-(\d+)-(\d+)")
"""Committed files: number of the subtask, and of the file within it. Others are hidden."""


def final_rows(output: Path, keys: Sequence[str]) -> pa.Table:
    """All rows of an append query; of an update query the last row of each key that was not deleted.

    A key's rows are all of one subtask, and its files are numbered in the order in which they were written.
    """
    tables = [_utc(pq.ParquetFile(file).read()) for file in _files(output)]
    if not tables:
        raise ValueError(f"Flink wrote no file to {output}")
    rows = pa.concat_tables(tables)
    if KIND not in rows.column_names:
        return rows
    others = [name for name in rows.column_names if name not in keys]
    options = pc.ScalarAggregateOptions(skip_nulls=False)
    last = rows.group_by(list(keys), use_threads=False).aggregate(
        [(name, "last", options) for name in others]
    )
    last = last.rename_columns([name.removesuffix("_last") for name in last.column_names])
    kept = last.filter(pc.not_equal(last[KIND], DELETE))
    return kept.select([name for name in rows.column_names if name != KIND])


def _files(output: Path) -> list[Path]:
    matches = ((PART.fullmatch(path.name), path) for path in output.iterdir())
    parts = sorted((int(match[1]), int(match[2]), path) for match, path in matches if match)
    return [path for _, _, path in parts]


def _utc(table: pa.Table) -> pa.Table:
    """Instants as the other engines have them: microseconds with a time zone, whatever Parquet says of them."""
    fields = [
        pa.field(field.name, pa.timestamp("us", "UTC") if pa.types.is_timestamp(field.type) else field.type)
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))
