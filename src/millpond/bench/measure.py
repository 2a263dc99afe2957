"""CPU time and memory of a process and everything it started, read from /proc.

Memory is the proportional set size, which counts a page that several processes share once. CPU time of a
process that has ended is what was last seen of it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessTree"]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    pid: int
    started: int
    """Ticks since boot: with the pid, it names a process for good."""


class _Stat(NamedTuple):
    process: _Process
    parent: int
    session: int
    cpu_ticks: int


class ProcessTree:
    """The processes below `root` and those of the session that it leads; a child stays when its parent ends."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._cpu_ticks: dict[_Process, int] = {}
        self.peak_memory_bytes = 0
        self.sampling_s = 0.0
        """What the last sample took, for the caller to space them."""

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_ticks.values()) / TICKS_PER_S

    def sample(self) -> None:
        started = time.perf_counter()
        living = self._living()
        memory = sum(_pss_bytes(process.pid) for process in living)
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory)
        self.sampling_s = time.perf_counter() - started

    def sample_cpu_s(self) -> float:
        """CPU time so far; without a look at memory, which is what takes long."""
        self._living()
        return self.cpu_s

    def kill(self) -> None:
        """Ends what is left, processes that appear meanwhile included."""
        while living := self._living():
            for process in living:
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            # The root is a child of this process and stays as a zombie until it is waited for.
            if all(process.pid == self._root for process in living):
                return
            time.sleep(0.01)

    def _living(self) -> list[_Process]:
        stats = {stat.process.pid: stat for stat in _all_stats()}
        known = {process.pid: process for process in self._cpu_ticks}
        members: dict[int, bool] = {}

        def is_member(pid: int) -> bool:
            if pid not in members:
                stat = stats.get(pid)
                members[pid] = stat is not None and (
                    self._root in (pid, stat.session)
                    or known.get(pid) == stat.process
                    or (stat.parent > 1 and is_member(stat.parent))
                )
            return members[pid]

        living = [stat for pid, stat in stats.items() if is_member(pid)]
        self._cpu_ticks.update({stat.process: stat.cpu_ticks for stat in living})
        return [stat.process for stat in living]


def _all_stats() -> list[_Stat]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The program's name stands in parentheses and may hold anything.
        fields = text[text.rindex(")") + 2 :].split()
        if fields[0] in "ZX":
            continue
        found.append(
            _Stat(
                process=_Process(pid=int(entry.name), started=int(fields[19])),
                parent=int(fields[1]),
                session=int(fields[3]),
                cpu_ticks=int(fields[11]) + int(fields[12]),
            )
        )
    return found


def _pss_bytes(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open() as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return 0
