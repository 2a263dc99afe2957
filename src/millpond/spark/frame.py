"""`mp.stream(df)`: a streaming DataFrame whose state Millpond keeps.

The wrapper holds a real DataFrame and hands every call on to it; it only sees to it that what comes back is
wrapped again, and that `writeStream` is Millpond's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.group import GroupedData
from pyspark.sql.types import StructType

from millpond.errors import InvalidQuery
from millpond.hints import Hint, NextRead, Pattern, checked
from millpond.spark import lookback, top
from millpond.spark.hinted import hinted, hinted_schema
from millpond.spark.own_windows import OwnWindowGroups, own_window
from millpond.spark.writer import StreamWriter

__all__ = ["StreamFrame", "StreamGroups", "stream"]


def stream(frame: DataFrame | StreamFrame) -> StreamFrame:
    """Wraps a streaming DataFrame, from the DataFrame API or from SQL."""
    if isinstance(frame, StreamFrame):
        return frame
    if not hasattr(frame, "_jdf"):
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            raise InvalidQuery(
                "Spark Connect has no plan that Millpond could cut: use a classic session "
                "(SparkSession.builder.master(...), no remote)"
            )
        raise InvalidQuery(f"mp.stream takes a streaming DataFrame, not {type(frame).__name__}")
    if not frame.isStreaming:
        raise InvalidQuery(
            "mp.stream takes a streaming DataFrame; this one is a batch: read it with readStream"
        )
    return StreamFrame(frame)


class StreamFrame:
    """A streaming DataFrame whose state Millpond keeps. Every method of Spark's DataFrame works on it."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @property
    def writeStream(self) -> StreamWriter:
        return StreamWriter(self._frame)

    @property
    def unwrapped(self) -> DataFrame:
        """The DataFrame underneath."""
        return self._frame

    def groupBy(self, *cols: Any) -> StreamGroups:
        """Groups for aggregates. Beside what Spark's own takes, a key may be a window that Spark lacks."""
        keys = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list) else list(cols)
        window = own_window(keys)
        if window is not None:
            return StreamGroups(OwnWindowGroups(self._frame, keys, window))
        return StreamGroups(self._frame.groupBy(*keys))

    groupby = groupBy

    def lookback(
        self,
        past: DataFrame | StreamFrame,
        on: str | Sequence[str],
        between: tuple[str, str],
        how: lookback.How = "inner",
        prefix: str = "past_",
    ) -> StreamFrame:
        """Each row beside the rows of `past` with the same key whose event time lies between so far back and so far
        back: `between=("30 days", "29 days")`, both ends included.

        It gives the columns of this stream, then those of `past` without the key, named with the prefix; with
        `how="left"` also the rows without a past, beside nulls. `past` may be this stream itself.
        """
        return StreamFrame(lookback.lookback(self._frame, stream(past).unwrapped, on, between, how, prefix))

    def __getattr__(self, name: str) -> Any:
        return _wrapping(getattr(self._frame, name))

    def __getitem__(self, item: Any) -> Any:
        return _wrap(self._frame[item])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._frame)})

    def __iter__(self) -> Iterator[Column]:
        raise TypeError("a StreamFrame is not iterable")

    def __repr__(self) -> str:
        return f"Stream{self._frame!r}"


class StreamGroups:
    """What `groupBy` on a wrapped stream gives; its aggregates give wrapped streams."""

    def __init__(self, groups: GroupedData | OwnWindowGroups, hint: Hint | None = None) -> None:
        self._groups = groups
        self._hint = hint

    def hint(self, *, pattern: Pattern | None = None, next_read: NextRead | None = None) -> StreamGroups:
        """The same groups with a hint, as `mp.hint` gives it to a function: for windows of Spark's own."""
        given = checked(pattern, next_read)
        if given is None:
            raise InvalidQuery("groupBy(...).hint(): say a pattern or next_read")
        return StreamGroups(self._groups, given.over(self._hint))

    def top(self, n: int, by: str | Column | Sequence[str | Column]) -> StreamFrame:
        """The first `n` rows of each group: its keys, the other columns of the stream, and `rank` from 1.

        `by` says what comes first: the largest values of a column, or what `F.asc(...)` and `F.desc(...)` ask for.
        Rows that are equal in that are ordered by their other columns as they stand, the largest first. In update
        mode a batch gives out all `n` rows of each group that had a row in it; a row replaces the one given out
        before with the same keys and rank. In append mode the groups need a window and a watermark.
        """
        return self._aggregated(lambda groups: top.top(groups, n, by))

    def latest(self, by: str | Column | Sequence[str | Column]) -> StreamFrame:
        """The row of each group with the largest `by`, as `top(1, by)` without the rank."""
        return self._aggregated(lambda groups: top.latest(groups, by))

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> StreamFrame:
        """As Spark's own; the function may have a hint."""
        return StreamFrame(self._for_functions().applyInPandas(func, hinted_schema(func, schema, self._hint)))

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> StreamFrame:
        """As Spark's own; the function may have a hint."""
        return StreamFrame(self._for_functions().applyInArrow(func, hinted_schema(func, schema, self._hint)))

    def _for_functions(self) -> GroupedData:
        return self._groups.for_functions() if isinstance(self._groups, OwnWindowGroups) else self._groups

    def _aggregated(self, method: Callable[[GroupedData], DataFrame]) -> StreamFrame:
        groups = self._groups
        frame = groups.aggregated(method) if isinstance(groups, OwnWindowGroups) else method(groups)
        return StreamFrame(frame if self._hint is None else hinted(frame, self._hint))

    def __getattr__(self, name: str) -> Any:
        groups = self._groups
        if isinstance(groups, GroupedData) and self._hint is None:
            return _wrapping(getattr(groups, name))
        if name.startswith("_") or not hasattr(GroupedData, name):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._aggregated(lambda plain: getattr(plain, name)(*args, **kwargs))

    def __repr__(self) -> str:
        return f"Stream{self._groups!r}"


def _wrapping(member: Any) -> Any:
    if not callable(member) or isinstance(member, Column):
        return _wrap(member)
    return _wrapped_call(member)


def _wrapped_call(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        plain = [_unwrap(arg) for arg in args]
        return _wrap(method(*plain, **{name: _unwrap(arg) for name, arg in kwargs.items()}))

    call.__name__ = getattr(method, "__name__", "call")
    call.__doc__ = method.__doc__
    return call


def _wrap(value: Any) -> Any:
    if isinstance(value, DataFrame):
        return StreamFrame(value)
    if isinstance(value, GroupedData):
        return StreamGroups(value)
    return value


def _unwrap(value: Any) -> Any:
    return value._frame if isinstance(value, StreamFrame) else value
