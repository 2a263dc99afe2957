"""Small streams for every query, the answers of a query over them, and the sentinels that close all windows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import millpond as mp
from millpond.workloads.cluster_monitoring import ClusterMonitoring
from millpond.workloads.linear_road import LinearRoad
from millpond.workloads.logistics import Logistics
from millpond.workloads.nexmark import Nexmark
from millpond.workloads.queries.query import PaperQuery, Windows
from millpond.workloads.readwrite import ReadWrite
from millpond.workloads.ysb import Ysb
from tests.streams import write_batches

SEED = 1
FAR = datetime(2035, 1, 1, tzinfo=UTC)
"""When the sentinels happen: all other windows are closed by then, their own are not."""
_numbers = itertools.count()
_WINDOWS = Windows()


def generated() -> dict[str, pa.Table]:
    """Each stream's rows, slow enough that a few thousand events fill several windows."""
    # Java's random numbers begin alike for neighbouring seeds: NEXMark's first events all choose the hot auctions.
    events = pa.table(Nexmark(rate=100, active_people=40, in_flight_auctions=20).batch(50_000, 3_000))
    shipping = pa.table(Logistics(rate=100, seed=SEED, repeat_within=50, open_orders=200).batch(0, 2_000))
    return {
        "bids": _part(events, "bid"),
        "auctions": _part(events, "auction"),
        "persons": _part(events, "person"),
        # Each vehicle reports every 10 s, so that windows of 30 s hold several of its reports.
        "positions": pa.table(LinearRoad(rate=10, vehicles=100, highways=2, seed=SEED).batch(0, 400)),
        "tasks": pa.table(ClusterMonitoring(rate=50, jobs=40, seed=SEED).batch(0, 2_000)),
        "records": pa.table(ReadWrite(ids=300, padding_bytes=8, seed=SEED).batch(0, 2_000)),
        "ads": pa.table(Ysb(rate=100, seed=SEED).batch(0, 3_000)),
        "orders": _part(shipping, "order"),
        "shipments": _part(shipping, "shipment"),
    }


def _part(events: pa.Table, kind: str) -> pa.Table:
    column = events[kind].combine_chunks()
    return pa.Table.from_struct_array(column.filter(column.is_valid()))


def sentinel(name: str, rows: pa.Table) -> pa.Table:
    """A row far in the future, about things that no other row is about."""
    row = rows.slice(0, 1).to_pylist()[0] | _WANTED.get(name, {})
    for number, (column, value) in enumerate(row.items()):
        if isinstance(value, datetime):
            row[column] = FAR + timedelta(seconds=column == "expires")
        elif column in _IDS:
            # Negative, and another number in every stream.
            row[column] = -1_000_001 - 2 * number - 100 * STREAMS.index(name)
    return pa.Table.from_pylist([row], schema=rows.schema)


STREAMS = ("bids", "auctions", "persons", "positions", "tasks", "records", "ads", "orders", "shipments")
_IDS = {"auction", "bidder", "id", "seller", "vehicle", "job", "order_id"}
_WANTED: dict[str, dict[str, Any]] = {"tasks": {"event_type": 1}, "ads": {"event_type": "view"}}
"""Spark filters before it looks at the time: a row that is filtered out moves no watermark."""


@dataclass(frozen=True)
class Streams:
    """The streams as files, two of events and one with the sentinel each."""

    spark: SparkSession
    directory: Path
    rows: Mapping[str, pa.Table]
    """With the sentinels."""

    @staticmethod
    def write(spark: SparkSession, directory: Path) -> Streams:
        rows = {}
        for name, table in generated().items():
            half, last = table.num_rows // 2, sentinel(name, table)
            write_batches(directory / name, [table.slice(0, half), table.slice(half), last])
            rows[name] = pa.concat_tables([table, last])
        return Streams(spark, directory, rows)

    def result(
        self, query: PaperQuery, windows: Windows = _WINDOWS, *, streaming: bool, millpond: bool = False
    ) -> Any:
        """The frame of a query over the streams, with the columns that it says it reads."""
        frames: dict[str, Any] = {}
        for name in query.streams:
            schema = from_arrow_schema(self.rows[name].schema)
            reader = self.spark.readStream if streaming else self.spark.read
            if streaming:
                reader = reader.option("maxFilesPerTrigger", 1)
            frame = reader.schema(schema).parquet(str(self.directory / name))
            frame = frame.select(*query.columns.get(name, schema.names))
            frames[name] = mp.stream(frame) if millpond else frame
        tables = {name: self.spark.createDataFrame(make(SEED)) for name, make in query.tables.items()}
        form = query.own if millpond and query.own is not None else query.plain
        return form({**frames, **tables}, windows)

    def started(
        self,
        query: PaperQuery,
        windows: Windows = _WINDOWS,
        *,
        millpond: bool = False,
        until_now: bool = True,
    ) -> Run:
        """The query under way over all that there is, or, if not only until now, also over what is to come."""
        outputs: list[list[Any]] = []

        def take(frame: DataFrame, _: int) -> None:
            outputs.append(frame.collect())

        frame = self.result(query, windows, streaming=True, millpond=millpond)
        writer = frame.writeStream.outputMode(query.mode).foreachBatch(take)
        if until_now:
            writer = writer.trigger(availableNow=True)
        checkpoint = self.directory / f"checkpoint-{next(_numbers)}"
        running = writer.option("checkpointLocation", str(checkpoint)).start()
        return Run(query, running, outputs)

    def batch(self, query: PaperQuery) -> list[Any]:
        """What Spark gives for all rows at once."""
        return closed(self.result(query, streaming=False).collect())


@dataclass(frozen=True)
class Run:
    query: PaperQuery
    running: Any
    outputs: list[list[Any]]

    def answer(self) -> list[Any]:
        """What stands at the end: all rows, the last of each key, or in complete mode the last output, in order."""
        try:
            self.running.awaitTermination()
        finally:
            self.running.stop()
        match self.query.mode:
            case "append":
                return closed(itertools.chain(*self.outputs))
            case "update":
                rows = itertools.chain(*self.outputs)
                return closed({tuple(row[key] for key in self.query.keys): row for row in rows}.values())
            case "complete":
                return in_order(self.outputs[-1])


def closed(rows: Iterable[Any]) -> list[Any]:
    """Rows as they compare, in an order of their own."""
    return sorted(in_order(rows), key=repr)


def in_order(rows: Iterable[Any]) -> list[Any]:
    """Rows as they compare, without those about a sentinel's time: a batch sees its window, a stream not yet."""
    return [row for row in map(_plain, rows) if not _is_far(row)]


def _is_far(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_far, value))
    return isinstance(value, datetime) and value.year >= FAR.year - 1


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    # Spark gives times of the local zone without saying so.
    return value.astimezone(UTC) if isinstance(value, datetime) else value
