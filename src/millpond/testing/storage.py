"""Storage for tests: in memory, failing on purpose, listing late; and checks that every storage must pass."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from millpond.errors import Conflict, CorruptState, InternalError, Unavailable
from millpond.storage.store import Missing, Storage, check_name

__all__ = [
    "CONFORMANCE_CHECKS",
    "Crashed",
    "Fault",
    "FaultyStorage",
    "LaggingStorage",
    "MemoryStorage",
    "check_conformance",
]

Operation = Literal["put", "put_file", "get", "list", "delete"]


class MemoryStorage:
    """Objects in memory. Files being written lie in a temporary directory of their own."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._work: tempfile.TemporaryDirectory[str] | None = None

    @property
    def location(self) -> str:
        return "memory"

    def put(self, name: str, data: bytes) -> None:
        with self._lock:
            if check_name(name) in self._objects:
                raise Conflict(f"{name} exists already in memory: somebody else wrote it first")
            self._objects[name] = bytes(data)

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())
        path.unlink()

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        found = self._objects.get(check_name(name))
        if found is None:
            raise Missing(f"{name} is missing in memory")
        part = found[offset:] if length is None else found[offset : offset + length]
        if length is not None and len(part) < length:
            raise CorruptState(f"{name} is cut short: {length} bytes wanted from {offset}, {len(part)} there")
        return part

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in list(self._objects) if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._objects.pop(check_name(name), None)

    def path(self, name: str) -> Path | None:
        check_name(name)
        return None

    def work_directory(self) -> Path:
        with self._lock:
            if self._work is None:
                self._work = tempfile.TemporaryDirectory(
                    prefix="millpond-memory-", ignore_cleanup_errors=True
                )
            return Path(self._work.name)

    def remove_leftovers(self) -> tuple[str, ...]:
        return ()

    def copy(self) -> MemoryStorage:
        """Another storage with the same objects, to try several futures of one past."""
        other = MemoryStorage()
        other._objects = dict(self._objects)
        return other

    def damage(self, name: str, data: bytes) -> None:
        """Replaces an object, which no storage allows, to see that it is noticed."""
        self._objects[name] = data


class Crashed(Exception):
    """The process "died" here. No error of Millpond, so that nothing handles it by mistake."""


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong, and when."""

    kind: Literal["fail", "lose_reply", "cut", "crash_before", "crash_after"]
    """`fail`: nothing is done, `Unavailable`. `lose_reply`: done, but `Unavailable`. `cut`: a put stores only
    the first half. `crash_before`, `crash_after`: `Crashed` now, and in every later operation."""
    operation: Operation | None = None
    """None: any of them."""
    prefix: str = ""
    """Only names that start with this are counted and hit."""
    after: int = 0
    """How many matching operations go well first."""
    times: int = 1


class FaultyStorage:
    """Passes everything to another storage, except where the plan says otherwise. Counts what it saw."""

    def __init__(self, inner: Storage, *plan: Fault) -> None:
        self.inner = inner
        self.operations: list[tuple[Operation, str]] = []
        self._plan = plan
        self._seen = [0] * len(plan)
        self._crashed = False

    @property
    def location(self) -> str:
        return self.inner.location

    def put(self, name: str, data: bytes) -> None:
        with self._operation("put", name) as fault:
            self.inner.put(name, data[: len(data) // 2] if fault == "cut" else data)

    def put_file(self, name: str, path: Path) -> None:
        with self._operation("put_file", name) as fault:
            if fault == "cut":
                data = path.read_bytes()
                path.write_bytes(data[: len(data) // 2])
            self.inner.put_file(name, path)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._operation("get", name):
            return self.inner.get(name, offset, length)

    def list(self, prefix: str) -> list[str]:
        with self._operation("list", prefix):
            return self.inner.list(prefix)

    def delete(self, name: str) -> None:
        with self._operation("delete", name):
            self.inner.delete(name)

    def path(self, name: str) -> Path | None:
        return self.inner.path(name)

    def work_directory(self) -> Path:
        return self.inner.work_directory()

    def remove_leftovers(self) -> tuple[str, ...]:
        if self._crashed:
            raise Crashed
        return self.inner.remove_leftovers()

    @contextlib.contextmanager
    def _operation(self, operation: Operation, name: str) -> Iterator[str | None]:
        if self._crashed:
            raise Crashed
        self.operations.append((operation, name))
        kind = self._due(operation, name)
        if kind in ("crash_before", "crash_after"):
            self._crashed = True
        if kind == "crash_before":
            raise Crashed(f"before {operation} {name}")
        if kind == "fail":
            raise Unavailable(f"{operation} {name} fails by plan")
        yield kind
        if kind == "crash_after":
            raise Crashed(f"after {operation} {name}")
        if kind == "lose_reply":
            raise Unavailable(f"the reply to {operation} {name} is lost by plan")

    def _due(self, operation: Operation, name: str) -> str | None:
        due: str | None = None
        for index, fault in enumerate(self._plan):
            if fault.operation in (None, operation) and name.startswith(fault.prefix):
                self._seen[index] += 1
                if fault.after < self._seen[index] <= fault.after + fault.times:
                    due = due or fault.kind
        return due


class LaggingStorage:
    """Lists what there was when `settle` was last called, as an eventually consistent listing would."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self._listing: tuple[str, ...] = ()

    def settle(self) -> None:
        self._listing = tuple(self._inner.list(""))

    @property
    def location(self) -> str:
        return self._inner.location

    def put(self, name: str, data: bytes) -> None:
        self._inner.put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self._inner.put_file(name, path)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._inner.get(name, offset, length)

    def list(self, prefix: str) -> list[str]:
        return [name for name in self._listing if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        self._inner.delete(name)

    def path(self, name: str) -> Path | None:
        return self._inner.path(name)

    def work_directory(self) -> Path:
        return self._inner.work_directory()

    def remove_leftovers(self) -> tuple[str, ...]:
        return self._inner.remove_leftovers()


def check_conformance(make: Callable[[], Storage]) -> None:
    """Runs every check on a new, empty storage. An AssertionError says what is wrong."""
    for check in CONFORMANCE_CHECKS:
        check(make())


def check_put_then_get(storage: Storage) -> None:
    storage.put("a/b", b"0123456789")
    assert storage.get("a/b") == b"0123456789"
    assert storage.get("a/b", 3) == b"3456789"
    assert storage.get("a/b", 3, 4) == b"3456"
    assert storage.get("a/b", 3, 0) == b""


def check_empty_object(storage: Storage) -> None:
    storage.put("a/empty", b"")
    assert storage.get("a/empty") == b""
    assert storage.list("a/") == ["a/empty"]


def check_put_is_if_absent(storage: Storage) -> None:
    storage.put("a/b", b"first")
    _raises(Conflict, "a/b", lambda: storage.put("a/b", b"second"))
    assert storage.get("a/b") == b"first"


def check_put_file_consumes(storage: Storage) -> None:
    path = _file(storage, b"content")
    storage.put_file("p/1", path)
    assert storage.get("p/1") == b"content"
    assert not path.exists()


def check_put_file_is_if_absent(storage: Storage) -> None:
    storage.put("p/1", b"first")
    path = _file(storage, b"second")
    _raises(Conflict, "p/1", lambda: storage.put_file("p/1", path))
    assert storage.get("p/1") == b"first"
    assert path.read_bytes() == b"second", "a file whose put failed must stay"


def check_missing(storage: Storage) -> None:
    storage.put("a/b", b"")
    for name in ("a/c", "x/y"):
        _raises(Missing, name, lambda name=name: storage.get(name))  # type: ignore[misc]


def check_short_object(storage: Storage) -> None:
    storage.put("a/b", b"0123")
    _raises(CorruptState, "a/b", lambda: storage.get("a/b", 2, 3))


def check_list(storage: Storage) -> None:
    assert storage.list("") == []
    assert storage.list("nowhere/") == []
    for name in ("b/2", "a/10", "a/1", "ab/1", "top"):
        storage.put(name, b"x")
    assert storage.list("a/") == ["a/1", "a/10"]
    assert storage.list("a") == ["a/1", "a/10", "ab/1"]
    assert storage.list("a/10") == ["a/10"]
    assert storage.list("") == ["a/1", "a/10", "ab/1", "b/2", "top"]


def check_delete(storage: Storage) -> None:
    storage.put("a/b", b"1")
    storage.delete("a/b")
    storage.delete("a/b")
    storage.delete("never/was")
    assert storage.list("") == []
    storage.put("a/b", b"2")
    assert storage.get("a/b") == b"2"


def check_path(storage: Storage) -> None:
    storage.put("a/b", b"content")
    path = storage.path("a/b")
    assert path is None or path.read_bytes() == b"content"


def check_work_is_not_listed(storage: Storage) -> None:
    _file(storage, b"unfinished")
    storage.put("a/b", b"")
    assert storage.list("") == ["a/b"]


def check_own_work_is_no_leftover(storage: Storage) -> None:
    path = _file(storage, b"unfinished")
    assert storage.remove_leftovers() == ()
    assert path.exists()


def check_names(storage: Storage) -> None:
    for name in ("", "/a", "a/", "a//b", "../a", "a/../b", "a/./b"):
        _raises(InternalError, "", lambda name=name: storage.put(name, b""))  # type: ignore[misc]


def check_one_of_many_writers_wins(storage: Storage) -> None:
    won: list[int] = []
    start = threading.Barrier(4)

    def write(number: int) -> None:
        start.wait()
        with contextlib.suppress(Conflict):
            storage.put("a/b", bytes([number]) * 4096)
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1, f"{len(won)} writers believe that they wrote the object"
    assert storage.get("a/b") == bytes(won) * 4096


CONFORMANCE_CHECKS: tuple[Callable[[Storage], None], ...] = (
    check_put_then_get,
    check_empty_object,
    check_put_is_if_absent,
    check_put_file_consumes,
    check_put_file_is_if_absent,
    check_missing,
    check_short_object,
    check_list,
    check_delete,
    check_path,
    check_work_is_not_listed,
    check_own_work_is_no_leftover,
    check_names,
    check_one_of_many_writers_wins,
)


def _file(storage: Storage, data: bytes) -> Path:
    path = storage.work_directory() / "conformance"
    path.write_bytes(data)
    return path


def _raises(kind: type[Exception], mentions: str, act: Callable[[], object]) -> None:
    try:
        act()
    except kind as error:
        assert mentions in str(error), f"the message does not name {mentions}: {error}"
        return
    raise AssertionError(f"{kind.__name__} was expected")
