"""Storage in a local directory.

A put writes a temporary file, flushes it and links it under its name: linking fails if the name is taken, and
either the whole object appears or nothing. Temporary files live in `work/<token>/`, guarded by a lock file
that the writer keeps locked while it lives, so that what a killed process left behind is told from what a
living one is writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import threading
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path

from millpond.errors import Conflict, CorruptState, InvalidQuery, MillpondError, Unavailable
from millpond.storage.store import Missing, check_name

__all__ = ["LocalStorage"]

_WORK = "work"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_WRONG_PLACE = {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStorage:
    """Objects as files below `root`. The directory is made with the first write."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)
        self._work: _WorkDirectory | None = None
        self._work_lock = threading.Lock()
        self._numbers = itertools.count()

    @property
    def location(self) -> str:
        return str(self._root)

    def put(self, name: str, data: bytes) -> None:
        target = self._file(name)
        with self._explained("write", name), self._temporary() as temporary:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._link(temporary, target, name)

    def put_file(self, name: str, path: Path) -> None:
        target = self._file(name)
        with self._explained("write", name):
            _fsync(path)
            try:
                self._link(path, target, name)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with self._temporary() as temporary:
                    shutil.copyfile(path, temporary)
                    _fsync(temporary)
                    self._link(temporary, target, name)
            path.unlink()

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._explained("read", name), self._file(name).open("rb") as file:
            file.seek(offset)
            found = file.read() if length is None else file.read(length)
        if length is not None and len(found) < length:
            raise CorruptState(
                f"{self._root / name} is cut short: {length} bytes wanted from offset {offset}, {len(found)} "
                "there; restore it from a copy"
            )
        return found

    def list(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        names: list[str] = []
        pending = [folder]
        while pending:
            folder = pending.pop()
            with self._explained("list", folder or "."):
                try:
                    entries = list(os.scandir(self._root / folder))
                except FileNotFoundError:
                    continue
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if name != _WORK and (name.startswith(prefix) or prefix.startswith(f"{name}/")):
                        pending.append(name)
                elif name.startswith(prefix):
                    names.append(name)
        return sorted(names)

    def delete(self, name: str) -> None:
        # Not flushed: a deletion that a power failure takes back leaves an object that nothing reaches, and
        # the next collection deletes it again.
        with self._explained("delete", name):
            self._file(name).unlink(missing_ok=True)

    def path(self, name: str) -> Path | None:
        return self._file(name)

    def work_directory(self) -> Path:
        with self._work_lock:
            # After a fork the parent's directory stays the parent's.
            if self._work is None or self._work.pid != os.getpid():
                with self._explained("write", _WORK):
                    _make_directory(self._root / _WORK)
                    self._work = _WorkDirectory(self._root / _WORK)
            return self._work.path

    def remove_leftovers(self) -> tuple[str, ...]:
        work = self._root / _WORK
        removed: list[str] = []
        with self._explained("delete", _WORK):
            for lock in sorted(work.glob("*.lock")):
                directory = lock.with_suffix("")
                held = _try_lock(lock)
                if held is None:
                    continue
                try:
                    found = sorted(directory.rglob("*")) if directory.is_dir() else []
                    removed += [file.relative_to(self._root).as_posix() for file in found if file.is_file()]
                    shutil.rmtree(directory, ignore_errors=True)
                    lock.unlink(missing_ok=True)
                finally:
                    os.close(held)
        return tuple(removed)

    def _file(self, name: str) -> Path:
        return self._root / check_name(name)

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        path = self.work_directory() / f"put-{next(self._numbers)}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _link(self, source: Path, target: Path, name: str) -> None:
        _make_directory(target.parent)
        try:
            os.link(source, target)
        except FileExistsError:
            # Whoever wrote it may have died before its own flush; what a Conflict tells of must be durable.
            _fsync(target.parent)
            raise Conflict(f"{name} exists already in {self._root}: somebody else wrote it first") from None
        except OSError as error:
            if error.errno in _NO_LINKS and os.access(target.parent, os.W_OK):
                raise InvalidQuery(
                    f"the file system of {self._root} can't make hard links ({error.strerror}), which safe "
                    'commits need: set .option("stateLocation", DIR) to a directory on another file system'
                ) from error
            raise
        _fsync(target.parent)

    @contextlib.contextmanager
    def _explained(self, verb: str, name: str) -> Iterator[None]:
        """Turns errors of the system into the kinds that say what to do."""
        try:
            yield
        except MillpondError:
            raise
        except OSError as error:
            if verb == "read" and isinstance(error, FileNotFoundError):
                raise Missing(
                    f"{name} is missing in {self._root}: restore it from a copy, or start with a new checkpoint "
                    "and an empty state directory"
                ) from None
            what = f"can't {verb} {name} in the state directory {self._root}: {error.strerror or error}"
            if error.errno in _FULL:
                raise Unavailable(
                    f"{what}. Free some space there, or move the state to a larger disk; the query goes "
                    "on from "
                    "its last committed batch"
                ) from error
            if error.errno in _FORBIDDEN:
                raise InvalidQuery(
                    f"{what}. Give the user of the driver read and write permission there, or set "
                    '.option("stateLocation", DIR) to a directory that has it'
                ) from error
            if error.errno in _WRONG_PLACE:
                raise InvalidQuery(f'{what}. Set .option("stateLocation", DIR) to a directory') from error
            raise Unavailable(f"{what}. Check the disk and try again") from error


class _WorkDirectory:
    """A directory of this process, locked for as long as the process and this object live."""

    def __init__(self, parent: Path) -> None:
        self.pid = os.getpid()
        while True:
            lock = parent / f"{self.pid}-{uuid.uuid4().hex[:12]}.lock"
            # Another process may take the new file for a leftover before it is locked, and remove it.
            held = _try_lock(lock, create=True)
            if held is None:
                continue
            if _is_open_at(held, lock):
                break
            os.close(held)
        self.path = lock.with_suffix("")
        self.path.mkdir()
        weakref.finalize(self, _release, self.pid, held, self.path, lock)


def _release(pid: int, held: int, directory: Path, lock: Path) -> None:
    # In a forked child the lock and the directory still belong to the parent. Files in the directory stay for
    # `remove_leftovers`: somebody may still want to read them.
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            directory.rmdir()
            lock.unlink(missing_ok=True)
        os.close(held)


def _try_lock(lock: Path, create: bool = False) -> int | None:
    try:
        held = os.open(lock, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def _is_open_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Makes a directory and flushes every entry on the way that is new."""
    if path.is_dir():
        return
    if path.parent != path:
        _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _fsync(path.parent)
