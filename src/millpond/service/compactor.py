"""Merging of runs beside the batches: policy chooses, this obeys, the owner adopts the result at its next commit."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Compacted:
    """A merge that is done: its run lies in a published pack that no manifest names yet."""

    spec: Compaction
    output: RunRef
    path: str


class Compactor:
    """Runs at most one set of merges at a time on a thread of its own."""

    def __init__(self, new_path: Callable[[], Path], publish: Callable[[Path], tuple[str, str]]) -> None:
        """`new_path` gives a place to write a pack, `publish` names it and returns (name, readable path)."""
        self._new_path = new_path
        self._publish = publish
        self._thread: threading.Thread | None = None
        self._done: list[Compacted] = []
        self._failure: BaseException | None = None
        self._stopping = False
        self._cpu_ns = 0
        self._inputs: frozenset[str] = frozenset()

    @property
    def idle(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def start(self, decided: Sequence[Compaction], reads: Sequence[Callable[[], None]] = ()) -> None:
        """`reads`: what is read ahead for the next batch, and so comes first."""
        self._inputs = frozenset(ref.pack for compaction in decided for ref in compaction.inputs)
        if decided or reads:
            self._thread = threading.Thread(
                target=self._run, args=(decided, reads), name="compactor", daemon=True
            )
            self._thread.start()

    def collect(self) -> list[Compacted]:
        """What was finished since the last call. Called while idle; raises what stopped a merge."""
        done, self._done = self._done, []
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return done

    @property
    def inputs(self) -> frozenset[str]:
        """Packs that running merges read: they may be needed no longer, but have to stay until then."""
        return frozenset() if self.idle else self._inputs

    def take_cpu_ns(self) -> int:
        """CPU time of the merges that ended since the last call. Called while idle."""
        spent, self._cpu_ns = self._cpu_ns, 0
        return spent

    def stop(self) -> None:
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    def _run(self, decided: Sequence[Compaction], reads: Sequence[Callable[[], None]]) -> None:
        if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            for read in reads:
                if not self._stopping:
                    read()
            for compaction in decided:
                if self._stopping:
                    return
                self._done.append(self._merge(compaction))
        except BaseException as error:
            self._failure = error
        finally:
            # The thread does nothing else.
            self._cpu_ns += time.thread_time_ns()

    def _merge(self, compaction: Compaction) -> Compacted:
        path = self._new_path()
        writer = PackWriter(str(path))
        try:
            offset, length, rows = compaction.merge(writer)
            writer.finish()
        except BaseException:
            writer.discard()
            raise
        name, readable = self._publish(path)
        return Compacted(compaction, RunRef(pack=name, offset=offset, length=length, rows=rows), readable)
