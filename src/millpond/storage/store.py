"""The small interface to storage that everything durable goes through.

An object is written once under its name and never changed: there is no overwrite and no rename, so that the
same rules hold on a local disk and on an object store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from millpond.errors import CorruptState, InternalError, InvalidQuery

__all__ = ["Missing", "Storage", "check_name", "open_storage"]


class Missing(CorruptState):
    """An object that should be there is not."""


class Storage(Protocol):
    """Objects under names such as `packs/7`. Safe to use from several threads and processes at once."""

    @property
    def location(self) -> str:
        """Where this is, as a user would write it; for messages."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Writes a whole object or nothing; `Conflict` if the name is taken. Durable on return."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """`put` of a local file, which is gone afterwards. It stays if the put fails."""
        ...

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object; `Missing` if there is none, `CorruptState` if it ends too early."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Names that start with `prefix`, in order. May lag behind puts and deletes: decide nothing by it."""
        ...

    def delete(self, name: str) -> None:
        """Removes an object; nothing happens if there is none."""
        ...

    def path(self, name: str) -> Path | None:
        """Where a local reader finds the object, if it is a local file."""
        ...

    def work_directory(self) -> Path:
        """A private directory for files being written, from where `put_file` costs no copy.

        It is private as long as this object lives; afterwards its files count as leftovers.
        """
        ...

    def remove_leftovers(self) -> tuple[str, ...]:
        """Removes unfinished files whose writer is dead, and says which."""
        ...


def check_name(name: str) -> str:
    """Names are made by this package, so a bad one is a bug, never a user's mistake."""
    if not name or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise InternalError(f"{name!r} is no object name")
    return name


def open_storage(location: str, latency_ms: float = 0.0) -> Storage:
    """The storage at a local path or `file:` URI. `latency_ms`: for benchmarks, added to each request."""
    from millpond.storage.delayed import DelayedStorage
    from millpond.storage.local import LocalStorage

    storage = LocalStorage(local_path(location))
    return DelayedStorage(storage, latency_ms) if latency_ms > 0 else storage


def local_path(location: str) -> Path:
    if not location.strip():
        raise InvalidQuery(
            'the state location is empty: set .option("stateLocation", DIR) to a local directory'
        )
    scheme, colon, _ = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location).expanduser().absolute()
    parts = urlsplit(location)
    if scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise InvalidQuery(
            f"the state location {location!r} is not a local directory, and only local directories are "
            "supported "
            'yet: set .option("stateLocation", DIR) to a local path or a file: URI'
        )
    return Path(unquote(parts.path)).absolute()
