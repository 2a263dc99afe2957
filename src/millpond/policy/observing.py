"""Which store fits rows whose windows a function of the user made, by what was seen of them."""

from __future__ import annotations

import msgspec

from millpond.semantics.patterns import AccessPattern

__all__ = ["Observation", "fitting"]

_SHARED = 4
"""So many windows that end together are worth a log of their own: it is read at once and dropped whole, and none of
them needs an entry in an index."""

_LOG_BYTES = 64 << 10
"""So are rows that fill a few blocks, be they of one window."""


class Observation(msgspec.Struct, frozen=True):
    """What is open in a shard."""

    rows: int
    bytes: int
    windows: int
    """Of each key its own."""
    ends: int
    """Different times at which they end."""


def fitting(seen: Observation) -> AccessPattern:
    is_aligned = seen.windows >= _SHARED * seen.ends or seen.bytes >= _LOG_BYTES * seen.ends
    return AccessPattern.AAR if is_aligned else AccessPattern.AUR
