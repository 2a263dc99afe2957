"""How each engine runs a workload. All of them read the same files and end in the same sink."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.bench.feeder import Feeder
from millpond.bench.job import Job
from millpond.bench.live import Live
from millpond.bench.passthrough import Server, batch_share, carrier, live_share
from millpond.bench.rehearsal import prepare_rehearsal
from millpond.bench.slow_storage import SCHEME
from millpond.bench.workload import (
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

__all__ = ["ENGINES", "checkpoint_directory", "rehearse", "running"]

ENGINES = (
    "millpond",
    "spark-rocksdb",
    "spark-rocksdb-default",
    "spark-memory",
    "spark-tws",
    "passthrough",
)
Sink = Callable[["DataFrame", int], None]
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


@contextmanager
def running(
    spark: SparkSession,
    job: Job,
    workload: StreamingWorkload,
    *,
    live: Live | None = None,
    files_per_batch: int = 1,
    after_batch: Callable[[int], None] = lambda _: None,
) -> Iterator[StreamingQuery]:
    """The started query; what the engine needs beside it ends with the block. `live`: it goes on until it is
    stopped, and reads what appears in the watched directories. `after_batch` hears each batch's number."""
    if live is not None:
        Feeder.make_directories(job.watched, workload.streams)
    frames = {
        stream: workload.stream(
            stream,
            _read(
                spark,
                stream_directory(Path(job.data), stream),
                stream_directory(job.watched, stream) if live else None,
                files_per_batch,
            ),
        )
        for stream in workload.streams
    }
    tables = workload.tables(spark)
    sink = _arrow_sink(job.output, after_batch)
    start = partial(_start, job=job, live=live)
    match job.engine:
        case "spark-rocksdb" | "spark-rocksdb-default" | "spark-memory":
            yield start(workload.query(frames | tables), sink, mode=workload.mode)
        case "spark-tws":
            written = workload.tws_query()
            assert written is not None
            yield start(written(frames | tables), sink, mode=workload.mode)
        case "millpond":
            import millpond as mp

            if job.trace_file is not None:
                os.environ[TRACE_FILE] = job.trace_file
            kept = {stream: mp.stream(frame) for stream, frame in frames.items()}
            options = {
                "shards": str(job.shards or job.settings["spark.sql.shuffle.partitions"]),
                "stateLocation": str(Path(job.directory, "state")),
            }
            yield start(workload.query(kept | tables, own=True), sink, mode=workload.mode, options=options)
        case "passthrough":
            yield from _floor(job, workload, frames, workload.query(frames | tables).schema, sink, start)
        case other:
            raise ValueError(f"no engine {other!r}; there are {', '.join(ENGINES)}")


def _read(spark: SparkSession, files: Path, watched: Path | None, files_per_batch: int) -> DataFrame:
    schema = spark.read.parquet(str(files)).schema
    reader = spark.readStream.schema(schema)
    if watched is not None:
        return reader.parquet(str(watched))
    return reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(files))


def _floor(
    job: Job,
    workload: StreamingWorkload,
    frames: dict[str, DataFrame],
    schema: StructType,
    sink: Sink,
    start: Callable[..., StreamingQuery],
) -> Iterator[StreamingQuery]:
    data = Path(job.data)
    if not has_outputs(data):
        raise ValueError("the floor sends back what an engine with state put out, and none has finished yet")
    frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames.values())
    server = Server(data, Path(job.directory))
    try:
        share = live_share(data) if workload.traffic else batch_share(load(data))
        yield start(frame, carrier(server, share, frame, schema, sink), mode="append")
    finally:
        server.stop()


def rehearse(spark: SparkSession, job: Job, workload: StreamingWorkload) -> None:
    """Runs the query over the first batches and forgets it. A JVM interprets first and compiles what runs often:
    without this, a run of a dozen batches is mostly that."""
    if not job.rehearsal_batches:
        return
    files_per_batch = workload.traffic.ticks_per_trigger if workload.traffic else 1
    directory = Path(job.directory, "rehearsal")
    data = directory / "data"
    prepare_rehearsal(Path(job.data), workload, job.rehearsal_batches * files_per_batch, data)
    rehearsal = msgspec.structs.replace(job, data=str(data), directory=str(directory))
    with running(spark, rehearsal, workload, files_per_batch=files_per_batch) as query:
        query.awaitTermination()
    # Spark's stores may still be tidying up their files; what is left goes with the run.
    shutil.rmtree(directory, ignore_errors=True)


def checkpoint_directory(job: Job) -> Path:
    return Path(job.directory, "checkpoint")


def _start(
    frame: Any,
    each_batch: Sink,
    *,
    job: Job,
    live: Live | None,
    mode: Mode,
    options: Mapping[str, str] = NO_OPTIONS,
) -> StreamingQuery:
    writer = frame.writeStream.outputMode(mode).foreachBatch(each_batch).options(**options)
    scheme = f"{SCHEME}://" if job.state_latency_ms else ""
    writer = writer.option("checkpointLocation", f"{scheme}{checkpoint_directory(job)}")
    if live is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(live.trigger_seconds * 1_000)} milliseconds")
    query: StreamingQuery = writer.start()
    return query


def _arrow_sink(output: Path, after_batch: Callable[[int], None]) -> Sink:
    """Hands the batch's rows to the driver and keeps them in a file: a cheap sink, so that the engine shows."""
    import pyarrow.parquet as pq

    def write(batch: DataFrame, batch_id: int) -> None:
        directory = output / f"batch={batch_id}"
        directory.mkdir(parents=True, exist_ok=True)
        # A repeated batch writes the same file again.
        pq.write_table(batch.toArrow(), directory / "rows.parquet", compression="none", use_dictionary=False)
        after_batch(batch_id)

    return write
