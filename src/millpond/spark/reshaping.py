"""What changes between the rows that Spark has and those that the kernel has.

A struct that the query makes of columns travels as those columns, in both directions: Spark would make a row in a
row of it, for each row, while in Arrow it is put together and taken apart for nothing. Lists of rows become rows
here, and rows of a group one, before Spark sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.spark.gathering import Gathering, gather

__all__ = ["Reshaping", "Unnesting", "Widths", "nested", "nested_frame", "reshaped"]

Widths = tuple[int, ...]
"""Of each column, the number of columns that it travels as; 0: as it is."""


def nested(batch: pa.RecordBatch, widths: Widths, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, put together from those that they travel as, whose types stay what they are."""
    columns, place = [], 0
    for width, field in zip(widths, schema, strict=True):
        if width:
            names = [field.type.field(i).name for i in range(width)]
            columns.append(pa.StructArray.from_arrays(batch.columns[place : place + width], names))
        else:
            columns.append(batch.column(place))
        place += width or 1
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def nested_frame(frame: DataFrame, widths: Widths, schema: pa.Schema) -> DataFrame:
    """The same in Spark."""
    columns: list[Column] = []
    given = iter(frame.columns)
    for width, field in zip(widths, schema, strict=True):
        if width:
            parts = [F.col(next(given)).alias(field.type.field(i).name) for i in range(width)]
            columns.append(F.struct(*parts).alias(field.name))
        else:
            columns.append(F.col(next(given)))
    return frame.select(*columns)


class Unnesting(msgspec.Struct, frozen=True):
    """What an operator emits, with structs as the columns they are made of."""

    widths: Widths
    exploded: int | None
    """The column of lists of which each element gives a row: its place, from 0, and its fields."""
    output_ipc: bytes

    @property
    def output_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.output_ipc))


Reshaping = Gathering | Unnesting


def reshaped(
    read: Callable[[], Iterable[pa.RecordBatch]], reshaping: Reshaping | None
) -> Iterable[pa.RecordBatch]:
    """`read` gives all rows that an operator emits, as often as it is called."""
    match reshaping:
        case Gathering():
            return gather(read, reshaping)
        case Unnesting():
            return _unnested(read(), reshaping)
    return read()


def _unnested(batches: Iterable[pa.RecordBatch], unnesting: Unnesting) -> Iterator[pa.RecordBatch]:
    schema = unnesting.output_schema
    for batch in batches:
        columns: list[pa.Array] = []
        given = batch.columns
        if unnesting.exploded is not None:
            given, places = _exploded(given, unnesting.exploded)
        for number, (width, column) in enumerate(zip(unnesting.widths, given, strict=True)):
            if number == unnesting.exploded:
                columns.append(places)
            columns += column.flatten() if width else [column]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _exploded(columns: list[pa.Array], number: int) -> tuple[list[pa.Array], pa.Array]:
    """The columns with a row for each element of the lists in one of them, and the places of the elements."""
    lists = columns[number]
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(len(lists)), lengths)
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(parents)) - starts[parents]
    rows = pa.array(parents)
    given = [lists.flatten() if i == number else column.take(rows) for i, column in enumerate(columns)]
    return given, pa.array(places, pa.int32())
