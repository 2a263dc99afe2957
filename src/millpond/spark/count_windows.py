"""Windows that end with so many rows of a key, which Spark does not have.

In Spark's plan such a window is a column of one value, marked with the number of rows; Millpond fills in the window's
number. The mark includes one of a watermark, because that is how Spark knows groups that end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millpond.errors import InvalidQuery
from millpond.hints import Hint, marked
from millpond.semantics.operator import CountWindows
from millpond.spark.grouped import GroupedRows
from millpond.spark.jvm import Catalyst, JavaObject
from millpond.spark.operators import Inputs, count_time, number_slot
from millpond.spark.own_windows import OwnWindow
from millpond.spark.unaligned_rows import UnalignedRowsDraft
from millpond.spark.windows import COUNT_WINDOW, WATERMARK_DELAY, CountForm

__all__ = ["CountRowsDraft", "CountWindow", "count_window"]

_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class CountWindow(OwnWindow):
    """What `count_window` gives: a key for `groupBy` on a stream of Millpond's."""

    is_time: ClassVar[bool] = False

    size: int
    hint: Hint | None = None
    name: str = "count_window"

    def alias(self, name: str) -> CountWindow:
        """The same window under another name."""
        return replace(self, name=name)

    def rows(self, frame: DataFrame) -> DataFrame:
        return frame

    def column(self, frame: DataFrame) -> SparkColumn:  # noqa: ARG002
        mark = {COUNT_WINDOW: self.size, WATERMARK_DELAY: 0, **marked(self.hint)}
        return F.struct(F.lit(0).cast("bigint").alias("number")).alias(self.name, metadata=mark)


def count_window(rows: int, hint: Hint | None) -> CountWindow:
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= _MOST_ROWS:
        raise InvalidQuery(f"count_window({rows!r}): a window is made of a whole number of rows from 1 on")
    return CountWindow(rows, hint)


class CountRowsDraft(UnalignedRowsDraft):
    """Rows that are kept until there are as many as make a window."""

    def __init__(self, catalyst: Catalyst, rows: GroupedRows, form: CountForm) -> None:
        super().__init__(catalyst, rows, form.window, bounds=None)
        self._form = form

    def _window_slots(self) -> tuple[list[JavaObject], JavaObject]:
        slot, window = number_slot(self._catalyst, self._window)
        return [slot], window

    def _time(self, name: str, inputs: Inputs, keys: list[JavaObject]) -> CountWindows:  # noqa: ARG002
        return count_time(self._form)
