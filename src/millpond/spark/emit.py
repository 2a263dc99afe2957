"""Outputs of a sealed operator as a DataFrame: small ones through the driver, others read by a Spark job."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millpond.service.client import ServiceClient
from millpond.service.messages import BatchTry, Endpoint, OutputKey
from millpond.spark.ingest import emit_task
from millpond.spark.jvm import Catalyst
from millpond.spark.reshaping import Reshaping, reshaped

__all__ = ["emitted_frame"]


def emitted_frame(
    catalyst: Catalyst,
    session: SparkSession,
    client: ServiceClient,
    endpoint: Endpoint,
    at: BatchTry,
    operator: int,
    *,
    schema: StructType,
    arrow_schema: pa.Schema,
    reshaping: Reshaping | None,
    rows_per_shard: tuple[int, ...],
    local_rows: int,
) -> tuple[DataFrame, bool]:
    """The outputs, and whether they are spread: the rows of each shard in a task of their own."""
    shards = [shard for shard, rows in enumerate(rows_per_shard) if rows]
    if sum(rows_per_shard) <= local_rows:
        batches = [
            batch
            for shard in shards
            for batch in reshaped(partial(client.outputs, OutputKey(at, operator, shard)), reshaping)
            if batch.num_rows
        ]
        rows = pa.Table.from_batches(batches, arrow_schema).combine_chunks().to_batches()
        messages = (batch.serialize().to_pybytes() for batch in rows)
        return catalyst.frame_of_arrow(messages, schema, session), False
    numbers = session.range(0, len(rows_per_shard), 1, len(rows_per_shard))
    return numbers.mapInArrow(emit_task(endpoint, at, operator, reshaping), schema), True
