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
    OperatorSpec,
    Sessions,
    UnalignedRowsSpec,
    WindowRowsSpec,
)

__all__ = ["AccessPattern", "Choice", "choice"]


class AccessPattern(Enum):
    RMW = "read, modify, write"
    AAR = "append, aligned read"
    AUR = "append, unaligned read"
    RANGE = "range of time per key"


class Choice(NamedTuple):
    pattern: AccessPattern
    why: str
    """A sentence."""


def choice(spec: OperatorSpec) -> Choice:
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
        case JoinSpec():
            bounds = "within bounds of time" if spec.defers else "of any time"
            return Choice(
                AccessPattern.RANGE,
                f"rows are joined to those of the other stream with the same key, {bounds}",
            )


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
