"""Where a batch's rows go. Each sink is handed the batch id, and says what it makes of a repeated one.

| sink | a batch that is repeated |
|---|---|
| file formats | skipped, by Spark's own file sink and its `_spark_metadata` log: exactly once |
| memory | skipped, by Spark's own memory sink: exactly once within a run, and a new run begins anew |
| foreachBatch | handed to the function again with the same id and the same rows: the function decides |
| others | written again; the id is in the options `batchId` and `queryId` for writers that look at them |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.jvm import java_class, scala_object

__all__ = [
    "BatchFunctionSink",
    "ConsoleSink",
    "FileSink",
    "MemorySink",
    "Sink",
    "WriterSink",
    "known_format",
    "open_sink",
]

_STREAMING = "org.apache.spark.sql.execution.streaming"
_FILE_FORMATS = {
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat",
    "orc": "org.apache.spark.sql.execution.datasources.orc.OrcFileFormat",
    "json": "org.apache.spark.sql.execution.datasources.json.JsonFileFormat",
    "csv": "org.apache.spark.sql.execution.datasources.csv.CSVFileFormat",
    "text": "org.apache.spark.sql.execution.datasources.text.TextFileFormat",
}
_KNOWN_FORMATS = frozenset((*_FILE_FORMATS, "memory", "console", "noop", "delta"))


def known_format(name: str) -> str:
    """A format's name as this package writes it. Spark's names know no case; others may be names of classes."""
    return name.lower() if name.lower() in _KNOWN_FORMATS else name


class Sink(Protocol):
    def write(self, frame: DataFrame, batch_id: int) -> None: ...


class BatchFunctionSink:
    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def write(self, frame: DataFrame, batch_id: int) -> None:
        self._function(frame, batch_id)


class FileSink:
    """Spark's own exactly-once file sink."""

    def __init__(
        self,
        spark: SparkSession,
        format_: str,
        path: str,
        options: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> None:
        jvm = spark._jvm
        file_format = java_class(jvm, _FILE_FORMATS[format_])()
        utils = jvm.org.apache.spark.api.python.PythonUtils
        columns = jvm.java.util.ArrayList()
        for column in partition_by:
            columns.add(column)
        settings = jvm.java.util.HashMap()
        for name, value in {**options, "path": path}.items():
            settings.put(name, value)
        self._sink = java_class(jvm, f"{_STREAMING}.sinks.FileStreamSink")(
            spark._jsparkSession, path, file_format, utils.toSeq(columns), utils.toScalaMap(settings)
        )

    def write(self, frame: DataFrame, batch_id: int) -> None:
        self._sink.addBatch(batch_id, frame._jdf)


class MemorySink:
    """Spark's own memory sink under the query's name, as a temporary view."""

    def __init__(self, spark: SparkSession, name: str, frame: DataFrame, mode: OutputMode) -> None:
        jvm = spark._jvm
        self._truncate = mode == "complete"
        self._sink = java_class(jvm, f"{_STREAMING}.sources.MemorySink")()
        types = scala_object(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils")
        output = types.toAttributes(frame._jdf.schema())
        plan = java_class(jvm, f"{_STREAMING}.sources.MemoryPlan")(self._sink, output)
        dataset = scala_object(jvm, "org.apache.spark.sql.classic.Dataset")
        dataset.ofRows(spark._jsparkSession, plan).createOrReplaceTempView(name)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        self._sink.write(batch_id, self._truncate, frame._jdf.collect())


class ConsoleSink:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options.get("numRows", "20"))
        self._truncate = options.get("truncate", "true").lower() == "true"

    def write(self, frame: DataFrame, batch_id: int) -> None:
        rule = "-" * 43
        print(f"{rule}\nBatch: {batch_id}\n{rule}")
        frame.show(self._rows, self._truncate)


class WriterSink:
    """Any batch writer of Spark's. It sees the batch id; most writers do not look at it."""

    def __init__(
        self,
        format_: str,
        path: str | None,
        options: Mapping[str, str],
        partition_by: Sequence[str],
        mode: OutputMode,
        query_id: str,
    ) -> None:
        self._format = format_
        self._path = path
        self._options = options
        self._partition_by = partition_by
        self._save_mode = "overwrite" if mode == "complete" else "append"
        self._query_id = query_id

    def write(self, frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format(self._format).mode(self._save_mode).options(**self._options)
        writer = writer.option("batchId", str(batch_id)).option("queryId", self._query_id)
        if self._format == "delta":
            writer = writer.option("txnVersion", str(batch_id)).option("txnAppId", self._query_id)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(self._path)


def open_sink(
    spark: SparkSession,
    frame: DataFrame,
    *,
    format_: str,
    path: str | None,
    options: Mapping[str, str],
    partition_by: Sequence[str],
    mode: OutputMode,
    query_id: str,
    query_name: str | None,
    function: Callable[[DataFrame, int], None] | None,
) -> Sink:
    """The sink that the writer's calls ask for; `frame` is the user's streaming frame, `format_` a `known_format`."""
    if function is not None:
        return BatchFunctionSink(function)
    if format_ in _FILE_FORMATS:
        if path is None:
            raise InvalidQuery(
                f"format {format_!r} needs a path: .option('path', DIRECTORY) or .start(DIRECTORY)"
            )
        if mode != "append":
            raise InvalidQuery(
                f"format {format_!r} takes output mode append, not {mode}: use foreachBatch for {mode}"
            )
        return FileSink(spark, format_, path, options, partition_by)
    if format_ == "memory":
        if query_name is None:
            raise InvalidQuery("format 'memory' needs .queryName(NAME): it is the name of the table")
        return MemorySink(spark, query_name, frame, mode)
    if format_ == "console":
        return ConsoleSink(options)
    return WriterSink(format_, path, options, partition_by, mode, query_id)
