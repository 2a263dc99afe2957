"""`writeStream` on a wrapped stream: the calls of Spark's DataStreamWriter, ending in a query of Millpond's."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from millpond._kernel import BUCKETS
from millpond.errors import InvalidQuery
from millpond.semantics.compare import differences
from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.service.process import ServiceProcess
from millpond.settings import Settings
from millpond.spark.checkpoint import Checkpoint, open_checkpoint
from millpond.spark.loop import BatchLoop
from millpond.spark.plan import cut
from millpond.spark.query import MillpondQuery
from millpond.spark.sinks import Sink, known_format, open_sink
from millpond.storage.protocol import verify_start
from millpond.storage.slotlog import Head, SlotLog
from millpond.storage.store import open_storage

__all__ = ["StreamWriter"]

_MODES: dict[str, OutputMode] = {"append": "append", "update": "update", "complete": "complete"}
_OWN_OPTIONS = ("checkpointlocation", "statelocation", "shards", "path", "queryname")
_NEEDS_NO_CHECKPOINT = ("memory", "console", "noop")
_STOP_ACTIVE_RUN = "spark.sql.streaming.stopActiveRunOnRestart"


class StreamWriter:
    """Options of Millpond's own: `stateLocation`, `shards`, and the settings whose names begin with `millpond.`."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._mode: OutputMode = "append"
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._partition_by: tuple[str, ...] = ()
        self._trigger: dict[str, Any] = {}
        self._name: str | None = None
        self._function: Callable[[DataFrame, int], None] | None = None

    def outputMode(self, outputMode: str) -> StreamWriter:
        mode = _MODES.get(str(outputMode).lower())
        if mode is None:
            raise InvalidQuery(f"output mode {outputMode!r}: it is append, update or complete")
        self._mode = mode
        return self

    def format(self, source: str) -> StreamWriter:
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        # Spark's options know no case.
        for same in [name for name in self._options if name.lower() == key.lower()]:
            del self._options[same]
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def _option(self, key: str) -> str | None:
        return next((value for name, value in self._options.items() if name.lower() == key.lower()), None)

    def options(self, **options: Any) -> StreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: str | list[str]) -> StreamWriter:
        self._partition_by = tuple(
            name for column in cols for name in ([column] if isinstance(column, str) else column)
        )
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        self._name = queryName
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> StreamWriter:
        if continuous is not None or realTime is not None:
            raise InvalidQuery("Millpond runs micro-batches: use processingTime, availableNow or once")
        given = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        self._trigger = {name: value for name, value in given.items() if value is not None}
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> StreamWriter:
        self._function = func
        return self

    def foreach(self, f: Any) -> StreamWriter:
        raise InvalidQuery(
            f"foreach({getattr(f, '__name__', type(f).__name__)}) is not supported: use foreachBatch and write the "
            "batch's rows from there"
        )

    def toTable(self, tableName: str) -> StreamWriter:
        raise InvalidQuery(
            f"toTable({tableName!r}) is not supported: use foreachBatch with write.saveAsTable, or a path"
        )

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> MillpondQuery:
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if path is not None:
            self.option("path", path)
        self._format = format or self._format
        self._name = queryName or self._name or self._option("queryName")
        return self._start()

    def _start(self) -> MillpondQuery:
        """Whatever can be refused is refused before the log is taken, because that ends the query that has it: it may
        be running well, and would go on where Spark refuses a second one."""
        spark = self._frame.sparkSession
        settings = Settings.resolve(self._options, lambda name: spark.conf.get(name, None), os.environ)
        plan = cut(self._frame, self._mode)
        with ExitStack() as undo:
            service = ServiceProcess()
            undo.callback(service.kill)
            location, temporary = self._checkpoint_location(spark)
            if temporary is not None:
                undo.callback(shutil.rmtree, temporary, ignore_errors=True)
            checkpoint = open_checkpoint(spark, location)
            _refuse_second(spark, self._name, checkpoint)
            carrier = self._carrier(plan.carrier.source, location)
            state = self._option("stateLocation") or f"{location.rstrip('/')}/millpond"
            log = SlotLog(open_storage(state, settings.storage_latency_ms))
            head = log.head()
            self._verify(spark, checkpoint, state, head, plan.operators)
            shard_starts = self._shard_starts(spark, head)
            # The last that may refuse: the memory sink puts an empty table in the place of one that is there.
            sink = self._sink(spark, checkpoint)
            lease = log.take(
                query_id=checkpoint.query_id,
                run_id=str(uuid.uuid4()),
                driver=f"{socket.gethostname()} process {os.getpid()}",
                operators=plan.operators,
                shard_starts=shard_starts,
                taken_at_ms=time.time_ns() // 1_000_000,
            )
            loop = BatchLoop(
                spark, plan, self._mode, sink, settings, location=state, lease=lease, service=service
            )
            undo.callback(loop.close)
            query = carrier.foreachBatch(loop).start()
            undo.pop_all()
        return MillpondQuery(query._jsq, loop, temporary)

    def _carrier(self, source: DataFrame, location: str) -> DataStreamWriter:
        carrier = source.writeStream.option("checkpointLocation", location)
        if self._trigger:
            carrier = carrier.trigger(**self._trigger)
        return carrier if self._name is None else carrier.queryName(self._name)

    def _sink(self, spark: SparkSession, checkpoint: Checkpoint) -> Sink:
        return open_sink(
            spark,
            self._frame,
            format_=self._sink_format(spark),
            path=self._option("path"),
            options={
                name: value
                for name, value in self._options.items()
                if name.lower() not in _OWN_OPTIONS and not name.lower().startswith("millpond.")
            },
            partition_by=self._partition_by,
            mode=self._mode,
            query_id=checkpoint.query_id,
            query_name=self._name,
            function=self._function,
        )

    def _sink_format(self, spark: SparkSession) -> str:
        return known_format(self._format or str(spark.conf.get("spark.sql.sources.default")))

    def _checkpoint_location(self, spark: SparkSession) -> tuple[str, Path | None]:
        """The checkpoint's location, and the directory to remove afterwards if it is a temporary one."""
        location = self._option("checkpointLocation")
        if location:
            return location, None
        base = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if base:
            return f"{base.rstrip('/')}/{self._name or uuid.uuid4()}", None
        if self._function is None and self._sink_format(spark) not in _NEEDS_NO_CHECKPOINT:
            raise InvalidQuery(
                "checkpointLocation must be specified either through option('checkpointLocation', DIR) or "
                "the setting spark.sql.streaming.checkpointLocation"
            )
        temporary = Path(tempfile.mkdtemp(prefix="millpond-checkpoint-"))
        return str(temporary), temporary

    def _verify(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        state: str,
        head: Head,
        operators: tuple[OperatorSpec, ...],
    ) -> None:
        """Checks that state, checkpoint and query belong together."""
        verify_start(
            head,
            spark_last_committed_batch=checkpoint.last_committed_batch,
            spark_query_id=checkpoint.query_id,
            checkpoint_is_new=checkpoint.is_new,
            location=state,
        )
        if head.newest is not None and self._function is None and self._sink_format(spark) == "memory":
            self._refuse_lost_rows(checkpoint.location)
        if head.newest is not None and head.owner is not None:
            changed = differences(head.owner.operators, operators)
            if changed:
                raise InvalidQuery(
                    f"the query differs from the one whose state is in {state}: {'; '.join(changed)}. Start the "
                    "changed query with a new checkpoint and an empty state directory"
                )

    def _refuse_lost_rows(self, location: str) -> None:
        if self._mode != "complete":
            raise InvalidQuery(
                f"the memory sink does not keep the rows of earlier runs, so in output mode {self._mode} it can't go "
                f"on from the checkpoint {location}: leave checkpointLocation out, use a new one, or another sink"
            )

    def _shard_starts(self, spark: SparkSession, head: Head) -> tuple[int, ...]:
        wanted = self._option("shards")
        if wanted is not None and not (wanted.isdigit() and 1 <= int(wanted) <= BUCKETS):
            raise InvalidQuery(f"option shards = {wanted!r}: it is a number from 1 to {BUCKETS}")
        if head.newest is not None and head.owner is not None:
            kept = head.owner.shard_starts
            if wanted is not None and int(wanted) != len(kept):
                raise InvalidQuery(
                    f"option shards = {wanted}: the state has {len(kept)} shards, and their number can't be "
                    "changed yet; leave the option out or start with a new checkpoint"
                )
            return kept
        shards = int(wanted) if wanted is not None else spark.sparkContext.defaultParallelism
        shards = min(shards, BUCKETS)
        return tuple(shard * BUCKETS // shards for shard in range(shards))


def _refuse_second(spark: SparkSession, name: str | None, checkpoint: Checkpoint) -> None:
    """What Spark refuses when a query starts beside one that is active, in its words."""
    if name is not None and any(active.name == name for active in spark.streams.active):
        raise InvalidQuery(
            f"Cannot start query with name {name} as a query with that name is already active in this SparkSession. "
            "Stop it first, or choose another queryName"
        )
    if spark.conf.get(_STOP_ACTIVE_RUN) == "true":
        return
    active = spark._jsparkSession.sharedState().activeStreamingQueries()
    if active.containsKey(spark._jvm.java.util.UUID.fromString(checkpoint.query_id)):
        raise InvalidQuery(
            f"Cannot start query with id {checkpoint.query_id} as another query with same id is already active on "
            f"the checkpoint {checkpoint.location}. Stop it first, or set {_STOP_ACTIVE_RUN} to true"
        )
