"""Work beside the batches: runs are merged, and what batches will ask for next is read ahead.

Policy chooses the merges, this obeys, and the owner adopts each that is done at its next commit. Reading ahead has a
thread of its own, because what it reads is wanted by the next batch, and a merge may take longer than that.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millpond._kernel import PackWriter
from millpond.state.shard import Merge, OperatorShard
from millpond.storage.manifest import RunRef

__all__ = ["Compacted", "Compaction", "Compactor"]

_NICENESS = 10
"""About a tenth of a batch's claim to a core: merges take the time that batches leave, and never none at all."""


@dataclass(frozen=True)
class Compaction:
    """A decided merge of neighbouring runs of one slice."""

    store: OperatorShard
    slice: int
    inputs: tuple[RunRef, ...]
    merge: Merge
    aborts: int
    """How many batches had been aborted before it: it may see what a batch does that is aborted later."""


@dataclass(frozen=True)
class Compacted:
    """A merge that is done: its run lies in a published pack that no manifest names yet."""

    spec: Compaction
    output: RunRef
    path: str


class _Line:
    """Jobs that are done one after another, on a thread that ends when there is none left."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._cpu_ns = 0

    def put(self, jobs: Iterable[Callable[[], None]], *, in_place_of_waiting: bool = False) -> None:
        with self._lock:
            if in_place_of_waiting:
                self._waiting.clear()
            self._waiting.extend(jobs)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def join(self, *, drop_waiting: bool = False) -> None:
        with self._lock:
            if drop_waiting:
                self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def take_cpu_ns(self) -> int:
        """CPU time of the jobs that ended since the last call."""
        with self._lock:
            spent, self._cpu_ns = self._cpu_ns, 0
        return spent

    def check(self) -> None:
        """Raises what stopped a job; those behind it were dropped."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        spent_ns = 0
        while True:
            with self._lock:
                self._cpu_ns += time.thread_time_ns() - spent_ns
                spent_ns = time.thread_time_ns()
                if not self._waiting:
                    self._thread = None
                    return
                job = self._waiting.popleft()
            try:
                job()
            except BaseException as error:
                with self._lock:
                    self._failure = error
                    self._waiting.clear()


class Compactor:
    def __init__(self, new_path: Callable[[], Path], publish: Callable[[Path], tuple[str, str]]) -> None:
        """`new_path` gives a place to write a pack, `publish` names it and returns (name, readable path)."""
        self._new_path = new_path
        self._publish = publish
        self._merges = _Line("compactor")
        self._reads = _Line("read-ahead")
        self._lock = threading.Lock()
        self._done: list[Compacted] = []
        self._outstanding: list[Compaction] = []

    def start(self, decided: Sequence[Compaction]) -> None:
        """They are done one by one, in this order."""
        with self._lock:
            self._outstanding += decided
        self._merges.put([partial(self._merge, compaction) for compaction in decided])

    def read_ahead(self, reads: Sequence[Callable[[], None]]) -> None:
        """In the place of what was to be read and is not begun: what the last batch made readable counts."""
        self._reads.put(reads, in_place_of_waiting=True)

    def collect(self) -> list[Compacted]:
        """What was finished since the last call; raises what stopped a merge or a read."""
        self._reads.check()
        try:
            self._merges.check()
        except BaseException:
            with self._lock:
                self._outstanding = []
            raise
        with self._lock:
            done, self._done = self._done, []
            finished = {id(compacted.spec) for compacted in done}
            self._outstanding = [spec for spec in self._outstanding if id(spec) not in finished]
        return done

    @property
    def inputs(self) -> frozenset[RunRef]:
        """What merges read, or have read, that were not collected yet. Their packs may be needed no longer, but have
        to stay until then."""
        with self._lock:
            return frozenset(ref for compaction in self._outstanding for ref in compaction.inputs)

    def take_cpu_ns(self) -> int:
        """CPU time of what ended since the last call."""
        return self._merges.take_cpu_ns() + self._reads.take_cpu_ns()

    def wait(self) -> None:
        """Until all merges are done that were started."""
        self._merges.join()

    def stop(self) -> None:
        for line in (self._merges, self._reads):
            line.join(drop_waiting=True)

    def _merge(self, compaction: Compaction) -> None:
        path = self._new_path()
        writer = PackWriter(str(path))
        try:
            offset, length, rows = compaction.merge(writer)
            writer.finish()
        except BaseException:
            writer.discard()
            raise
        name, readable = self._publish(path)
        output = RunRef(pack=name, offset=offset, length=length, rows=rows)
        with self._lock:
            self._done.append(Compacted(compaction, output, readable))
