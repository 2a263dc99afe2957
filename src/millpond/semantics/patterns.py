"""How an operator will touch its state, and why: the choice that decides on its store."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from millpond.semantics.operator import (
    AggregateSpec,
    CountWindows,
    DedupSpec,
    GroupRowsSpec,
    JoinSpec,
    KeyedTime,
    ObservedRowsSpec,
    OperatorSpec,
    Sessions,
    UnalignedRowsSpec,
    WindowRowsSpec,
)

__all__ = ["AccessPattern", "Choice", "Seen", "choice"]


class AccessPattern(Enum):
    RMW = "read, modify, write"
    AAR = "append, aligned read"
    AUR = "append, unaligned read"
    RANGE = "range of time per key"
    UNKNOWN = "not known yet"


class Choice(NamedTuple):
    pattern: AccessPattern
    why: str
    """A sentence."""


class Seen(NamedTuple):
    """What was seen of an operator whose pattern the query does not show, in how many of its shards."""

    observing_shards: int = 0
    aligned_shards: int = 0
    unaligned_shards: int = 0
    windows: int = 0
    ends: int = 0


def choice(spec: OperatorSpec, seen: Seen | None = None) -> Choice:
    """`seen`: what its shards tell, where that decides."""
    found = _choice(spec, seen)
    return found if spec.hint is None else Choice(found.pattern, f"by the hint {spec.hint}, {found.why}")


def _choice(spec: OperatorSpec, seen: Seen | None) -> Choice:
    match spec:
        case AggregateSpec():
            match spec.time:
                case Sessions():
                    kept = "a key's sessions are"
                case CountWindows():
                    kept = "a key's open window is"
                case _:
                    kept = "a group is"
            return Choice(
                AccessPattern.RMW, f"{_merged(spec)} can be merged, so {kept} one value that rows change"
            )
        case DedupSpec():
            return Choice(AccessPattern.RMW, "of each key only that it was seen is kept")
        case WindowRowsSpec() | GroupRowsSpec() | UnalignedRowsSpec() | ObservedRowsSpec():
            return _rows_choice(spec, seen or Seen())
        case JoinSpec():
            bounds = "within bounds of time" if spec.defers else "of any time"
            return Choice(
                AccessPattern.RANGE,
                f"rows are joined to those of the other stream with the same key, {bounds}",
            )


def _rows_choice(
    spec: WindowRowsSpec | GroupRowsSpec | UnalignedRowsSpec | ObservedRowsSpec, seen: Seen
) -> Choice:
    match spec:
        case WindowRowsSpec():
            return Choice(
                AccessPattern.AAR,
                f"{spec.purpose} needs all rows of a window, and windows end for all keys at once",
            )
        case GroupRowsSpec():
            return Choice(
                AccessPattern.AUR,
                f"{spec.purpose} can't be merged, so all rows of a group are kept; a batch in update mode reads "
                "those of the groups that it touched again, in complete mode all of them",
            )
        case UnalignedRowsSpec():
            return Choice(AccessPattern.AUR, f"{spec.purpose} needs all rows of a {_unaligned(spec)}")
        case ObservedRowsSpec():
            return _observed(spec, seen)


def _observed(spec: ObservedRowsSpec, seen: Seen) -> Choice:
    """By what was seen in most of the shards that have chosen."""
    needs = f"{spec.purpose} needs all rows of a window"
    if not seen.aligned_shards and not seen.unaligned_shards:
        return Choice(
            AccessPattern.UNKNOWN,
            f"{needs}, and a window function says which; whether many end together will be seen when there are more",
        )
    figures = f"the {seen.windows:,} windows that were seen end at {seen.ends:,} times"
    if seen.aligned_shards > seen.unaligned_shards:
        chosen, shards = AccessPattern.AAR, seen.aligned_shards
        found = f"{needs}, and {figures}, so that many are read at once"
    else:
        chosen, shards = AccessPattern.AUR, seen.unaligned_shards
        expected = "next_read says when" if spec.next_read is not None else "its end says when"
        found = f"{needs}, and {figures}: each is read by itself, and {expected}"
    every = seen.observing_shards + seen.aligned_shards + seen.unaligned_shards
    return Choice(chosen, found if shards == every else f"{found} (in {shards} of {every} shards)")


def _unaligned(spec: UnalignedRowsSpec) -> str:
    match spec.time:
        case Sessions():
            return "session, and each key's ends at a time of its own"
        case KeyedTime():
            return "window, and a window function gives each key windows of its own"
        case CountWindows():
            known = "only next_read tells when" if spec.next_read is not None else "nothing tells when"
            return f"window, and a key's is full after so many rows: {known} that will be"


def _merged(spec: AggregateSpec) -> str:
    texts = list(dict.fromkeys(aggregate.text for aggregate in spec.aggregates))
    if not texts:
        return "groups without values"
    return ", ".join(texts) if len(texts) <= 4 else f"{', '.join(texts[:3])} and {len(texts) - 3} more"
