"""The batch loop: begin, ingest, seal, emit, commit, once per micro-batch, inside Spark's `foreachBatch`.

A batch is tried again when the state service or a Python worker died under it. What counts of a try is decided
by the service; what counts of a batch, by its commit record.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millpond._kernel import Overflow
from millpond.errors import Conflict, CorruptState, Fenced, MillpondError, Unavailable
from millpond.semantics.operator import OutputMode
from millpond.semantics.times import Watermarks
from millpond.service.client import ServiceClient
from millpond.service.messages import (
    BatchTry,
    OpenRequest,
    Receipt,
    SaveReply,
    SealReply,
    SealRequest,
    StatsReply,
)
from millpond.service.process import ServiceProcess
from millpond.service.spent import Spent, Stopwatch
from millpond.settings import Settings
from millpond.spark.checkpoint import offsets_digest
from millpond.spark.emit import emitted_frame
from millpond.spark.explain import explained
from millpond.spark.figures import BatchFigures, FigureLog
from millpond.spark.heartbeat import Heartbeat
from millpond.spark.ingester import Ingester, arithmetic_error
from millpond.spark.plan import CutPlan
from millpond.spark.sinks import Sink
from millpond.spark.watermark import WatermarkReader
from millpond.storage.collect import collect
from millpond.storage.delayed import waited_ns
from millpond.storage.protocol import publish_commit
from millpond.storage.records import CommitRecord
from millpond.storage.slotlog import Lease

__all__ = ["BatchLoop"]

# What Spark says when a Python worker was killed, and what tasks say when the service did not answer them.
_PASSING_FAILURES = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "millpond.errors.Unavailable",
    "millpond.errors.Conflict",
)


class BatchLoop:
    """Called by Spark with each micro-batch. One thread calls it; `close` may come from another."""

    def __init__(
        self,
        spark: SparkSession,
        plan: CutPlan,
        mode: OutputMode,
        sink: Sink,
        settings: Settings,
        *,
        location: str,
        lease: Lease,
        service: ServiceProcess,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._mode = mode
        self._sink = sink
        self._settings = settings
        self._location = location
        self._lease = lease
        self._owner = lease.owner
        self._service = service
        self.stats: tuple[StatsReply, ...] = ()
        """Of the newest committed version, one for each operator."""
        self._client = self._open_first_service()
        self._watermark_us = self._earlier_us = 0
        self._heartbeat = Heartbeat(spark) if plan.defers else None
        if lease.newest is not None:
            self._go_on_from(lease.newest)
        self._reader: WatermarkReader | None = None
        self._numbers = itertools.count(1)
        self._saver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="millpond-save")
        self._collector: threading.Thread | None = None
        self._ingester = Ingester(
            spark, plan, settings, self._owner.shard_starts, lambda: self._service.endpoint
        )
        self._closing = threading.Lock()
        self._closed = False
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        # As many as Spark keeps reports of, and one more for the batch whose report is not there yet.
        self.figures = FigureLog(
            1 + int(spark.conf.get("spark.sql.streaming.numRecentProgressUpdates", "100") or 100)
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._run(batch, batch_id)
        except BaseException as error:
            if not self.stopping.is_set():
                self.failure = error
            raise

    def explained(self) -> tuple[int | None, list[dict[str, Any]]]:
        """The newest committed batch, and each operator with the state after it."""
        newest = self._lease.newest
        operators = zip(self._plan.operators, self.stats, strict=True)
        return (
            None if newest is None else newest.batch_id,
            [explained(spec, stats) for spec, stats in operators],
        )

    def close(self) -> None:
        """Ends the service. Called once the carrier query has ended."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._saver.shutdown(wait=True)
        if self._collector is not None:
            self._collector.join()
        try:
            self._client.close()
        finally:
            self._service.stop()

    # One batch

    def _run(self, batch: DataFrame, batch_id: int) -> None:
        streams = self._spark._jsparkSession.streams()
        stream = streams.get(self._owner.query_id).streamingQuery()
        offsets = offsets_digest(stream, batch_id)
        if not self._committed_before(batch_id, offsets):
            self._run_until_done(batch, batch_id, stream, offsets)
        if self._heartbeat is not None:
            # As in Spark: what the watermark has made due is not left waiting for rows.
            self._heartbeat.want(stream, another_batch=self._watermark_us > self._earlier_us)

    def _run_until_done(self, batch: DataFrame, batch_id: int, stream: Any, offsets: str) -> None:
        if self._reader is None:
            self._reader = WatermarkReader(self._spark, stream.logicalPlan(), self._watermark_us)
        figures = BatchFigures(batch_id, operators=tuple(spec.name for spec in self._plan.operators))
        failed: Exception | None = None
        while True:
            figures.tries += 1
            try:
                if failed is not None and self._done_after_all(failed, batch_id, offsets, figures):
                    break
                self._try(batch, batch_id, stream.lastExecution(), offsets, figures)
                break
            except Exception as error:
                if not self._may_retry(error) or self.stopping.is_set():
                    raise
                if figures.tries >= self._settings.batch_tries:
                    raise Unavailable(
                        f"batch {batch_id} failed {figures.tries} times, the last time with: {error}. Start the "
                        "query again from its checkpoint once the cause is gone; nothing is lost"
                    ) from error
                failed = error
        self.figures.add(figures)

    def _committed_before(self, batch_id: int, offsets: str) -> bool:
        newest = self._lease.newest
        if newest is None or batch_id > newest.batch_id:
            return False
        if batch_id < newest.batch_id or newest.offsets_digest != offsets:
            raise CorruptState(
                f"Spark replays batch {batch_id} with offsets that differ from those it was committed with in "
                f"{self._location} (newest batch {newest.batch_id}): restore checkpoint and state from the same time"
            )
        return True

    def _try(
        self, batch: DataFrame, batch_id: int, execution: Any, offsets: str, figures: BatchFigures
    ) -> None:
        at = BatchTry(self._owner.run_id, batch_id, next(self._numbers))
        earlier_us, before_us = self._earlier_us, self._watermark_us
        figures.late_rows, figures.updated_rows, figures.milliseconds = [], [], {}
        figures.spent = Spent()
        self._client.begin(at)
        saving: Future[SaveReply] | None = None
        try:
            session = batch.sparkSession
            with figures.timed("ingest"):
                # The carrier has planned the batch already; only its size tells what is coming.
                size = int(execution.optimizedPlan().stats().sizeInBytes())
                late = [
                    times.late_before_us
                    for times in self._plan.times(Watermarks(earlier_us, before_us, before_us))
                ]
                receipts = self._ingester.from_sources(batch, at, late, size)
            assert self._reader is not None
            watermark_us = self._reader.update(execution.executedPlan())
            figures.input_rows = sum(receipt.input_rows for given in receipts.values() for receipt in given)
            rows: dict[int, Any] = {}
            for operator, times in enumerate(
                self._plan.times(Watermarks(earlier_us, before_us, watermark_us))
            ):
                with figures.timed("ingest"):
                    for side, frame in self._plan.inputs(operator, rows, session):
                        emitted = sum(figures.updated_rows)
                        below = self._ingester.from_operators(
                            frame, at, operator, side, late[operator], emitted
                        )
                        receipts.setdefault(operator, []).extend(below)
                given = tuple(receipts.get(operator, ()))
                figures.late_rows.append(sum(receipt.late_rows for receipt in given))
                with figures.timed("seal"):
                    sealed = self._seal(
                        SealRequest(at, operator, self._mode, given, times.before_us, times.watermark_us)
                    )
                figures.spent += self._encoding(given) + sealed.spent
                figures.updated_rows.append(sum(sealed.output_rows))
                if operator == len(self._plan.operators) - 1:
                    saving = self._saver.submit(self._client.save, at)
                with figures.timed("emit"):
                    rows[operator] = self._emitted(session, at, operator, sealed)
            with figures.timed("emit"):
                self._sink.write(self._plan.result(rows, session), batch_id)
        finally:
            # The service works on the batch until the save ends, whatever became of the rest.
            with figures.timed("waiting"):
                failure = saving.exception() if saving is not None else None
        assert saving is not None
        if failure is not None:
            raise failure
        saved = saving.result()
        figures.written_bytes = saved.written_bytes
        # The save ran beside the sink: only what was waited for it is the batch's time.
        figures.spent += saved.spent.within(figures.milliseconds["waiting"])
        with figures.timed("commit"):
            watch = Stopwatch()
            with watch.on_files("state_write"):
                record = publish_commit(
                    self._lease,
                    batch_id=batch_id,
                    offsets_digest=offsets,
                    input_rows=figures.input_rows,
                    watermark_us_before=before_us,
                    watermark_us=watermark_us,
                    manifest=saved.manifest,
                    committed_at_ms=time.time_ns() // 1_000_000,
                )
            figures.spent += watch.spent()
            figures.watermark_us = watermark_us
            self._go_on_from(record)
            self._after_commit(at, figures)

    def _emitted(self, session: SparkSession, at: BatchTry, operator: int, sealed: SealReply) -> Any:
        """What stands for a sealed operator in the plan above it."""
        emitted, spread = emitted_frame(
            self._plan.catalyst,
            session,
            self._client,
            self._service.endpoint,
            at,
            operator,
            schema=self._plan.emitted_types[operator],
            arrow_schema=self._plan.emitted_schema(operator),
            reshaping=self._plan.reshapings[operator],
            rows_per_shard=sealed.output_rows,
            local_rows=self._settings.local_emit_rows,
        )
        return self._plan.rows(operator, emitted, spread=spread)

    def _go_on_from(self, record: CommitRecord) -> None:
        self._earlier_us, self._watermark_us = record.watermark_us_before or 0, record.watermark_us or 0

    def _after_commit(self, at: BatchTry, figures: BatchFigures) -> None:
        """The batch is done; if the service can't be told, a new one opens from the record."""
        try:
            reply = self._client.commit(at)
        except Unavailable:
            # It may be dead, or live on without having heard of the commit.
            self._replace_service()
            return
        self.stats = figures.stats = reply.stats
        figures.spent += reply.spent
        figures.storage_wait_ns = reply.storage_wait_ns + waited_ns(self._lease.log.storage)
        self._collect(at.batch, frozenset(reply.in_flight))

    def _encoding(self, receipts: tuple[Receipt, ...]) -> Spent:
        """What the tasks spent on it; as they ran side by side, less of it passed."""
        spent = sum((receipt.spent for receipt in receipts), Spent())
        tasks = len({receipt.task for receipt in receipts})
        return (
            spent if tasks < 2 else spent.scaled(1 / min(tasks, self._spark.sparkContext.defaultParallelism))
        )

    def _seal(self, request: SealRequest) -> SealReply:
        try:
            return self._client.seal(request)
        except Overflow as error:
            raise arithmetic_error(str(error)) from error

    # Failures

    def _may_retry(self, error: Exception) -> bool:
        if isinstance(error, Fenced | CorruptState):
            return False
        if isinstance(error, Unavailable | Conflict) or not self._service.alive:
            return True
        return not isinstance(error, MillpondError) and any(text in str(error) for text in _PASSING_FAILURES)

    def _done_after_all(self, failed: Exception, batch_id: int, offsets: str, figures: BatchFigures) -> bool:
        """Before another try: sees to it that there is a service, and whether the batch still has to be done."""
        self._lease.check()
        newest = self._lease.newest
        if newest is not None and self._committed_before(batch_id, offsets):
            # The record was written, only the answer to it was lost.
            self._go_on_from(newest)
            figures.watermark_us = self._watermark_us
            self._replace_service()
            return True
        # A service that was just killed still counts as alive for a moment, so its silence decides.
        silent = isinstance(failed, Unavailable) or "millpond.errors.Unavailable" in str(failed)
        if silent or not self._service.alive:
            self._replace_service()
        return False

    def _replace_service(self) -> None:
        """A new service opens the newest committed version."""
        self._client.close()
        self._service.kill()
        self._service = ServiceProcess()
        try:
            self._client = self._open_service()
        except BaseException:
            self._service.kill()
            raise

    def _open_first_service(self) -> ServiceClient:
        """There is no batch yet whose tries would count, but a service may die now as well."""
        try:
            for _ in range(self._settings.batch_tries - 1):
                try:
                    return self._open_service()
                except Unavailable:
                    self._service.kill()
                    self._service = ServiceProcess()
            return self._open_service()
        except BaseException:
            self._service.kill()
            raise

    def _open_service(self) -> ServiceClient:
        client = self._service.wait_ready()
        reply = client.open(
            OpenRequest(
                location=self._location,
                owner_slot=self._lease.slot,
                operators=self._plan.operators,
                shard_starts=self._owner.shard_starts,
                commit=self._lease.newest,
                settings=self._settings,
            )
        )
        self.stats = reply.stats
        return client

    # Old versions

    def _collect(self, settled_batch: int, in_flight: frozenset[str]) -> None:
        if self._collector is not None and self._collector.is_alive():
            return
        storage = self._lease.log.storage

        def run() -> None:
            try:
                collect(
                    storage,
                    self._lease,
                    keep_versions=self._settings.keep_versions,
                    protected=in_flight,
                    settled_batch=settled_batch,
                )
            except Fenced:
                pass  # the next commit says so where the user sees it
            except (MillpondError, OSError):
                pass  # what is left behind is found again after the next commit

        self._collector = threading.Thread(target=run, name="millpond-collect", daemon=True)
        self._collector.start()
