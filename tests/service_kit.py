"""A driver without Spark, for tests: it runs batches on a state service as the batch loop does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa

from millpond._kernel import BUCKETS
from millpond.semantics.operator import (
    Aggregate,
    AggregateSpec,
    Column,
    CountWindows,
    DedupSpec,
    Forgetting,
    GroupRowsSpec,
    JoinKind,
    JoinSide,
    JoinSpec,
    JoinTime,
    KeyedTime,
    ObservedRowsSpec,
    OperatorSpec,
    OutputMode,
    Panes,
    Sessions,
    UnalignedRowsSpec,
    WindowRowsSpec,
)
from millpond.service.client import ServiceClient
from millpond.service.messages import (
    BatchTry,
    CommitReply,
    OpenRequest,
    OutputKey,
    Receipt,
    SealRequest,
    StageKey,
)
from millpond.service.process import ServiceProcess
from millpond.settings import Settings
from millpond.state.opening import sorter_of
from millpond.storage.collect import collect
from millpond.storage.local import LocalStorage
from millpond.storage.protocol import publish_commit
from millpond.storage.slotlog import Lease, SlotLog

Rows = Sequence[tuple[int, ...]]
"""(key, value, time in microseconds); for sessions also the end of the row's own"""
RowsWithNulls = Sequence[tuple[int | None, ...]]
Group = tuple[int, ...]

_INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])
_BUFFERS = [("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())]
_BOUNDS = [("start", pa.int64()), ("end", pa.int64())]


def counts(window_us: int | None = None) -> AggregateSpec:
    """Count and sum per key, in tumbling windows if a length is given."""
    return AggregateSpec(
        name="aggregate-0",
        keys=(Column("k", "bigint"),),
        aggregates=(Aggregate("count", (), text="count(1)"), Aggregate("sum_int", (1,), text="sum(v)")),
        time=None if window_us is None else Panes(2, window_us, window_us, 0, Column("window", "struct")),
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=pa.schema(_BUFFERS + (_BOUNDS if window_us else [])).serialize().to_pybytes(),
    )


def counts_by_end(slice_us: int) -> AggregateSpec:
    """Count and sum per key and end of the row's window, which is the second column."""
    return AggregateSpec(
        name="aggregate-0",
        keys=(Column("k", "bigint"), Column("end", "bigint")),
        aggregates=(Aggregate("count", (), text="count(1)"), Aggregate("sum_int", (2,), text="sum(v)")),
        time=KeyedTime(1, slice_us, Column("end", "bigint")),
        input_ipc=pa.schema([("k", pa.int64()), ("end", pa.int64()), ("v", pa.int64())])
        .serialize()
        .to_pybytes(),
        output_ipc=pa.schema([("k", pa.int64()), ("end", pa.int64()), *_BUFFERS[1:]])
        .serialize()
        .to_pybytes(),
    )


def sessions(timer_us: int = 10) -> AggregateSpec:
    """Count and sum per key and session."""
    return AggregateSpec(
        name="aggregate-0",
        keys=(Column("k", "bigint"),),
        aggregates=(Aggregate("count", (), text="count(1)"), Aggregate("sum_int", (1,), text="sum(v)")),
        time=Sessions(2, 3, None, timer_us, Column("session_window", "struct")),
        input_ipc=pa.schema([*_INPUT, ("end", pa.int64())]).serialize().to_pybytes(),
        output_ipc=pa.schema(_BUFFERS + _BOUNDS).serialize().to_pybytes(),
    )


def first_rows(
    keys: tuple[int, ...] = (0,), *, timed: bool = False, forget_after_us: int | None = None
) -> DedupSpec:
    """The first row of each key. `keys`: columns of the rows; 2 is the time, by which keys then expire. `timed`: rows
    are late by their time."""
    names = ("k", "v", "t")
    return DedupSpec(
        name="deduplicate-0",
        keys=tuple(Column(names[i], "bigint") for i in keys),
        time=KeyedTime(2, 10, Column("t", "bigint")) if 2 in keys else None,
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=_INPUT.serialize().to_pybytes(),
        key_columns=keys,
        emitted_columns=(0, 1, 2),
        late_column=2 if timed or 2 in keys or forget_after_us is not None else None,
        forgetting=None if forget_after_us is None else Forgetting(2, forget_after_us, 10),
    )


def session_rows(gap_us: int | None = 10) -> UnalignedRowsSpec:
    """Key and value of every row, until its session ends. Without a gap, the fourth column says until when."""
    kept = [("k", pa.int64()), ("v", pa.int64())]
    return UnalignedRowsSpec(
        name="rows-0",
        keys=(Column("k", "bigint"),),
        time=Sessions(2, 3, gap_us, gap_us or 10, Column("session_window", "struct")),
        input_ipc=pa.schema([*_INPUT, ("end", pa.int64())]).serialize().to_pybytes(),
        output_ipc=pa.schema(kept + _BOUNDS).serialize().to_pybytes(),
        key_columns=(0,),
        kept_columns=(0, 1),
        kept=(Column("k", "bigint"), Column("v", "bigint")),
        purpose="collect_list",
    )


def observed_rows() -> ObservedRowsSpec:
    """Key and value of every row, until the end of its window, which is the third column."""
    kept = [("k", pa.int64()), ("v", pa.int64())]
    return ObservedRowsSpec(
        name="rows-0",
        keys=(Column("k", "bigint"), Column("window", "struct")),
        time=KeyedTime(2, 4, Column("window", "struct")),
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=pa.schema(kept).serialize().to_pybytes(),
        key_columns=(0, 2),
        kept_columns=(0, 1),
        kept=(Column("k", "bigint"), Column("v", "bigint")),
        purpose="collect_list",
    )


def group_rows(size_us: int | None = None, slide_us: int = 0) -> GroupRowsSpec:
    """Key and value of every row, by key or by key and window."""
    kept = [("k", pa.int64()), ("v", pa.int64())]
    panes = None if size_us is None else Panes(2, size_us, slide_us, 0, Column("window", "struct"))
    return GroupRowsSpec(
        name="rows-0",
        keys=(Column("k", "bigint"),),
        time=panes,
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=pa.schema(kept + (_BOUNDS if panes else [])).serialize().to_pybytes(),
        key_columns=(0,),
        kept_columns=(0, 1),
        kept=(Column("k", "bigint"), Column("v", "bigint")),
        purpose="median",
    )


def window_rows(size_us: int, slide_us: int) -> WindowRowsSpec:
    """Key and value of every row, until its windows have ended."""
    kept = [("k", pa.int64()), ("v", pa.int64())]
    return WindowRowsSpec(
        name="rows-0",
        keys=(Column("k", "bigint"),),
        time=Panes(2, size_us, slide_us, 0, Column("window", "struct")),
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=pa.schema(kept + _BOUNDS).serialize().to_pybytes(),
        key_columns=(0,),
        kept_columns=(0, 1),
        kept=(Column("k", "bigint"), Column("v", "bigint")),
        purpose="median",
    )


def counted(rows: int) -> AggregateSpec:
    """Sum per key and window of so many rows."""
    return AggregateSpec(
        name="aggregate-0",
        keys=(Column("k", "bigint"),),
        aggregates=(Aggregate("sum_int", (1,), text="sum(v)"),),
        time=CountWindows(rows, Column("count_window", "struct")),
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=pa.schema(_BUFFERS).serialize().to_pybytes(),
    )


def counted_rows(rows: int) -> UnalignedRowsSpec:
    """Key and value of every row, until its window has so many; the third column says when that is expected."""
    return UnalignedRowsSpec(
        name="rows-0",
        keys=(Column("k", "bigint"),),
        time=CountWindows(rows, Column("count_window", "struct")),
        input_ipc=_INPUT.serialize().to_pybytes(),
        output_ipc=pa.schema(_BUFFERS).serialize().to_pybytes(),
        key_columns=(0,),
        kept_columns=(0, 1),
        kept=(Column("k", "bigint"), Column("v", "bigint")),
        purpose="collect_list",
        next_read=2,
    )


def joined(
    join: JoinKind = "inner", *, furthest_us: int = 30, nearest_us: int = 20, slice_us: int = 10
) -> JoinSpec:
    """Rows of the left side, each with the rows of the right that are 20 to 30 microseconds older."""
    name, number = Column("k", "bigint"), pa.int64()
    # Key, value, time, the earliest and the latest time of a partner, and the watermark at which it is forgotten.
    read = pa.schema([(c, number) for c in ("k", "v", "t", "far", "near", "expiry")]).serialize().to_pybytes()

    def side(is_left: bool) -> JoinSide:
        return JoinSide(
            input_ipc=read,
            key_columns=(0,),
            matchable=None,
            late=2,
            expiry=5,
            comparands=(3, 4) if is_left else (2, 2),
            times=() if is_left else (0, 1),
            expires_after_us=-nearest_us if is_left else furthest_us,
            kept_columns=(0, 1),
            kept=(name, Column("v", "bigint")),
            outer=is_left and join == "left outer",
            once=False,
            null_keys=False,
        )

    return JoinSpec(
        name="join-0",
        keys=(name,),
        time=JoinTime((nearest_us, -furthest_us), slice_us),
        input_ipc=read,
        output_ipc=pa.schema([(c, number) for c in ("lk", "lv", "rk", "rv")]).serialize().to_pybytes(),
        join=join,
        sides=(side(True), side(False)),
        comparisons=("<=", ">="),
        condition="rt between lt - 30 and lt - 20",
    )


class Driver(AbstractContextManager["Driver"]):
    """Owns the query in `directory` and a service process for it. A new one takes over where the last ended."""

    def __init__(
        self,
        directory: Path,
        *,
        spec: OperatorSpec | None = None,
        shards: int = 2,
        mode: OutputMode = "update",
        **settings: int | float,
    ) -> None:
        self.storage = LocalStorage(directory)
        self.spec: OperatorSpec = spec or counts()
        self.mode = mode
        self.settings = Settings(**settings)  # type: ignore[arg-type]
        self.starts = tuple(shard * BUCKETS // shards for shard in range(shards))
        self.lease: Lease = SlotLog(self.storage).take(
            query_id="query",
            run_id="run",
            driver="test",
            operators=(self.spec,),
            shard_starts=self.starts,
            taken_at_ms=1,
        )
        self.watermark_us = (self.lease.newest.watermark_us or 0) if self.lease.newest else 0
        self._numbers = itertools.count(1)
        self.service = ServiceProcess()
        try:
            self.client = self._open()
        except BaseException:
            self.service.kill()
            raise

    def _open(self) -> ServiceClient:
        client = self.service.wait_ready()
        client.open(
            OpenRequest(
                location=self.storage.location,
                owner_slot=self.lease.slot,
                operators=(self.spec,),
                shard_starts=self.starts,
                commit=self.lease.newest,
                settings=self.settings,
            )
        )
        return client

    def __exit__(self, *exc: object) -> None:
        self.client.close()
        self.service.stop()

    @property
    def next_batch(self) -> int:
        return self.lease.newest.batch_id + 1 if self.lease.newest else 0

    def begin(self) -> BatchTry:
        at = BatchTry("run", self.next_batch, next(self._numbers))
        self.client.begin(at)
        return at

    def stage(
        self,
        at: BatchTry,
        rows: RowsWithNulls,
        *,
        task: int = 0,
        attempt: int = 0,
        side: int = 0,
        in_files: bool = False,
    ) -> Receipt:
        """What an ingest task does; the receipt is what it would return."""
        late = self.watermark_us if self.spec.drops_late_rows else None
        sorter, staged_schema = sorter_of(self.spec, side, self.starts, late, None)
        schema = self.spec.input_of(side)
        columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(len(schema))]
        sorter.push(pa.record_batch(columns, schema=schema))
        drained = sorter.drain()
        begin = self.client.stage_file_writer if in_files else self.client.stage_writer
        writer = begin(StageKey(at, 0, task, attempt, side), staged_schema)
        staged = [0] * len(self.starts)
        for shard, encoded in drained:
            writer.write(shard, encoded)
            staged[shard] += encoded.num_rows
        writer.close()
        return Receipt(task, attempt, sorter.rows, sorter.late_rows, tuple(staged), side=side)

    def seal(
        self, at: BatchTry, receipts: Iterable[Receipt], watermark_us: int | None = None
    ) -> tuple[int, ...]:
        new = self.watermark_us if watermark_us is None else watermark_us
        return self.client.seal(
            SealRequest(at, 0, self.mode, tuple(receipts), self.watermark_us, new)
        ).output_rows

    def outputs(self, at: BatchTry) -> list[Group]:
        """All shards' outputs, sorted."""
        found: list[Group] = []
        for shard in range(len(self.starts)):
            for batch in self.client.outputs(OutputKey(at, 0, shard)):
                found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return sorted(found, key=lambda row: [(value is not None, value) for value in row])

    def commit(self, at: BatchTry, watermark_us: int | None = None) -> CommitReply:
        """Save, commit record, commit, and collection of what is old: the second half of a batch."""
        new = self.watermark_us if watermark_us is None else watermark_us
        saved = self.client.save(at)
        publish_commit(
            self.lease,
            batch_id=at.batch,
            offsets_digest=f"digest {at.batch}",
            input_rows=0,
            watermark_us_before=self.watermark_us,
            watermark_us=new,
            manifest=saved.manifest,
            committed_at_ms=1,
        )
        self.watermark_us = new
        reply = self.client.commit(at)
        collect(
            self.storage,
            self.lease,
            keep_versions=self.settings.keep_versions,
            protected=frozenset(reply.in_flight),
            settled_batch=at.batch,
        )
        return reply

    def run(self, rows: RowsWithNulls, watermark_us: int | None = None) -> list[Group]:
        """A whole batch in one task; gives its outputs."""
        at = self.begin()
        self.seal(at, [self.stage(at, rows)], watermark_us)
        outputs = self.outputs(at)
        self.commit(at, watermark_us)
        return outputs


def disk_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
