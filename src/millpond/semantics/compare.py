"""Compares the operators of a restarted query with those that wrote the state, and says what changed.

Only what decides the meaning of kept state counts. Names of results, the time zone of the session and the
order in which input columns are read do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from millpond.semantics.operator import (
    Aggregate,
    AggregateSpec,
    Column,
    CountWindows,
    DedupSpec,
    GroupRowsSpec,
    JoinSpec,
    JoinTime,
    KeyedTime,
    ObservedRowsSpec,
    OperatorSpec,
    Panes,
    Sessions,
    TimeSpec,
    UnalignedRowsSpec,
    WindowRowsSpec,
)

__all__ = ["differences"]


def differences(old: Sequence[OperatorSpec], new: Sequence[OperatorSpec]) -> list[str]:
    """One sentence for each change that makes the kept state unusable; empty when it can be used."""
    if len(old) != len(new):
        return [f"the query had {_counted(len(old), 'stateful operator')}, has {len(new)}"]
    found: list[str] = []
    for before, after in zip(old, new, strict=True):
        place = f"operator {after.name}: "
        changes = [
            *_key_changes(before.keys, after.keys),
            *_kept_changes(before, after),
            *_time_changes(before.time, after.time),
        ]
        found += [place + change for change in changes]
    return found


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _key_changes(old: Sequence[Column], new: Sequence[Column]) -> list[str]:
    changes: list[str] = []
    for before, after in zip_longest(old, new):
        if before is None:
            changes.append(f"key '{after.name}' {after.type} is new")
        elif after is None:
            changes.append(f"key '{before.name}' {before.type} is gone")
        elif before.name != after.name:
            changes.append(f"key '{before.name}' {before.type} is now '{after.name}' {after.type}")
        elif before.type != after.type:
            changes.append(f"key '{before.name}' was {before.type}, is {after.type}")
    return changes


def _kept_changes(old: OperatorSpec, new: OperatorSpec) -> list[str]:
    match old, new:
        case AggregateSpec(), AggregateSpec():
            return _aggregate_changes(old, new)
        case DedupSpec(), DedupSpec():
            return _forgetting_changes(old, new)
        case JoinSpec(), JoinSpec():
            return _join_changes(old, new)
        case (
            (WindowRowsSpec() | UnalignedRowsSpec() | ObservedRowsSpec() | GroupRowsSpec()),
            (WindowRowsSpec() | UnalignedRowsSpec() | ObservedRowsSpec() | GroupRowsSpec()),
        ) if type(old) is type(new):
            return _row_changes(old, new)
    return [f"its state was {_KINDS[type(old)]}, is {_KINDS[type(new)]}"]


_KINDS: dict[type, str] = {
    AggregateSpec: "merged aggregates",
    WindowRowsSpec: "the rows of windows",
    DedupSpec: "the keys that were seen",
    UnalignedRowsSpec: "the rows of sessions, custom or count windows",
    ObservedRowsSpec: "the rows of custom windows without a pattern",
    GroupRowsSpec: "the rows of groups",
    JoinSpec: "the rows of a join",
}


def _join_changes(old: JoinSpec, new: JoinSpec) -> list[str]:
    changes: list[str] = []
    if old.join != new.join:
        changes.append(f"the join was {old.join}, is {new.join}")
    if old.condition != new.condition:
        changes.append(f"the join's condition was {old.condition}, is {new.condition}")
    for name, before, after in zip(("left", "right"), old.sides, new.sides, strict=True):
        columns = [
            ", ".join(f"{column.name} {column.type}" for column in side.kept) for side in (before, after)
        ]
        if columns[0] != columns[1]:
            changes.append(f"the {name} side's kept columns were {columns[0]}, are {columns[1]}")
    return changes


def _forgetting_changes(old: DedupSpec, new: DedupSpec) -> list[str]:
    """The rows may have other columns: nothing is kept of them."""
    before, after = (None if spec.forgetting is None else spec.forgetting.delay_us for spec in (old, new))
    if before == after:
        return []
    return [f"keys were forgotten {_after(before)}, are forgotten {_after(after)}"]


def _after(delay_us: int | None) -> str:
    return "by their own time or never" if delay_us is None else f"{_duration(delay_us)} after their row"


_RowsSpec = WindowRowsSpec | UnalignedRowsSpec | ObservedRowsSpec | GroupRowsSpec


def _row_changes(old: _RowsSpec, new: _RowsSpec) -> list[str]:
    """What is computed on kept rows may change; the rows themselves may not."""
    before, after = (_kept_columns(spec) for spec in (old, new))
    return [] if before == after else [f"the kept columns were {before}, are {after}"]


def _kept_columns(spec: _RowsSpec) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in spec.kept)


def _aggregate_changes(old: AggregateSpec, new: AggregateSpec) -> list[str]:
    changes: list[str] = []
    for i, (before, after) in enumerate(zip_longest(old.aggregates, new.aggregates), start=1):
        if before is None:
            changes.append(f"aggregate {i}, {after.text}, is new")
        elif after is None:
            changes.append(f"aggregate {i}, {before.text}, is gone")
        elif before.text != after.text:
            changes.append(f"aggregate {i} was {before.text}, is {after.text}")
        elif before.op != after.op:
            changes.append(f"aggregate {i}, {after.text}, was kept as {before.op}, is now kept as {after.op}")
        elif (types := _input_types(old, before)) != (now := _input_types(new, after)):
            changes.append(f"aggregate {i}, {after.text}, was over {types}, is over {now}")
    return changes


def _input_types(spec: AggregateSpec, aggregate: Aggregate) -> str:
    """As Arrow names them; a timestamp's time zone is the session's and belongs to no stored value."""
    kinds = (str(spec.input_schema.field(i).type) for i in aggregate.inputs)
    return ", ".join("timestamp[us]" if kind.startswith("timestamp[us") else kind for kind in kinds)


def _time_changes(old: TimeSpec | None, new: TimeSpec | None) -> list[str]:
    same = False
    match old, new:
        case Panes(), Panes():
            same = (old.size_us, old.slide_us, old.offset_us) == (new.size_us, new.slide_us, new.offset_us)
        case KeyedTime(), KeyedTime():
            same = (old.slice_us, old.key) == (new.slice_us, new.key)
        case Sessions(), Sessions():
            of_old, of_new = ((each.gap_us, each.by_calendar, each.timer_us) for each in (old, new))
            same = of_old == of_new
        case CountWindows(), CountWindows():
            same = old.rows == new.rows
        case JoinTime(), JoinTime():
            if old.offsets_us == new.offsets_us and old.slice_us != new.slice_us:
                return [_slice_change(old, new)]
            same = old == new
        case None, None:
            same = True
    return [] if same else [f"{_time_text(old)}, {_time_text(new, now=True)}"]


def _slice_change(old: JoinTime, new: JoinTime) -> str:
    """With the same bounds, only the watermarks' delays decide how long slices are."""
    before, after = _duration(old.slice_us), _duration(new.slice_us)
    return (
        f"the delay of a watermark has changed, so that rows of the join were kept in slices of {before}, are kept "
        f"in slices of {after}"
    )


def _time_text(time: TimeSpec | None, *, now: bool = False) -> str:
    be, keep = ("are", "never expire") if now else ("were", "never expired")
    match time:
        case Panes():
            size, slide, offset = (_duration(us) for us in (time.size_us, time.slide_us, time.offset_us))
            text = f"windows '{time.window.name}' {be} {size} long, every {slide}"
            text += f" from {offset}" if time.offset_us else ""
        case KeyedTime():
            text = f"groups {be} expiring by '{time.key.name}' {time.key.type}"
        case Sessions(timer_us=0):
            text = f"sessions '{time.window.name}' {be} never over"
        case Sessions():
            if time.gap_us is None:
                gap = "a time that each row gives"
            else:
                days = " of the calendar" if time.by_calendar else ""
                gap = f"{_duration(time.gap_us)}{days} without a row"
            text = f"sessions '{time.window.name}' {be} over after {gap}"
        case CountWindows():
            text = f"windows '{time.window.name}' {be} full with {_counted(time.rows, 'row')}"
        case JoinTime():
            sides = zip(("left", "right"), time.offsets_us, strict=True)
            kept = [f"{side} {_kept_for(offset)}" for side, offset in sides]
            text = f"rows {be} kept {' and '.join(kept)}"
        case None:
            text = f"groups {keep}"
    return text


def _kept_for(offset_us: int | None) -> str:
    if offset_us is None:
        return "for ever"
    return f"until the watermark is {_duration(abs(offset_us))} {'before' if offset_us > 0 else 'past'} their time"


def _duration(us: int) -> str:
    for unit, length in (
        ("day", 86_400_000_000),
        ("hour", 3_600_000_000),
        ("minute", 60_000_000),
        ("second", 1_000_000),
    ):
        if us and us % length == 0:
            return _counted(us // length, unit)
    return _counted(us, "microsecond")
