"""Hints of the user: how an operator will touch its state, and when it will read it next.

A hint chooses between stores that would all give the right result, and what is read ahead. A wrong one costs speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from millpond.errors import InvalidQuery

__all__ = ["MARK", "Hint", "NextRead", "Pattern", "checked", "hint", "hint_on", "known", "marked"]

Pattern = Literal["point_update", "append_aligned", "append_unaligned", "range"]

NextRead = Callable[[Any, Any, Any], Any]
"""From keys (an Arrow struct array), windows (one of their starts and ends; nulls for count windows) and the times of
the rows, to the times at which the windows of these rows will be read; null: not known."""

_ATTRIBUTE = "millpond_hint"


@dataclass(frozen=True)
class Hint:
    pattern: Pattern | None = None
    next_read: NextRead | None = None

    def over(self, other: Hint | None) -> Hint:
        """This hint, and what only the other one says."""
        if other is None:
            return self
        return Hint(self.pattern or other.pattern, self.next_read or other.next_read)


def checked(pattern: Any, next_read: Any) -> Hint | None:
    """A hint from arguments; None where they say nothing."""
    if pattern is not None and pattern not in get_args(Pattern):
        raise InvalidQuery(f"hint(pattern={pattern!r}): a pattern is one of {', '.join(get_args(Pattern))}")
    if next_read is not None and not callable(next_read):
        raise InvalidQuery(
            f"hint(next_read={next_read!r}): it takes a function from keys, windows and times to times"
        )
    return None if pattern is None and next_read is None else Hint(pattern, next_read)


_F = TypeVar("_F", bound=Callable[..., Any])


def hint(*, pattern: Pattern | None = None, next_read: NextRead | None = None) -> Callable[[_F], _F]:
    """Decorates window functions, functions of groups, and UDFs that aggregate."""
    given = checked(pattern, next_read)
    if given is None:
        raise InvalidQuery("hint(): say a pattern or next_read")

    def decorate(function: _F) -> _F:
        if isinstance(function, type):
            raise InvalidQuery(
                f"hint on the class {function.__name__}: it decorates window functions, functions of groups and UDFs "
                "that aggregate; Millpond does not take processors yet"
            )
        if hasattr(function, "evalType"):
            return cast("_F", _HintedUdf(function, given))
        setattr(function, _ATTRIBUTE, given.over(hint_on(function)))
        return function

    return decorate


def hint_on(function: Any) -> Hint | None:
    """What a function was decorated with."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Hint) else None


MARK = "millpond.hint"
"""Marks a column of Spark's plan with the number of a hint."""

_known: list[Hint] = []


def _number_of(given: Hint) -> int:
    """By which a column's mark names the hint: a plan is cut in the process that made it."""
    if given not in _known:
        _known.append(given)
    return _known.index(given)


def known(number: int) -> Hint:
    return _known[number]


def marked(given: Hint | None) -> dict[str, int]:
    """What the metadata of a column says of a hint."""
    return {} if given is None else {MARK: _number_of(given)}


class _HintedUdf:
    """A UDF whose columns carry a hint."""

    def __init__(self, udf: Any, given: Hint) -> None:
        self._udf = udf
        self._hint = given

    def __call__(self, *columns: Any, **named: Any) -> Any:
        column = self._udf(*columns, **named)
        # An alias carries the mark; it is called as Spark would call the column.
        inputs = (
            given if isinstance(given, str) else given._jc.toString() for given in (*columns, *named.values())
        )
        return column.alias(f"{self._udf.__name__}({', '.join(inputs)})", metadata=marked(self._hint))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._udf, name)
