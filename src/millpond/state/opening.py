"""Which store an operator's state is kept in, and what sorts out its rows on the way there."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from millpond._kernel import Combiner, JoinSorter, SessionRowsSorter
from millpond.semantics.operator import (
    AggregateSpec,
    CountWindows,
    DedupSpec,
    GroupRowsSpec,
    JoinSpec,
    ObservedRowsSpec,
    OperatorSpec,
    UnalignedRowsSpec,
    WindowRowsSpec,
)
from millpond.state.counted import CountedShard
from millpond.state.dedup import DedupShard, FirstRows
from millpond.state.grouprows import GroupRowsShard
from millpond.state.joined import JoinShard
from millpond.state.layout import join_layout, layout_of
from millpond.state.merged import MergedShard
from millpond.state.observed import ObservedShard
from millpond.state.routing import ArrivalRouter, RowRouter
from millpond.state.rowlog import RowLogShard
from millpond.state.shard import OperatorShard, Place
from millpond.state.unalignedrows import UnalignedRowsShard, unaligned_rows_layout

__all__ = ["Sorter", "open_shard", "sorter_of", "store_of"]


class Sorter(Protocol):
    """Brings a task's rows into the form that the operator's store takes, sorted out by shard."""

    @property
    def rows(self) -> int: ...
    @property
    def late_rows(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def push(self, batch: pa.RecordBatch) -> None: ...
    def drain(self) -> list[tuple[int, pa.RecordBatch]]:
        """What was gathered since the last drain, as (shard, rows)."""


_STORES: dict[type[OperatorSpec], type[OperatorShard]] = {
    AggregateSpec: MergedShard,
    WindowRowsSpec: RowLogShard,
    GroupRowsSpec: GroupRowsShard,
    DedupSpec: DedupShard,
    UnalignedRowsSpec: UnalignedRowsShard,
    ObservedRowsSpec: ObservedShard,
    JoinSpec: JoinShard,
}


def store_of(spec: OperatorSpec) -> type[OperatorShard]:
    """The kind of store that keeps the operator's state."""
    counted = isinstance(spec, AggregateSpec) and isinstance(spec.time, CountWindows)
    return CountedShard if counted else _STORES[type(spec)]


def open_shard(place: Place, spec: OperatorSpec) -> OperatorShard:
    return store_of(spec)(place, spec)


def sorter_of(
    spec: OperatorSpec,
    side: int,
    shard_starts: tuple[int, ...],
    late_before_us: int | None,
    weight: int | None,
) -> tuple[Sorter, pa.Schema]:
    """The sorter for one of the operator's inputs and the schema of what it drains. `weight`: the column that says
    how many rows each row stands for, where they were combined before."""
    match spec:
        case AggregateSpec():
            layout = layout_of(spec)
            apart = isinstance(spec.time, CountWindows)
            return Combiner(layout, list(shard_starts), late_before_us, weight, apart), layout.encoded_schema
        case WindowRowsSpec() | GroupRowsSpec():
            router = RowRouter(spec, shard_starts, late_before_us)
            return router, router.schema
        case DedupSpec():
            first = FirstRows(spec, shard_starts, late_before_us)
            return first, first.schema
        case UnalignedRowsSpec():
            rows = unaligned_rows_layout(spec)
            return SessionRowsSorter(rows, list(shard_starts), late_before_us), rows.encoded_schema
        case ObservedRowsSpec():
            arrivals = ArrivalRouter(spec, shard_starts, late_before_us)
            return arrivals, arrivals.schema
        case JoinSpec():
            join = join_layout(spec)
            return JoinSorter(join, side, list(shard_starts), late_before_us), join.encoded_schema
