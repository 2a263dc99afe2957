"""Windows whose bounds a function of the user says, which may be others for every row.

The function runs in Spark before the plan is cut, so that an operator sees a column of windows. The watermark follows
it as it follows the time that the windows are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from millpond.errors import InvalidQuery
from millpond.hints import Hint, hint_on, marked
from millpond.semantics.operator import CountWindows, KeyedTime, ObservedRowsSpec, Sessions
from millpond.spark.arrow_functions import arrow_function, name_of, times_like
from millpond.spark.grouped import GroupedRows
from millpond.spark.jvm import Catalyst, JavaObject
from millpond.spark.operators import Inputs, time_of
from millpond.spark.own_windows import OwnWindow
from millpond.spark.unaligned_rows import UnalignedRowsDraft
from millpond.spark.windows import CUSTOM_WINDOW, WATERMARK_DELAY, watermarked_key

__all__ = ["CustomRowsDraft", "CustomWindow", "ObservedRowsDraft", "WindowFunction"]

Assign = Callable[..., tuple[Any, Any]]
"""From the columns of some rows, as Arrow arrays, to the starts and the ends of their windows."""


class WindowFunction:
    """What `window_function` gives: called with columns, it is a key for `groupBy` on a stream of Millpond's."""

    def __init__(self, assign: Assign, hint: Hint | None = None) -> None:
        if not callable(assign):
            raise InvalidQuery(
                f"window_function({assign!r}): it takes a function from columns to the starts and ends of windows"
            )
        self._assign = assign
        self._hint = hint.over(hint_on(assign)) if hint is not None else hint_on(assign)

    def __call__(self, time: str | SparkColumn, *others: str | SparkColumn) -> CustomWindow:
        """`time`: the event time, which a watermark follows. It and the others are what the function gets."""
        return CustomWindow(self._assign, tuple(map(_column, (time, *others))), self._hint)


def _column(column: str | SparkColumn) -> SparkColumn:
    return F.col(column) if isinstance(column, str) else column


@dataclass(frozen=True)
class CustomWindow(OwnWindow):
    is_time: ClassVar[bool] = True

    assign: Assign
    columns: tuple[SparkColumn, ...]
    hint: Hint | None = None
    name: str = "window"

    def alias(self, name: str) -> CustomWindow:
        """The same window under another name."""
        return replace(self, name=name)

    def rows(self, frame: DataFrame) -> DataFrame:
        """As with Spark's windows, a row without a time is in none."""
        return frame.where(self.columns[0].isNotNull())

    def column(self, frame: DataFrame) -> SparkColumn:
        time = frame.select(self.columns[0]).schema.fields[0]
        if not isinstance(time.dataType, TimestampType | TimestampNTZType):
            raise InvalidQuery(
                f"{self.text}: windows are made of a time, and {time.name} is of the type "
                f"{time.dataType.simpleString()}"
            )
        bounds = StructType([StructField(bound, time.dataType, False) for bound in ("start", "end")])
        function = arrow_function(_checked(self.assign, self.text), bounds)
        mark: dict[str, Any] = {CUSTOM_WINDOW: self.text, **marked(self.hint)}
        if WATERMARK_DELAY in time.metadata:
            mark[WATERMARK_DELAY] = time.metadata[WATERMARK_DELAY]
        return function(*self.columns).alias(self.name, metadata=mark)

    @property
    def text(self) -> str:
        return f"window_function({name_of(self.assign)})"


def _checked(assign: Assign, text: str) -> Callable[..., pa.Array]:
    def windows(*columns: pa.Array) -> pa.Array:
        return _windows(assign(*columns), columns[0], text)

    return windows


def _windows(bounds: Any, times: pa.Array, text: str) -> pa.Array:
    """The windows that a function gave for rows of these times."""
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InvalidQuery(f"{text} has to return two arrays, the starts and the ends of the windows")
    arrays = []
    for bound, values in zip(("starts", "ends"), bounds, strict=True):
        array = times_like(times, values, f"{text} returned {bound}")
        if array.null_count:
            raise InvalidQuery(
                f"{text} returned {array.null_count} nulls among the {bound} of {len(times)} windows"
            )
        arrays.append(array)
    starts, ends = arrays
    wrong = pc.index(pc.less_equal(ends, starts), True).as_py()
    if wrong >= 0:
        raise InvalidQuery(
            f"{text} returned a window from {starts[wrong]} to {ends[wrong]}, whose end is not after its start"
        )
    fields = [pa.field(name, times.type, False) for name in ("start", "end")]
    return pa.StructArray.from_arrays([starts, ends], fields=fields)


class CustomRowsDraft(UnalignedRowsDraft):
    """Rows that are kept until the window ends that a function put them into. The window is part of the key."""

    def __init__(self, catalyst: Catalyst, rows: GroupedRows) -> None:
        super().__init__(catalyst, rows, None, bounds=watermarked_key(rows.keys))

    def _window_slots(self) -> tuple[list[JavaObject], JavaObject | None]:
        return [], None

    def _time(self, name: str, inputs: Inputs, keys: list[JavaObject]) -> KeyedTime:  # noqa: ARG002
        time = time_of(self._catalyst, inputs, watermarked_key(keys), None)
        assert isinstance(time, KeyedTime)
        return time


class ObservedRowsDraft(CustomRowsDraft):
    """The same where nobody says whether many windows end together."""

    def _spec(self, time: Sessions | KeyedTime | CountWindows, **others: Any) -> ObservedRowsSpec:
        assert isinstance(time, KeyedTime)
        return ObservedRowsSpec(time=time, **others)
