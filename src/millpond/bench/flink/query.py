"""A workload's query as Flink's SQL, and the tables over the input files that it reads."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

__all__ = ["EVENT_TIME", "FlinkQuery", "input_ddl"]

EVENT_TIME = "event_time"
"""The column of that name: Flink keeps milliseconds of what is microseconds in the files."""


class FlinkQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload gives to be run by Flink. Column names of the result are those of the other engines,
    a field of a struct as `struct.field`."""

    select: str
    """One statement over tables that are called as the streams; with event time they have a column `event_time`."""
    update: bool
    """A later row replaces an earlier one with the same keys; otherwise rows are only added."""
    key_columns: tuple[str, ...]
    event_time: str | None = None
    """The column of the files that event time is taken from."""
    watermark_seconds: int = 4
    types: dict[str, str] = {}
    """Columns of the result that are of another type, by Arrow's name, than Flink's SQL gives them."""
    settings: dict[str, str] = {}
    """What suits this query better than the engine's settings."""

    def __post_init__(self) -> None:
        if self.update and not self.key_columns:
            raise ValueError("a Flink query in update mode needs the key columns of its result")


def input_ddl(query: FlinkQuery, stream: str, schema: pa.Schema, files: Path) -> str:
    """The statement that makes a stream's files a table."""
    columns = [f"`{field.name}` {_sql_type(field.type, field.name)}" for field in schema]
    if query.event_time is not None:
        if query.event_time not in schema.names:
            raise ValueError(f"event time {query.event_time!r} is not a column of {', '.join(schema.names)}")
        columns += [
            f"`{EVENT_TIME}` AS CAST(`{query.event_time}` AS TIMESTAMP_LTZ(3))",
            f"WATERMARK FOR `{EVENT_TIME}` AS `{EVENT_TIME}` - INTERVAL '{query.watermark_seconds}' SECOND",
        ]
    options = {
        "connector": "ordered-files",
        "path": files.as_uri(),
        "format": "parquet",
        "parquet.utc-timezone": "true",
    }
    listed = ",\n  ".join(f"'{name}' = '{value}'" for name, value in options.items())
    body = ",\n  ".join(columns)
    return f"CREATE TABLE `{stream}` (\n  {body}\n) WITH (\n  {listed}\n)"


_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
}


def _sql_type(arrow: pa.DataType, column: str) -> str:
    if arrow in _SQL_TYPES:
        return _SQL_TYPES[arrow]
    if pa.types.is_timestamp(arrow) and arrow.unit in ("ms", "us"):
        digits = {"ms": 3, "us": 6}[arrow.unit]
        return f"TIMESTAMP({digits})" if arrow.tz is None else f"TIMESTAMP_LTZ({digits})"
    if pa.types.is_struct(arrow):
        fields = ", ".join(f"`{field.name}` {_sql_type(field.type, column)}" for field in arrow)
        return f"ROW<{fields}>"
    if pa.types.is_list(arrow):
        return f"ARRAY<{_sql_type(arrow.value_type, column)}>"
    if pa.types.is_decimal(arrow):
        return f"DECIMAL({arrow.precision}, {arrow.scale})"
    raise ValueError(f"column {column!r} is of type {arrow}, which the Flink input table does not know")
