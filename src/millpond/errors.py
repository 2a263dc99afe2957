"""The kinds of error a user can meet. Each kind says what to do about it.

Finer distinctions stay inside the package that makes them; what crosses a package border is one of these.
"""

from __future__ import annotations

__all__ = [
    "Conflict",
    "CorruptState",
    "Fenced",
    "InternalError",
    "InvalidQuery",
    "MillpondError",
    "Unavailable",
]


class MillpondError(Exception):
    """Base of all errors that Millpond raises on purpose."""


class Unavailable(MillpondError):
    """Something that should answer does not. Retry."""


class Conflict(MillpondError):
    """Somebody else wrote first. Read again and redo."""


class Fenced(MillpondError):
    """A newer driver owns the query. Stop this one."""


class InvalidQuery(MillpondError):
    """The query, its options or its locations can't work as they are. Fix the query."""


class CorruptState(MillpondError):
    """Stored state is damaged, missing or not what its record says. Repair it or start from a copy."""


class InternalError(MillpondError):
    """Millpond broke one of its own rules. Report it."""
