"""The tasks that bring rows to the state service and fetch outputs from it. They run in Spark's Python workers.

Workers are forked and handed to any partition: nothing outlives a task but the process's Flight clients. Each
function consumes its whole input, because Spark throws away a worker that leaves input unread.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond._kernel import Overflow
from millpond.semantics.operator import OperatorSpec
from millpond.service.allocation import keep_freed_memory
from millpond.service.client import StageFile, StageWriter, connect
from millpond.service.messages import BatchTry, Endpoint, OutputKey, Receipt, StageKey
from millpond.service.spent import Stopwatch
from millpond.service.wire import decode, encode
from millpond.spark.reshaping import Reshaping, Widths, nested, reshaped
from millpond.state.opening import sorter_of

__all__ = [
    "RECEIPTS",
    "FeedOrder",
    "IngestOrder",
    "Task",
    "TaskReceipts",
    "emit_task",
    "ingest",
    "ingest_task",
    "read_receipts",
]

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A `mapInArrow` function."""

RECEIPTS = "receipts"
"""The column of what a task gives out."""

_DRAIN_BYTES = 64 << 20
"""What a task gathers before it sends; combining more would need memory that grows with the partition."""


class FeedOrder(msgspec.Struct, frozen=True):
    """One input of an operator, as an ingest job finds it among its rows."""

    operator: int
    side: int
    spec: OperatorSpec
    columns: tuple[int, ...]
    """Positions of the columns that the input's columns travel as."""
    widths: Widths
    """How many each of them travels as; empty: all as they are."""
    late_before_us: int | None
    weight: int | None = None
    """The column that says how many rows each row stands for."""


class IngestOrder(msgspec.Struct, frozen=True):
    """What the tasks of one ingest job have in common."""

    endpoint: Endpoint
    at: BatchTry
    shard_starts: tuple[int, ...]
    feeds: tuple[FeedOrder, ...]
    """With more than one, the first column of a row is the number of its feed."""


class TaskReceipts(msgspec.Struct, frozen=True):
    """What one task attempt staged: (operator, receipt) for each of its feeds."""

    receipts: tuple[tuple[int, Receipt], ...]


def ingest_task(order: IngestOrder) -> Task:
    """A `mapInArrow` function: sorts out the partition's rows, stages them, yields the receipts."""
    order_bytes = encode(order)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        keep_freed_memory()
        context = TaskContext.get()
        receipts = ingest(
            decode(order_bytes, IngestOrder), context.partitionId(), context.taskAttemptId(), batches
        )
        yield pa.RecordBatch.from_pydict({RECEIPTS: pa.array([encode(receipts)], pa.binary())})
        _settle("ingest")

    return run


def ingest(
    order: IngestOrder,
    task: int,
    attempt: int,
    batches: Iterable[pa.RecordBatch],
    *,
    in_files: bool = True,
) -> TaskReceipts:
    """Stages the rows of one task attempt. `in_files`: where they are many."""
    streams = [_Stream(order, feed, task, attempt, in_files) for feed in order.feeds]
    for batch in batches:
        if len(streams) == 1:
            streams[0].push(batch)
            continue
        tags = batch.column(0)
        for tag in pc.unique(tags).to_pylist():
            streams[tag].push(batch.filter(pc.equal(tags, tag)))
    return TaskReceipts(tuple((stream.operator, stream.finish()) for stream in streams))


class _Stream:
    """One feed's rows on their way to the service."""

    def __init__(self, order: IngestOrder, feed: FeedOrder, task: int, attempt: int, in_files: bool) -> None:
        self.operator = feed.operator
        self._order = order
        self._feed = feed
        self._key = StageKey(order.at, feed.operator, task, attempt, feed.side)
        self._schema = feed.spec.input_of(feed.side)
        self._sorter, self._staged_schema = sorter_of(
            feed.spec, feed.side, order.shard_starts, feed.late_before_us, feed.weight
        )
        self._staged = [0] * len(order.shard_starts)
        self._overflow: str | None = None
        self._in_files = in_files
        self._writer: StageFile | StageWriter | None = None
        self._watch = Stopwatch()

    def push(self, batch: pa.RecordBatch) -> None:
        if self._overflow is not None:
            return
        if len(self._feed.columns) != batch.num_columns:
            batch = batch.select(list(self._feed.columns))
        try:
            with self._watch.on("encoding"):
                if any(self._feed.widths):
                    batch = nested(batch, self._feed.widths, self._schema)
                self._sorter.push(_as_declared(batch, self._schema))
        except Overflow as error:
            self._overflow = str(error)
        if self._sorter.memory_bytes > _DRAIN_BYTES:
            self._send()

    def _send(self) -> None:
        with self._watch.on("encoding"):
            drained = self._sorter.drain()
        for shard, rows in drained:
            if self._writer is None:
                client = connect(self._order.endpoint)
                begin = client.stage_file_writer if self._in_files else client.stage_writer
                self._writer = begin(self._key, self._staged_schema)
            self._staged[shard] += rows.num_rows
            self._writer.write(shard, rows)

    def finish(self) -> Receipt:
        self._send()
        if self._writer is not None:
            self._writer.close()
        return Receipt(
            task=self._key.task,
            attempt=self._key.attempt,
            input_rows=self._sorter.rows,
            late_rows=self._sorter.late_rows,
            staged_rows=tuple(self._staged),
            overflow=self._overflow,
            side=self._feed.side,
            spent=self._watch.spent(),
        )


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark's optimiser may promise that parts of nested values are never null; the kept state does not."""
    if batch.schema.types == schema.types:
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, names=schema.names).cast(schema)


def read_receipts(data: bytes) -> TaskReceipts:
    return decode(bytes(data), TaskReceipts)


def emit_task(endpoint: Endpoint, at: BatchTry, operator: int, reshaping: Reshaping | None = None) -> Task:
    """A `mapInArrow` function over rows that name shards: yields the shards' outputs."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                key = OutputKey(at, operator, shard)
                yield from reshaped(partial(connect(endpoint).output_file, key), reshaping)
        _settle("emit")

    return run


_settled: set[tuple[int, str]] = set()
"""Processes, by fork, and the kinds of task that have run in them."""


def _settle(kind: str) -> None:
    """After a process's first task of a kind. Spark's workers collect garbage after every task, which means a look at
    each object of each module that was imported, and is half of what a small task costs. What is alive now stays as
    long as the process, so collections leave it out from here on."""
    if (os.getpid(), kind) not in _settled:
        _settled.add((os.getpid(), kind))
        gc.freeze()
