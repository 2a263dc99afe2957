"""How requests, replies and errors lie in Flight messages, and rows in files."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from pyarrow import flight

from millpond import errors
from millpond._kernel import DamagedFile, KernelError, NewerFormat, Overflow

__all__ = ["SHARD", "STAGED", "TOKEN_HEADER", "as_flight_error", "decode", "encode", "from_flight_error"]

TOKEN_HEADER = "x-millpond-token"
STAGED = "staged-"
"""What the names of files begin with in which tasks leave rows."""
SHARD = b"shard"
"""In the metadata of each batch in them."""

_KINDS: dict[str, type[Exception]] = {kind: getattr(errors, kind) for kind in errors.__all__} | {
    "Overflow": Overflow
}

_DAMAGED = "restore it from a copy, or start with a new checkpoint and an empty state directory"

T = TypeVar("T")


def encode(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise errors.InternalError(f"unreadable message: {error}") from error


def as_flight_error(error: BaseException) -> Exception:
    """What a service raises towards its client, the kind travelling beside the message."""
    match error:
        case flight.FlightError():
            already: Exception = error
            return already
        case DamagedFile():
            kind, advice = "CorruptState", _DAMAGED
        case NewerFormat():
            kind, advice = "CorruptState", "upgrade Millpond"
        case KernelError() | MemoryError() | OSError():
            # The system refused a read or a write: a full disk, an error of the device.
            kind, advice = "Unavailable", ""
        case _:
            kind, advice = _kind_of(error), ""
    text = str(error) if kind != "InternalError" else f"{type(error).__name__}: {error}"
    text += f": {advice}" if advice else ""
    told: Exception = flight.FlightServerError(text, extra_info=kind.encode())
    return told


def _kind_of(error: BaseException) -> str:
    """The nearest kind that the other side knows; finer ones stay inside their package."""
    return next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS), "InternalError")


def from_flight_error(error: Exception) -> Exception:
    """The error that the service raised, or `Unavailable` when it did not answer."""
    kind = bytes(getattr(error, "extra_info", b"") or b"").decode(errors="replace")
    if kind in _KINDS:
        # Flight appends its own remarks to the message it carries.
        return _KINDS[kind](str(error).split(". Detail:")[0].split(" Detail:")[0])
    if isinstance(error, flight.FlightUnauthenticatedError):
        return errors.Fenced("the state service refuses this token: another driver started it")
    return errors.Unavailable(f"the state service does not answer: {error}")
