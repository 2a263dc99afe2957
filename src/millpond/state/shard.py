"""One operator in one shard: what a service asks of it, and a store with the names of the runs that it rests on.

The stores know runs, the storage knows packs; this is where the two are kept in step, whatever the store. A batch's
runs are pending until the batch is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import pyarrow as pa

from millpond._kernel import PackWriter
from millpond.errors import InternalError, InvalidQuery
from millpond.policy.compaction import Limits, PackUse, Rest, SliceView, decide, live_shares
from millpond.policy.compaction import Merge as DueMerge
from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.state.trace import Access
from millpond.storage.manifest import RunRef, SliceState, StoreState

__all__ = ["FlushedRun", "Merge", "OneStoreShard", "OperatorShard", "Place"]

Merge = Callable[[PackWriter], tuple[int, int, int]]
"""Writes several runs as one and returns its offset, length and rows. It runs beside batches, on another thread."""


class Place(NamedTuple):
    """Which part of an operator's state it is, and what it may hold in memory."""

    operator: int
    shard: int
    first_bucket: int
    end_bucket: int
    memory_bytes: int
    read_batch_ratio: float = 0.0
    """Share of what waits that may be read ahead, where a store knows what is read next."""
    read_delay_us: int = 0
    """For benchmarks: each read that misses memory waits so long before."""
    observed_bytes: int = 0
    """How large the state of an operator of unknown pattern may become before its store is chosen."""


class FlushedRun(NamedTuple):
    """A run that lies in a pack which has no name yet."""

    slice: int
    offset: int
    length: int
    rows: int


class OperatorShard(ABC):
    """What a service asks. `apply` and what `fire` removes belong to the running batch until `commit` or `abort`."""

    store_text: ClassVar[str]
    """What the store is, for people."""
    reads_ahead: bool = False
    """Whether `read_ahead` does anything."""
    merges_read_ahead: bool = False
    """Whether a merge reads ahead in the scan that it makes anyway."""

    def __init__(self, place: Place, spec: OperatorSpec) -> None:
        self.place = place
        self.operator = place.operator
        self.shard = place.shard
        self.spec = spec

    # The batch

    @abstractmethod
    def apply(self, rows: pa.RecordBatch) -> None:
        """Takes in rows as the operator's ingest tasks send them."""

    def ready(self) -> list[pa.RecordBatch]:
        """Outputs that the rows applied so far have given, each handed out once. They come before those of `fire`."""
        return []

    @abstractmethod
    def fire(self, mode: OutputMode, before_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """Yields the batch's outputs in the operator's output schema, then removes what has expired."""

    @property
    @abstractmethod
    def dirty_bytes(self) -> int:
        """Bytes that the next flush would write."""

    @abstractmethod
    def flush(self, writer: PackWriter) -> list[FlushedRun]:
        """Writes what the running batch changed and has not been flushed yet."""

    @abstractmethod
    def add_pending(self, runs: Iterable[FlushedRun], pack: str, path: str) -> None:
        """The runs that were just flushed have a name now, and can be read."""

    @abstractmethod
    def version(self) -> StoreState:
        """The state that a commit of the running batch would make, as the manifest says it."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None:
        """Forgets the running batch."""

    @abstractmethod
    def restore(self, state: StoreState, paths: dict[str, str]) -> None:
        """Puts a committed version in place; `paths` says where each pack can be read."""

    # Beside the batch

    @abstractmethod
    def committed_runs(self) -> dict[int, tuple[RunRef, ...]]: ...

    @abstractmethod
    def due_merge(self, slice_: int, limits: Limits) -> DueMerge | Rest:
        """Which of the slice's committed runs to write anew."""

    @abstractmethod
    def run_uses(self, slice_: int) -> tuple[PackUse, ...]:
        """What of each of the slice's committed runs is live."""

    @abstractmethod
    def rewrite_of(self, slice_: int, position: int) -> DueMerge:
        """Which of the slice's committed runs to write anew so that the garbage of this one goes."""

    @abstractmethod
    def merge_of(self, slice_: int, first: int, count: int) -> Merge:
        """How to write the committed runs `first` to `first + count` (oldest is 0) as one."""

    @abstractmethod
    def replace(self, slice_: int, merged: Sequence[RunRef], ref: RunRef, path: str) -> bool:
        """Puts a merged run in the place of its inputs; False when the slice has gone meanwhile."""

    def read_ahead(self) -> None:
        """Reads what will be asked for next. It runs beside batches, on another thread."""
        raise InternalError(f"{self.spec.name}: its state is not read in an order that is known before")

    # Figures

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """By the names of `StatsReply`."""

    @property
    def spent_ns(self) -> tuple[int, int]:
        """Time spent so far on looking for keys in runs and on removal, where it is not the time of `apply` and
        `fire`."""
        return 0, 0

    def record(self, tell: Callable[[Access], None]) -> None:  # noqa: ARG002
        """From now on `tell` hears of every change before it is made."""
        raise InvalidQuery(
            f"{self.spec.name}: a trace holds what is merged into groups, and this operator keeps rows. Record a "
            "query that only aggregates"
        )


class OneStoreShard(OperatorShard):
    """A shard whose state is all in one store, which is left open."""

    def __init__(self, place: Place, spec: OperatorSpec) -> None:
        super().__init__(place, spec)
        self._committed: dict[int, list[RunRef]] = {}
        self._pending: dict[int, list[RunRef]] = {}
        self._given_up: set[int] = set()
        """Slices whose committed runs the running batch no longer needs, although it may begin them anew."""

    # What each kind of store does in its own way

    @abstractmethod
    def slices(self) -> list[tuple[int, int]]:
        """(slice, rows in it) as the running batch leaves them."""

    @abstractmethod
    def live_bytes(self, slice_: int) -> int:
        """Bytes that the slice's rows would take without garbage."""

    def vain_ns(self, slice_: int) -> int | None:  # noqa: ARG002
        """What look-ups spent in runs of the slice without their keys since the last merge, if that is counted."""
        return None

    @abstractmethod
    def _restore(self, slice_: int, rows: int, runs: list[tuple[RunRef, str]]) -> None:
        """Puts a committed slice in place: its runs, oldest first, each with the path of its pack."""

    @abstractmethod
    def _attach(self, run: FlushedRun, path: str) -> None:
        """The run that was just flushed can be read from this pack now."""

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _abort(self) -> None: ...

    @abstractmethod
    def _replace(self, slice_: int, first: int, count: int, ref: RunRef, path: str) -> bool:
        """Puts a merged run in the place of committed ones; False when the slice is gone."""

    # What is the same for all

    def due_merge(self, slice_: int, limits: Limits) -> DueMerge | Rest:
        run_bytes = tuple(ref.length for ref in self._committed[slice_])
        return decide(SliceView(run_bytes, self.live_bytes(slice_), self.vain_ns(slice_)), limits)

    def run_uses(self, slice_: int) -> tuple[PackUse, ...]:
        return live_shares(tuple(ref.length for ref in self._committed[slice_]), self.live_bytes(slice_))

    def rewrite_of(self, slice_: int, position: int) -> DueMerge:
        # What newer runs replaced goes only where they are merged.
        use = self.run_uses(slice_)[position]
        whole = use.live_bytes < use.total_bytes
        return DueMerge(0, len(self._committed[slice_])) if whole else DueMerge(position, 1)

    def restore(self, state: StoreState, paths: dict[str, str]) -> None:
        for slice_ in state.slices:
            self._restore(slice_.slice, slice_.rows, [(ref, paths[ref.pack]) for ref in slice_.runs])
            self._committed[slice_.slice] = list(slice_.runs)

    def add_pending(self, runs: Iterable[FlushedRun], pack: str, path: str) -> None:
        for run in runs:
            self._attach(run, path)
            ref = RunRef(pack=pack, offset=run.offset, length=run.length, rows=run.rows)
            self._pending.setdefault(run.slice, []).append(ref)

    def version(self) -> StoreState:
        return StoreState(
            operator=self.operator,
            shard=self.shard,
            slices=tuple(
                SliceState(slice=slice_, rows=rows, runs=tuple(self._named(slice_)))
                for slice_, rows in self.slices()
            ),
        )

    def _named(self, slice_: int) -> list[RunRef]:
        """The runs of the slice after a commit."""
        return [*self._still_used(slice_), *self._pending.get(slice_, ())]

    def _still_used(self, slice_: int) -> Sequence[RunRef]:
        return () if slice_ in self._given_up else self._committed.get(slice_, ())

    def _give_up(self, slice_: int) -> None:
        """The running batch took all that is committed of the slice."""
        self._given_up.add(slice_)

    def commit(self) -> None:
        named = {slice_: self._named(slice_) for slice_, _ in self.slices()}
        self._commit()
        # A slice whose last row went with the batch is named once more, and gone.
        left = {slice_ for slice_, _ in self.slices()}
        self._committed = {slice_: refs for slice_, refs in named.items() if slice_ in left}
        self._pending.clear()
        self._given_up.clear()

    def abort(self) -> None:
        self._abort()
        self._pending.clear()
        self._given_up.clear()

    def committed_runs(self) -> dict[int, tuple[RunRef, ...]]:
        return {slice_: tuple(refs) for slice_, refs in self._committed.items()}

    def replace(self, slice_: int, merged: Sequence[RunRef], ref: RunRef, path: str) -> bool:
        refs = self._committed.get(slice_, [])
        first = next((i for i in range(len(refs)) if refs[i : i + len(merged)] == list(merged)), None)
        if first is None or not self._replace(slice_, first, len(merged), ref, path):
            return False
        refs[first : first + len(merged)] = [ref]
        return True
