"""Brings a batch's rows to the state service: by a Spark job whose tasks send them, or, where they are few, through
the driver, which spares the way through Spark's Python workers.

How many rows a batch has is not known before it is read; the batch before it tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from millpond.errors import InvalidQuery
from millpond.semantics.operator import OperatorSpec
from millpond.service.messages import BatchTry, Endpoint, Receipt
from millpond.settings import Settings
from millpond.spark.handover import Handover
from millpond.spark.ingest import (
    RECEIPTS,
    FeedOrder,
    IngestOrder,
    TaskReceipts,
    ingest,
    ingest_task,
    read_receipts,
)
from millpond.spark.plan import CutPlan
from millpond.spark.precombine import Precombiner, PrecombineSwitch

__all__ = ["Ingester", "arithmetic_error"]

_DRIVER = -1
"""The driver in the place of a task and its attempt; Spark's numbers begin at 0."""

_RECEIPTS = StructType([StructField(RECEIPTS, BinaryType())])
_SIZE_UNKNOWN = 1 << 60
"""What Spark says of the bytes of a batch whose source does not tell is more than this."""
_MOST_TIMES = 4
"""Batches of such a source may be larger than the one before; the driver takes no more than this many times what it
was asked to take."""
_REFUSED = re.compile(r"millpond\.errors\.InvalidQuery: (.*)")
"""What a task says when a function of the query gave what can't be used."""


class Ingester:
    def __init__(
        self,
        spark: SparkSession,
        plan: CutPlan,
        settings: Settings,
        shard_starts: tuple[int, ...],
        endpoint: Callable[[], Endpoint],
    ) -> None:
        self._cores = spark.sparkContext.defaultParallelism
        self._plan = plan
        self._settings = settings
        self._shard_starts = shard_starts
        self._endpoint = endpoint
        self._handover = Handover(plan.catalyst, plan.carrier.source)
        self._last_size: tuple[int, int] | None = None
        self._switches = [PrecombineSwitch() for _ in plan.operators]
        self._precombiners = [
            None if form is None else Precombiner(plan.catalyst, form, spec.input_schema, plan.widths(i, 0))
            for i, (form, spec) in enumerate(zip(plan.precombined, plan.operators, strict=True))
        ]

    def from_sources(
        self, batch: DataFrame, at: BatchTry, late_before_us: Sequence[int], size: int
    ) -> dict[int, list[Receipt]]:
        """`late_before_us`: for each operator; `size`: bytes of the batch, as Spark estimates them. Returns receipts
        by operator."""
        rows = self._expected_rows(size)
        sure = size < _SIZE_UNKNOWN
        feeds = self._plan.carrier.feeds
        if len(feeds) == 1:
            operator, side = feeds[0].operator, feeds[0].side
            receipts = {operator: self._one(batch, at, operator, side, late_before_us[operator], rows, sure)}
        else:
            orders = tuple(
                self._feed(feed.operator, feed.side, feed.columns, late_before_us[feed.operator])
                for feed in feeds
            )
            receipts = {}
            for operator, receipt in self._run(self._coalesced(batch, rows), at, orders, rows, sure):
                receipts.setdefault(operator, []).append(receipt)
        total = sum(receipt.input_rows for given in receipts.values() for receipt in given)
        if total:
            self._last_size = (size, total)
        return receipts

    def from_operators(
        self, frame: DataFrame, at: BatchTry, operator: int, side: int, late_before_us: int, emitted: int
    ) -> list[Receipt]:
        """Rows that operators below emitted in this batch: so many, before what stands between."""
        return self._one(frame, at, operator, side, late_before_us, emitted, sure=False)

    def _one(
        self,
        frame: DataFrame,
        at: BatchTry,
        operator: int,
        side: int,
        late_before_us: int,
        rows: int | None,
        sure: bool,
    ) -> list[Receipt]:
        """The rows of one input, combined by Spark first where that pays. `rows`: how many are expected; `sure`: it
        won't be many more."""
        precombiner, switch = self._precombiners[operator], self._switches[operator]
        spec, weight = self._plan.operators[operator], None
        frame = self._coalesced(frame, rows)
        if precombiner is not None and switch.on:
            frame = precombiner.combined(frame)
            spec, weight = precombiner.form.spec, precombiner.form.weight
            rows, sure = switch.groups, False
        columns = tuple(range(len(frame.columns)))
        feed = self._feed(operator, side, columns, late_before_us, spec, weight)
        receipts = [receipt for _, receipt in self._run(frame, at, (feed,), rows, sure)]
        switch.note(
            sum(receipt.input_rows for receipt in receipts),
            sum(sum(receipt.staged_rows) for receipt in receipts),
        )
        return receipts

    def _feed(
        self,
        operator: int,
        side: int,
        columns: tuple[int, ...],
        late_before_us: int,
        spec: OperatorSpec | None = None,
        weight: int | None = None,
    ) -> FeedOrder:
        spec = spec or self._plan.operators[operator]
        widths = self._plan.widths(operator, side) if weight is None else ()
        late = late_before_us if spec.drops_late_rows else None
        return FeedOrder(operator, side, spec, columns, widths, late, weight)

    def _run(
        self, frame: DataFrame, at: BatchTry, feeds: tuple[FeedOrder, ...], rows: int | None, sure: bool
    ) -> list[tuple[int, Receipt]]:
        order = IngestOrder(self._endpoint(), at, self._shard_starts, feeds)
        try:
            through_driver = None
            if rows is not None and rows <= self._settings.local_ingest_rows:
                through_driver = self._through_driver(frame, order, sure)
            if through_driver is not None:
                done = [through_driver]
            else:
                tasks = self._handover.run(frame, ingest_task(order), _RECEIPTS)
                done = [read_receipts(row[0]) for row in tasks]
        except PythonException as error:
            refused = _REFUSED.search(str(error))
            if refused is None:
                raise
            operators = ", ".join(dict.fromkeys(feed.spec.name for feed in feeds))
            raise InvalidQuery(f"{operators}, batch {at.batch}: {refused[1]}") from error
        receipts = [pair for task in done for pair in task.receipts]
        overflow = next((receipt.overflow for _, receipt in receipts if receipt.overflow), None)
        if overflow is not None:
            raise arithmetic_error(overflow)
        return receipts

    def _through_driver(self, frame: DataFrame, order: IngestOrder, sure: bool) -> TaskReceipts | None:
        """None: the rows turned out to be many more than the driver should hold."""
        most = _MOST_TIMES * self._settings.local_ingest_rows
        if not sure:
            frame = self._plan.catalyst.limited_per_task(frame, most + 1)
        batches = frame._collect_as_arrow()
        if not sure and sum(batch.num_rows for batch in batches) > most:
            return None
        return ingest(order, _DRIVER, _DRIVER, batches, in_files=False)

    def _coalesced(self, frame: DataFrame, rows: int | None) -> DataFrame:
        """In as many tasks as the rows are worth."""
        if rows is None:
            return frame
        tasks = max(1, -(-rows // self._settings.rows_per_task))
        return frame.coalesce(tasks) if tasks < self._cores else frame

    def _expected_rows(self, size: int) -> int | None:
        """Judged by the rows of the batch before; None: there was none."""
        if self._last_size is None:
            return None
        last_size, last_rows = self._last_size
        return int(last_rows * size / max(last_size, 1))


def arithmetic_error(text: str) -> ArithmeticException:
    return ArithmeticException(
        f"[ARITHMETIC_OVERFLOW] {text}. Use 'try_sum' to tolerate overflow and return NULL instead, or set "
        '"spark.sql.ansi.enabled" to "false" to bypass this error.'
    )
