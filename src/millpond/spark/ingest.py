"""The tasks that bring rows to the state service and fetch outputs from it. They run in Spark's Python workers.

Workers are forked and handed to any partition: nothing outlives a task but the process's one Flight client. Each
function consumes its whole input, because Spark throws away a worker that leaves input unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa

from millpond._kernel import Overflow
from millpond.semantics.operator import OperatorSpec
from millpond.service.client import connect
from millpond.service.messages import BatchTry, Endpoint, OutputKey, Receipt, StageKey
from millpond.service.wire import decode, encode
from millpond.state.opening import sorter_of

__all__ = ["RECEIPT_SCHEMA", "IngestOrder", "emit_task", "ingest", "ingest_task", "read_receipt"]

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

RECEIPT_SCHEMA = "receipt binary"

_DRAIN_BYTES = 64 << 20
"""What a task gathers before it sends; combining more would need memory that grows with the partition."""


class IngestOrder(msgspec.Struct, frozen=True):
    """What the tasks of one ingest job have in common."""

    endpoint: Endpoint
    at: BatchTry
    operator: int
    spec: OperatorSpec
    shard_starts: tuple[int, ...]
    late_before_us: int | None
    weight: int | None = None
    """The column that says how many rows each row stands for."""


def ingest_task(order: IngestOrder) -> Task:
    """A `mapInArrow` function: sorts out the partition's rows, stages them, yields one receipt."""
    order_bytes = encode(order)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        receipt = ingest(
            decode(order_bytes, IngestOrder), context.partitionId(), context.taskAttemptId(), batches
        )
        yield pa.RecordBatch.from_pydict({"receipt": pa.array([encode(receipt)], pa.binary())})

    return run


def ingest(order: IngestOrder, task: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> Receipt:
    """Stages the rows of one task attempt."""
    schema = order.spec.input_schema
    sorter, staged_schema = sorter_of(order.spec, order.shard_starts, order.late_before_us, order.weight)
    staged = [0] * len(order.shard_starts)
    overflow: str | None = None

    def gathered() -> Iterator[tuple[int, pa.RecordBatch]]:
        nonlocal overflow
        for batch in batches:
            if overflow is None:
                try:
                    sorter.push(_as_declared(batch, schema))
                except Overflow as error:
                    overflow = str(error)
                if sorter.memory_bytes > _DRAIN_BYTES:
                    yield from counted()
        yield from counted()

    def counted() -> Iterator[tuple[int, pa.RecordBatch]]:
        for shard, rows in sorter.drain():
            staged[shard] += rows.num_rows
            yield shard, rows

    rows = gathered()
    first = next(rows, None)
    if first is not None:
        key = StageKey(order.at, order.operator, task, attempt)
        connect(order.endpoint).stage(key, staged_schema, _chain(first, rows))
    return Receipt(
        task=task,
        attempt=attempt,
        input_rows=sorter.rows,
        late_rows=sorter.late_rows,
        staged_rows=tuple(staged),
        overflow=overflow,
    )


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark's optimiser may promise that parts of nested values are never null; the kept state does not."""
    return batch if batch.schema.types == schema.types else batch.cast(schema)


def _chain(
    first: tuple[int, pa.RecordBatch], rest: Iterator[tuple[int, pa.RecordBatch]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    yield first
    yield from rest


def read_receipt(data: bytes) -> Receipt:
    return decode(bytes(data), Receipt)


def emit_task(endpoint: Endpoint, at: BatchTry, operator: int) -> Task:
    """A `mapInArrow` function over rows that name shards: yields the shards' outputs."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                yield from connect(endpoint).outputs(OutputKey(at, operator, shard))

    return run
