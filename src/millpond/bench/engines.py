"""How each engine runs a workload. All of them read the same files and end in the same sink."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.bench.job import Job
from millpond.bench.passthrough import Server, carrier
from millpond.bench.workload import StreamingWorkload, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["ENGINES", "rehearse", "running"]

ENGINES = ("millpond", "spark-rocksdb", "spark-memory", "passthrough")


@contextmanager
def running(spark: SparkSession, job: Job, workload: StreamingWorkload) -> Iterator[StreamingQuery]:
    """The started query; what the engine needs beside it ends with the block."""
    files = str(Path(job.data, "input"))
    schema = spark.read.parquet(files).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(files)
    sink = _arrow_sink(job.output)
    query = workload.query
    match job.engine:
        case "spark-rocksdb" | "spark-memory":
            yield _start(query(frame), sink, job)
        case "millpond":
            import millpond as mp

            yield _start(query(mp.stream(frame)), sink, job)
        case "passthrough":
            server = Server(Path(job.data), Path(job.directory))
            output_schema = query(frame).schema.simpleString().removeprefix("struct<").removesuffix(">")
            one_batch = carrier(server, load(Path(job.data)), frame.columns, output_schema, sink)
            try:
                yield _start(frame, one_batch, job)
            finally:
                server.stop()
        case other:
            raise ValueError(f"no engine {other!r}; there are {', '.join(ENGINES)}")


def rehearse(spark: SparkSession, job: Job, workload: StreamingWorkload) -> None:
    """Runs the query over the first batches and forgets it. A JVM interprets first and compiles what runs often:
    without this, a run of a dozen batches is mostly that."""
    if not job.rehearsal_batches:
        return
    directory = Path(job.directory, "rehearsal")
    data = directory / "data"
    (data / "input").mkdir(parents=True)
    for path in sorted(Path(job.data, "input").iterdir())[: job.rehearsal_batches]:
        (data / "input" / path.name).hardlink_to(path)
    for name in ("output", "prepared.json"):
        (data / name).symlink_to(Path(job.data, name))
    rehearsal = msgspec.structs.replace(job, data=str(data), directory=str(directory))
    with running(spark, rehearsal, workload) as query:
        query.awaitTermination()
    shutil.rmtree(directory)


def _start(frame: Any, each_batch: Callable[[DataFrame, int], None], job: Job) -> StreamingQuery:
    writer = frame.writeStream.outputMode("update").foreachBatch(each_batch)
    writer = writer.option("checkpointLocation", str(Path(job.directory, "checkpoint")))
    query: StreamingQuery = writer.trigger(availableNow=True).start()
    return query


def _arrow_sink(output: Path) -> Callable[[DataFrame, int], None]:
    """Hands the batch's rows to the driver and keeps them in a file: a cheap sink, so that the engine shows."""
    import pyarrow.parquet as pq

    def write(batch: DataFrame, batch_id: int) -> None:
        directory = output / f"batch={batch_id}"
        directory.mkdir(parents=True, exist_ok=True)
        # A repeated batch writes the same file again.
        pq.write_table(batch.toArrow(), directory / "rows.parquet", compression="none", use_dictionary=False)

    return write
