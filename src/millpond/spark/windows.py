"""Which time a streaming aggregate runs by: aligned windows, a key that holds its own expiry, or none.

Spark's analyser has already written `window(...)` out as arithmetic; this reads size, slide and offset back
from that arithmetic, strictly. What does not look exactly as the analyser writes it is no window for us, and
its column is then an ordinary key that Spark computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from py4j.java_gateway import get_field

from millpond.errors import InvalidQuery
from millpond.spark.jvm import Catalyst, JavaObject, items, kind

__all__ = [
    "COUNT_WINDOW",
    "CUSTOM_WINDOW",
    "WATERMARK_DELAY",
    "CountForm",
    "SessionForm",
    "WindowForm",
    "count_form",
    "expiry_of",
    "has_unfollowed_window",
    "is_custom_window",
    "is_session_window",
    "is_time_window",
    "session_form",
    "watermark_delay_us",
    "watermarked_key",
    "window_form",
]

WATERMARK_DELAY = "spark.watermarkDelayMs"
_TIME_WINDOW = "spark.timeWindow"
_SESSION_WINDOW = "spark.sessionWindow"
COUNT_WINDOW = "millpond.countWindow"
"""Marks the column of a count window with its number of rows."""
CUSTOM_WINDOW = "millpond.customWindow"
"""Marks the column of a custom window with how its function is called."""


@dataclass(frozen=True)
class WindowForm:
    """Aligned windows as Spark wrote them out under an aggregate or a side of a join."""

    window: JavaObject
    """The window column that the rows above have."""
    time: JavaObject
    """The row's time as int64 microseconds, over the columns of `below`."""
    below: JavaObject
    """The plan that gives the rows, without the window arithmetic."""
    size_us: int
    slide_us: int
    offset_us: int


@dataclass(frozen=True)
class SessionForm:
    """Sessions as Spark wrote them out under a node that groups by them."""

    window: JavaObject
    """The session window column among the keys: a struct of the row's own start and end."""
    start: JavaObject
    """The row's own session in int64 microseconds, over the columns of `below`."""
    end: JavaObject
    gap_us: int | None
    """None: each row has its own."""
    by_calendar: bool
    """Whether the gap is of days or months, so that it is only about as long."""
    below: JavaObject
    """The plan that gives the rows; rows without a time or a gap are filtered out in it."""


@dataclass(frozen=True)
class CountForm:
    """Windows that end with so many rows of a key."""

    window: JavaObject
    """The window column among the keys."""
    rows: int
    below: JavaObject
    """The plan that gives the rows."""


def count_form(keys: list[JavaObject], below: JavaObject) -> CountForm | None:
    """The count window that the keys, over the plan `below`, group by."""
    window = next((key for key in keys if _has_metadata(key, COUNT_WINDOW)), None)
    if window is None:
        return None
    if watermarked_key(keys) is not None:
        raise InvalidQuery(
            f"the query groups by {window.name()} and by a time that a watermark follows, so that it is open which "
            "of them ends a group; group by one of them"
        )
    return CountForm(window, int(window.metadata().getLong(COUNT_WINDOW)), below)


def watermarked_key(keys: list[JavaObject]) -> JavaObject | None:
    """The key whose time a watermark follows; of several the first, as in Spark."""
    return next(
        (key for key in keys if _has_metadata(key, WATERMARK_DELAY) and not _has_metadata(key, COUNT_WINDOW)),
        None,
    )


def watermark_delay_us(key: JavaObject) -> int:
    """How far the watermark stays behind a column that it follows."""
    return int(key.metadata().getLong(WATERMARK_DELAY)) * 1000


def is_time_window(key: JavaObject) -> bool:
    return _has_metadata(key, _TIME_WINDOW)


def is_custom_window(key: JavaObject) -> bool:
    return _has_metadata(key, CUSTOM_WINDOW)


def has_unfollowed_window(plan: JavaObject) -> bool:
    """Whether the plan groups by a custom window that no watermark follows."""
    if kind(plan) == "Aggregate":
        for key in items(plan.groupingExpressions()):
            if is_custom_window(key) and watermarked_key([key]) is None:
                return True
    return any(map(has_unfollowed_window, items(plan.children())))


def is_session_window(key: JavaObject) -> bool:
    return _has_metadata(key, _SESSION_WINDOW)


def session_form(catalyst: Catalyst, keys: list[JavaObject], below: JavaObject) -> SessionForm | None:
    """The sessions that the keys, over the plan `below`, group by. As in Spark, whatever column carries the mark of
    a session window is one, also where it was made further below."""
    window = next((key for key in keys if is_session_window(key)), None)
    if window is None or kind(window) != "AttributeReference":
        return None
    start, end = (catalyst.micros(catalyst.struct_field(window, i)) for i in (0, 1))
    gap_us, by_calendar = None, False
    interval = _session_gap(window, below)
    if interval is not None:
        months, days, micros = interval
        gap_us, by_calendar = (months * 30 + days) * 86_400_000_000 + micros, bool(months or days)
        if not by_calendar:
            # Spark adds intervals by way of the calendar, which takes longer than all the rest.
            end = catalyst.plus(start, gap_us)
    return SessionForm(window, start, end, gap_us, by_calendar, below)


def _session_gap(window: JavaObject, below: JavaObject) -> tuple[int, int, int] | None:
    """(months, days, microseconds) of the gap where it is the same for all rows: the analyser writes the end as
    `time + gap`, and functions of groups and the query itself may give the window other names above that."""
    while kind(below) in ("Filter", "Project"):
        if kind(below) == "Project":
            made = next(c for c in items(below.projectList()) if c.exprId().equals(window.exprId()))
            window = made.child() if kind(made) == "Alias" else made
            if kind(window) != "AttributeReference":
                return _constant_interval(window)
        below = below.child()
    return None


def _constant_interval(struct: JavaObject) -> tuple[int, int, int] | None:
    if kind(struct) != "CreateNamedStruct" or struct.children().size() != 4:
        return None
    end = items(struct.children())[3]
    while kind(end) in ("KnownNullable", "PreciseTimestampConversion", "Cast"):
        end = end.child()
    if kind(end) not in ("TimeAdd", "TimestampAddInterval"):
        return None
    interval = items(end.children())[1]
    value = interval.eval(None) if interval.foldable() else None
    if value is None:
        return None
    months, days, micros = (int(get_field(value, name)) for name in ("months", "days", "microseconds"))
    return months, days, micros


def _has_metadata(key: JavaObject, entry: str) -> bool:
    return kind(key) in ("AttributeReference", "Alias", "GetStructField") and bool(
        key.metadata().contains(entry)
    )


def expiry_of(catalyst: Catalyst, key: JavaObject) -> tuple[JavaObject, int]:
    """When a group with this key expires, in int64 microseconds, and how long an interval shares a table.

    Windows end together, so each end has a table of its own; plain timestamps and custom windows are gathered by the
    second.
    """
    if key.dataType().typeName() == "struct":
        return catalyst.micros(catalyst.struct_field(key, 1)), 1_000_000 if is_custom_window(key) else 1
    return catalyst.micros(key), 1_000_000


def window_form(plan: JavaObject, window: JavaObject) -> WindowForm | None:
    """The windows that the plan's top makes, if `window`, one of its columns, is one of the analyser's. Rows can be
    kept without it if nothing looks at the column but the grouping above."""
    if not is_time_window(window):
        return None
    found = _tumbling(plan, window) if kind(plan) == "Project" else _sliding(plan, window)
    return None if found is None else _read_struct(found, window)


@dataclass(frozen=True)
class _Written:
    """The window's start and end as the analyser wrote them, for the last window that a row lies in."""

    struct: JavaObject
    copies: int
    """How many windows a row may lie in."""
    below: JavaObject


def _tumbling(project: JavaObject, window: JavaObject) -> _Written | None:
    struct = None
    for column in items(project.projectList()):
        if column.exprId().equals(window.exprId()):
            struct = column.child() if kind(column) == "Alias" else None
        elif kind(column) != "AttributeReference":
            return None
    return None if struct is None else _Written(struct, 1, project.child())


def _sliding(node: JavaObject, window: JavaObject) -> _Written | None:
    """`Filter` over `Expand`: one copy of the row for each window it may lie in. Its columns besides the
    window are those of the child."""
    if kind(node) != "Filter" or kind(node.child()) != "Expand":
        return None
    expand = node.child()
    outputs = items(expand.output())
    first = items(expand.projections().apply(0))
    struct = None
    for output, value in zip(outputs, first, strict=True):
        if output.exprId().equals(window.exprId()):
            struct = value
        elif kind(value) != "AttributeReference" or not value.exprId().equals(output.exprId()):
            return None
    return None if struct is None else _Written(struct, expand.projections().size(), expand.child())


def _read_struct(written: _Written, window: JavaObject) -> WindowForm | None:
    if kind(written.struct) != "CreateNamedStruct":
        return None
    parts = items(written.struct.children())
    if len(parts) != 4:
        return None
    start, end = _micros_under(parts[1]), _micros_under(parts[3])
    if start is None or end is None or kind(end) != "Add" or not end.left().semanticEquals(start):
        return None
    size = _long(end.right())
    arithmetic = _read_start(start)
    if size is None or arithmetic is None:
        return None
    time, slide, offset = arithmetic
    if slide <= 0 or written.copies != -(-size // slide):
        return None
    return WindowForm(window, time, written.below, size, slide, offset % slide)


def _read_start(start: JavaObject) -> tuple[JavaObject, int, int] | None:
    """(time, slide, offset) from `(time - CASE WHEN r < 0 THEN r + slide ELSE r END) - 0` where r is
    `(time - offset) % slide`."""
    if kind(start) != "Subtract" or _long(start.right()) != 0 or kind(start.left()) != "Subtract":
        return None
    time, into_window = start.left().left(), start.left().right()
    if kind(time) != "PreciseTimestampConversion" or kind(into_window) != "CaseWhen":
        return None
    branches = items(into_window.children())
    if len(branches) != 3 or kind(branches[0]) != "LessThan" or kind(branches[2]) != "Remainder":
        return None
    remainder = branches[2]
    if kind(remainder.left()) != "Subtract" or not remainder.left().left().semanticEquals(time):
        return None
    slide, offset = _long(remainder.right()), _long(remainder.left().right())
    return None if slide is None or offset is None else (time, slide, offset)


def _micros_under(field: JavaObject) -> JavaObject | None:
    while kind(field) == "KnownNullable":
        field = field.child()
    return field.child() if kind(field) == "PreciseTimestampConversion" else None


def _long(literal: JavaObject) -> int | None:
    return int(literal.value()) if kind(literal) == "Literal" and literal.value() is not None else None
