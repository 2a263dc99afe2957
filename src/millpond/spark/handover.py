"""How rows are handed to functions in Python: in Arrow batches that Spark bounds by rows and by bytes.

For the bytes Spark asks every column for its size after each row, which takes longer than all else that it does to
hand narrow rows over. Where no row is large the bound on rows is enough, and a look at the lengths of texts is all it
takes to be sure.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from millpond.spark.ingest import Task
from millpond.spark.jvm import Catalyst

__all__ = ["Handover"]

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_BOUND = str((1 << 31) - 1)
"""Spark does not look at the bytes when they are bounded by this."""
_MOST_BATCH_BYTES = 256 << 20
"""What a batch may have where Spark does not look. Its buffers grow by doubling, and each task has some."""
_LARGE_ROW = "millpond: a row is large, so the batch is read again with Spark's bound on bytes"
_FIXED = (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NullType,
    NumericType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)


class Handover:
    """Runs the `mapInArrow` jobs of a query."""

    def __init__(self, catalyst: Catalyst, source: DataFrame) -> None:
        """`source`: the plan under the frames that will be given. Where functions of the user's are in it, Spark's
        bound stays: what they take may be larger than what comes here."""
        self._catalyst = catalyst
        self._bounded = catalyst.calls_python(source)

    def run(self, frame: DataFrame, function: Task, schema: StructType | str) -> list[Row]:
        small = self._with_small_rows(frame)
        if small is not None:
            conf = frame.sparkSession.conf
            conf.set(_BYTES, _NO_BOUND)
            try:
                return self._collected(small, function, schema)
            except Exception as error:
                if _LARGE_ROW not in str(error):
                    raise
                # Where one is, more will come.
                self._bounded = True
            finally:
                conf.unset(_BYTES)
        return self._collected(frame, function, schema)

    @staticmethod
    def _collected(frame: DataFrame, function: Task, schema: StructType | str) -> list[Row]:
        rows: list[Row] = frame.mapInArrow(function, schema).collect()
        return rows

    def _with_small_rows(self, frame: DataFrame) -> DataFrame | None:
        """The frame, which fails with a large row; None: it needs Spark's bound, or the user has set it."""
        if self._bounded or self._catalyst.calls_python(frame):
            return None
        conf = frame.sparkSession._jsparkSession.conf()
        rows = int(conf.get(_ROWS))
        texts = _texts(frame.schema)
        if rows <= 0 or texts is None or conf.contains(_BYTES):
            return None
        if not texts:
            return frame
        return self._catalyst.checked_lengths(frame, texts, _MOST_BATCH_BYTES // rows, _LARGE_ROW)


def _texts(schema: StructType) -> list[int] | None:
    """The columns whose values have no fixed size; None: there are some whose size is not told by a length."""
    found = []
    for place, field in enumerate(schema):
        if isinstance(field.dataType, StringType | BinaryType):
            found.append(place)
        elif not _is_fixed(field.dataType):
            return None
    return found


def _is_fixed(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_fixed(field.dataType) for field in kind)
    return isinstance(kind, _FIXED)
