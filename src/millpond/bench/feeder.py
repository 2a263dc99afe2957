"""Puts prepared files into the directories that a query watches, each when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millpond.bench.workload import stream_directory

__all__ = ["Feeder"]


class Feeder:
    """One file of each stream a tick. A link appears at once and as a whole, and keeps the file's time of change, by
    which Spark orders files."""

    def __init__(
        self,
        data: Path,
        watched: Path,
        streams: Sequence[str],
        *,
        clock_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._files: Mapping[str, list[Path]] = {
            stream: sorted(stream_directory(data, stream).iterdir()) for stream in streams
        }
        self._watched = watched
        self._clock_s = clock_s
        self._sleep = sleep
        self.began_s = 0.0
        """When the traffic began, by the clock."""

    @staticmethod
    def make_directories(watched: Path, streams: Sequence[str]) -> None:
        for stream in streams:
            stream_directory(watched, stream).mkdir(parents=True)

    def feed(self, due_s: Sequence[float], goes_on: Callable[[], bool]) -> bool:
        """The first files, each when it is due, until `goes_on` says no; True: all of them."""
        self.began_s = self._clock_s()
        for number, due in enumerate(due_s):
            while (left := self.began_s + due - self._clock_s()) > 0:
                self._sleep(left)
            self.put(number)
            if not goes_on():
                return False
        return True

    def put(self, number: int) -> None:
        for stream, files in self._files.items():
            (stream_directory(self._watched, stream) / files[number].name).hardlink_to(files[number])
