"""The tasks that bring rows to the state service and fetch outputs from it. They run in Spark's Python workers.

Workers are forked and handed to any partition: nothing outlives a task but the process's one Flight client. Each
function consumes its whole input, because Spark throws away a worker that leaves input unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from millpond._kernel import Combiner, Overflow
from millpond.semantics.operator import OperatorSpec
from millpond.service.client import connect
from millpond.service.messages import BatchTry, Endpoint, OutputKey, Receipt, StageKey
from millpond.service.wire import decode, encode
from millpond.state.layout import layout_of

__all__ = ["RECEIPT_SCHEMA", "emit_task", "ingest_task", "read_receipt"]

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

RECEIPT_SCHEMA = "receipt binary"

_DRAIN_BYTES = 64 << 20
"""What a task gathers before it sends; combining more would need memory that grows with the partition."""


def ingest_task(
    endpoint: Endpoint,
    at: BatchTry,
    operator: int,
    spec: OperatorSpec,
    shard_starts: tuple[int, ...],
    late_before_us: int | None,
    weight: int | None = None,
) -> Task:
    """A `mapInArrow` function: combines the partition's rows, stages them, yields one receipt. `weight`: the column
    that says how many rows each row stands for."""
    spec_bytes = encode(spec)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        key = StageKey(at, operator, context.partitionId(), context.taskAttemptId())
        receipt = _ingest(
            endpoint, key, decode(spec_bytes, OperatorSpec), shard_starts, late_before_us, weight, batches
        )
        yield pa.RecordBatch.from_pydict({"receipt": pa.array([encode(receipt)], pa.binary())})

    return run


def _ingest(
    endpoint: Endpoint,
    key: StageKey,
    spec: OperatorSpec,
    shard_starts: tuple[int, ...],
    late_before_us: int | None,
    weight: int | None,
    batches: Iterator[pa.RecordBatch],
) -> Receipt:
    layout = layout_of(spec)
    schema = spec.input_schema
    combiner = Combiner(layout, list(shard_starts), late_before_us, weight)
    staged = [0] * len(shard_starts)
    overflow: str | None = None

    def gathered() -> Iterator[tuple[int, pa.RecordBatch]]:
        nonlocal overflow
        for batch in batches:
            if overflow is None:
                try:
                    combiner.push(_as_declared(batch, schema))
                except Overflow as error:
                    overflow = str(error)
                if combiner.memory_bytes > _DRAIN_BYTES:
                    yield from counted()
        yield from counted()

    def counted() -> Iterator[tuple[int, pa.RecordBatch]]:
        for shard, rows in combiner.drain():
            staged[shard] += rows.num_rows
            yield shard, rows

    rows = gathered()
    first = next(rows, None)
    if first is not None:
        connect(endpoint).stage(key, layout.encoded_schema, _chain(first, rows))
    return Receipt(
        task=key.task,
        attempt=key.attempt,
        input_rows=combiner.rows,
        late_rows=combiner.late_rows,
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
