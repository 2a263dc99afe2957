"""Where a batch's time and CPU time go, by part, added up per thread and handed on in replies.

Clocks are read once per Arrow batch, file or step, never per row. What a thread spends in calls to the file system is
waiting for I/O, whatever part it belongs to; its CPU time stays with the part.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from millpond._kernel import thread_files_ns

__all__ = ["PARTS", "Part", "Spent", "Stopwatch"]

Part = Literal["query", "encoding", "state_write", "state_read", "removal", "compaction", "io_wait"]

PARTS: tuple[Part, ...] = (
    "query",
    "encoding",
    "state_write",
    "state_read",
    "removal",
    "compaction",
    "io_wait",
)
"""In the order in which they are shown. `query` is what is left of the batch: Spark, Python, the sink."""


class Spent(msgspec.Struct, frozen=True):
    """Milliseconds by part; a part that did not occur is absent."""

    wall_ms: dict[str, float] = {}
    cpu_ms: dict[str, float] = {}

    def __add__(self, other: Spent) -> Spent:
        return Spent(_sum((self.wall_ms, other.wall_ms)), _sum((self.cpu_ms, other.cpu_ms)))

    def within(self, wall_ms: float) -> Spent:
        """Threads that worked side by side: their times, made smaller so as to fit into what passed meanwhile."""
        together = sum(self.wall_ms.values())
        if together <= wall_ms:
            return self
        return self.scaled(wall_ms / together)

    def scaled(self, share: float) -> Spent:
        """The time alone: CPU is spent, whoever waits for it."""
        return Spent({part: ms * share for part, ms in self.wall_ms.items()}, self.cpu_ms)


def _sum(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for each in parts:
        for part, ms in each.items():
            total[part] = total.get(part, 0.0) + ms
    return total


class Stopwatch:
    """Adds up what one thread spends. Sections do not nest."""

    def __init__(self) -> None:
        self._wall_ns: dict[str, int] = {}
        self._cpu_ns: dict[str, int] = {}

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Work in memory, or through the kernel, which knows its calls to the file system."""
        files, wall, cpu = thread_files_ns(), time.perf_counter_ns(), time.thread_time_ns()
        try:
            yield
        finally:
            cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
            files = min(wall, thread_files_ns() - files)
            self._add(part, wall - files, cpu)
            self._add("io_wait", files, 0)

    @contextmanager
    def on_files(self, part: Part) -> Iterator[None]:
        """Work on files from Python: what is not CPU time is waiting."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            yield
        finally:
            cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
            busy = min(wall, cpu)
            self._add(part, busy, cpu)
            self._add("io_wait", wall - busy, 0)

    def move(self, source: Part, target: Part, wall_ns: int) -> None:
        """Of what counts as `source`, so much was `target`; the CPU time goes with it in the same share."""
        whole_ns = self._wall_ns.get(source, 0)
        wall_ns = max(0, min(wall_ns, whole_ns))
        cpu_ns = self._cpu_ns.get(source, 0) * wall_ns // max(1, whole_ns)
        self._add(source, -wall_ns, -cpu_ns)
        self._add(target, wall_ns, cpu_ns)

    def add_cpu(self, part: Part, cpu_ns: int) -> None:
        """CPU time of another thread, which nobody waited for."""
        self._add(part, 0, cpu_ns)

    def spent(self) -> Spent:
        return Spent(_milliseconds(self._wall_ns), _milliseconds(self._cpu_ns))

    def _add(self, part: Part, wall_ns: int, cpu_ns: int) -> None:
        self._wall_ns[part] = self._wall_ns.get(part, 0) + wall_ns
        self._cpu_ns[part] = self._cpu_ns.get(part, 0) + cpu_ns


def _milliseconds(ns: dict[str, int]) -> dict[str, float]:
    return {part: spent / 1e6 for part, spent in ns.items() if spent > 0}
