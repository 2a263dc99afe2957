"""Storage as far away as a benchmark wants it: each request waits before it is served, and the waiting is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millpond.storage.store import Storage

__all__ = ["DelayedStorage", "waited_ns"]


def waited_ns(storage: Storage) -> int:
    """What requests to a storage have waited; 0 where nobody counts."""
    return storage.waited_ns if isinstance(storage, DelayedStorage) else 0


class DelayedStorage:
    """Another storage, `latency_ms` per request slower. What is local by nature, such as the work directory, is not a
    request."""

    def __init__(
        self,
        inner: Storage,
        latency_ms: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._inner = inner
        self._latency_s = latency_ms / 1_000
        self._sleep = sleep
        self._clock_ns = clock_ns
        self._counting = threading.Lock()
        self.requests = 0
        self.waited_ns = 0
        """What all threads together waited for requests."""

    @contextmanager
    def _request(self) -> Iterator[None]:
        began = self._clock_ns()
        self._sleep(self._latency_s)
        try:
            yield
        finally:
            with self._counting:
                self.requests += 1
                self.waited_ns += self._clock_ns() - began

    @property
    def location(self) -> str:
        return self._inner.location

    def put(self, name: str, data: bytes) -> None:
        with self._request():
            self._inner.put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        with self._request():
            self._inner.put_file(name, path)

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._request():
            return self._inner.get(name, offset, length)

    def list(self, prefix: str) -> list[str]:
        with self._request():
            return self._inner.list(prefix)

    def delete(self, name: str) -> None:
        with self._request():
            self._inner.delete(name)

    def path(self, name: str) -> Path | None:
        return self._inner.path(name)

    def work_directory(self) -> Path:
        return self._inner.work_directory()

    def remove_leftovers(self) -> tuple[str, ...]:
        return self._inner.remove_leftovers()
