"""How each engine runs a workload. All of them read the same files and end in the same sink."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.bench.job import Job
from millpond.bench.passthrough import Server, carrier
from millpond.bench.workload import (
    OUTPUT,
    PREPARED,
    Mode,
    StreamingWorkload,
    has_outputs,
    load,
    stream_directory,
)
from millpond.service.trace import TRACE_FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["ENGINES", "rehearse", "running"]

ENGINES = (
    "millpond",
    "spark-rocksdb",
    "spark-rocksdb-default",
    "spark-memory",
    "spark-tws",
    "passthrough",
)
Sink = Callable[["DataFrame", int], None]


@contextmanager
def running(
    spark: SparkSession,
    job: Job,
    workload: StreamingWorkload,
    on_batch: Callable[[int], None] = lambda _: None,
) -> Iterator[StreamingQuery]:
    """The started query; what the engine needs beside it ends with the block. `on_batch` hears of each batch that
    is written."""
    frames = {stream: _read(spark, stream_directory(Path(job.data), stream)) for stream in workload.streams}
    tables = workload.tables(spark)
    sink = _arrow_sink(job.output, on_batch)
    match job.engine:
        case "spark-rocksdb" | "spark-rocksdb-default" | "spark-memory":
            yield _start(workload.query(frames | tables), sink, job, workload.mode)
        case "spark-tws":
            written = workload.tws_query()
            assert written is not None
            yield _start(written(frames | tables), sink, job, workload.mode)
        case "millpond":
            import millpond as mp

            if job.trace_file is not None:
                os.environ[TRACE_FILE] = job.trace_file
            kept = {stream: mp.stream(frame) for stream, frame in frames.items()}
            shards = {"shards": job.settings["spark.sql.shuffle.partitions"]}
            yield _start(workload.query(kept | tables, own=True), sink, job, workload.mode, **shards)
        case "passthrough":
            yield from _floor(job, workload, frames, workload.query(frames | tables).schema, sink)
        case other:
            raise ValueError(f"no engine {other!r}; there are {', '.join(ENGINES)}")


def _read(spark: SparkSession, files: Path) -> DataFrame:
    schema = spark.read.parquet(str(files)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(files))


def _floor(
    job: Job, workload: StreamingWorkload, frames: dict[str, DataFrame], schema: StructType, sink: Sink
) -> Iterator[StreamingQuery]:
    if len(frames) != 1:
        raise ValueError(
            f"not supported: the floor takes one stream, {workload.name} reads {', '.join(frames)}"
        )
    data = Path(job.data)
    if not has_outputs(data):
        raise ValueError("the floor sends back what an engine with state put out, and none has finished yet")
    (frame,) = frames.values()
    server = Server(data, Path(job.directory))
    columns = schema.simpleString().removeprefix("struct<").removesuffix(">")
    try:
        yield _start(frame, carrier(server, load(data), frame.columns, columns, sink), job, "append")
    finally:
        server.stop()


def rehearse(spark: SparkSession, job: Job, workload: StreamingWorkload) -> None:
    """Runs the query over the first batches and forgets it. A JVM interprets first and compiles what runs often:
    without this, a run of a dozen batches is mostly that."""
    if not job.rehearsal_batches:
        return
    directory = Path(job.directory, "rehearsal")
    data = directory / "data"
    for stream in workload.streams:
        files = stream_directory(data, stream)
        files.mkdir(parents=True)
        for path in sorted(stream_directory(Path(job.data), stream).iterdir())[: job.rehearsal_batches]:
            (files / path.name).hardlink_to(path)
    for name in (OUTPUT, PREPARED):
        (data / name).symlink_to(Path(job.data, name))
    rehearsal = msgspec.structs.replace(job, data=str(data), directory=str(directory))
    with running(spark, rehearsal, workload) as query:
        query.awaitTermination()
    shutil.rmtree(directory)


def _start(frame: Any, each_batch: Sink, job: Job, mode: Mode, **options: str) -> StreamingQuery:
    writer = frame.writeStream.outputMode(mode).foreachBatch(each_batch).options(**options)
    writer = writer.option("checkpointLocation", str(Path(job.directory, "checkpoint")))
    query: StreamingQuery = writer.trigger(availableNow=True).start()
    return query


def _arrow_sink(output: Path, on_batch: Callable[[int], None]) -> Sink:
    """Hands the batch's rows to the driver and keeps them in a file: a cheap sink, so that the engine shows."""
    import pyarrow.parquet as pq

    def write(batch: DataFrame, batch_id: int) -> None:
        directory = output / f"batch={batch_id}"
        directory.mkdir(parents=True, exist_ok=True)
        # A repeated batch writes the same file again.
        pq.write_table(batch.toArrow(), directory / "rows.parquet", compression="none", use_dictionary=False)
        on_batch(batch_id)

    return write
