"""The generators as data sources of Spark, for streams and batches. An offset is an event number, so a restarted
query reads the same rows again.

Spark runs these classes in its Python workers: they hold plain settings and make their generators where they read.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millpond.workloads.cluster_monitoring import ClusterMonitoring
from millpond.workloads.draws import event_numbers
from millpond.workloads.linear_road import LinearRoad
from millpond.workloads.logistics import Logistics
from millpond.workloads.nexmark import Nexmark
from millpond.workloads.readwrite import ReadWrite
from millpond.workloads.traffic import Traffic
from millpond.workloads.ysb import Ysb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["SOURCES", "Generator", "Reading", "register"]

EVENTS_AT_A_TIME = 32_768
"""Fewer rows a batch cost Spark more for each; more of them gain nothing."""


class Generator(Protocol):
    """Events by number, and when each is due."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def traffic(self) -> Traffic: ...
    def batch(self, first: int, count: int) -> pa.RecordBatch: ...


class Reading(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which events are read, and how fast.

    At full speed a batch of a stream has `events_per_batch`. A `live` stream has what is due by now; event number
    `first_event` is due at `started_at_ms`, or, where that is not given, the first event read is due at once.
    """

    first_event: int = 0
    total_events: int | None = None
    events_per_batch: int | None = None
    partitions: int | None = None
    live: bool = False
    started_at_ms: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("firstEvent", self.first_event, 0),
            ("totalEvents", self.total_events, 0),
            ("eventsPerBatch", self.events_per_batch, 1),
            ("partitions", self.partitions, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if self.started_at_ms is not None and not self.live:
            raise ValueError("startedAtMs says when a live stream begins: set live to true, or leave it out")

    @property
    def end(self) -> int | None:
        """The first event after the last one; None where there is no last."""
        return None if self.total_events is None else self.first_event + self.total_events

    @property
    def batch_limit(self) -> int | None:
        """Most events of a batch. At full speed there has to be one."""
        return self.events_per_batch or (None if self.live else 100_000)

    def cut(self, start: int, end: int) -> list[InputPartition]:
        """Ranges of nearly the same size, none of them empty."""
        parts = min(self.partitions or len(os.sched_getaffinity(0)), end - start)
        borders = [start + (end - start) * part // parts for part in range(parts)] + [end] if parts else []
        return [InputPartition(pair) for pair in itertools.pairwise(borders)]


class _Source(DataSource):
    """Options are those of `Reading` and of the workload's settings, in Spark's case."""

    settings_type: type[Any]
    short_name: str

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {
            field.encode_name.lower(): (kind, field)
            for kind in (Reading, self.settings_type)
            for field in msgspec.structs.fields(kind)
        }
        given: dict[type[Any], dict[str, Any]] = {Reading: {}, self.settings_type: {}}
        for name, value in options.items():
            if name.lower() not in known:
                names = ", ".join(sorted(field.encode_name for _, field in known.values()))
                raise ValueError(f"source {self.short_name} has no option {name!r}; it has {names}")
            kind, field = known[name.lower()]
            several = field.type == tuple[str, ...]
            given[kind][field.encode_name] = (
                [part.strip() for part in value.split(",")] if several else _number_or_text(value)
            )
        try:
            self.reading = msgspec.convert(given[Reading], Reading, strict=False)
            self.generator: Generator = msgspec.convert(
                given[self.settings_type], self.settings_type, strict=False
            )
        except msgspec.ValidationError as error:
            raise ValueError(f"source {self.short_name}: {error}") from error

    @classmethod
    def name(cls) -> str:
        return cls.short_name

    def schema(self) -> StructType:
        return from_arrow_schema(self.generator.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._refuse_other(schema)
        return _BatchReader(self.reading, self.generator)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        self._refuse_other(schema)
        return _StreamReader(self.reading, self.generator)

    def _refuse_other(self, schema: StructType) -> None:
        if schema != self.schema():
            raise ValueError(f"source {self.short_name} has a schema of its own; leave out schema(...)")


def _number_or_text(value: str) -> str:
    """Numbers as people write them: 10_000 is 10000."""
    plain = value.strip().replace("_", "")
    return plain if plain.isdigit() else value.strip()


def _read(generator: Generator, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    start, end = partition.value
    for first in range(start, end, EVENTS_AT_A_TIME):
        yield generator.batch(first, min(EVENTS_AT_A_TIME, end - first))


class _BatchReader(DataSourceReader):
    def __init__(self, reading: Reading, generator: Generator) -> None:
        if reading.end is None:
            raise ValueError("a batch needs an end: set the option totalEvents")
        if reading.live:
            raise ValueError("only a stream can be live")
        self._range = reading.first_event, reading.end
        self._reading, self._generator = reading, generator

    def partitions(self) -> list[InputPartition]:
        start, end = self._range
        # Spark makes one partition of none.
        return self._reading.cut(start, end) or [InputPartition((start, start))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._generator, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: Reading, generator: Generator) -> None:
        self._reading, self._generator = reading, generator
        self._started_us = None if reading.started_at_ms is None else reading.started_at_ms * 1_000
        self._target: int | None = None
        self._until_now = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"event": self._reading.first_event}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._reading.batch_limit
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        if self._reading.end is None and not self._reading.live:
            raise ValueError(
                "the stream has no end, so `availableNow` would not stop: set the option totalEvents"
            )
        self._until_now = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        at = start["event"]
        end = self._available(at)
        if isinstance(limit, ReadMaxRows):
            most = at + limit.max_rows
        else:
            # All that is there, of a stream without end: a batch of it.
            most = at + (self._reading.batch_limit or 0) if end is None else end
        return {"event": max(at, most if end is None else min(end, most))}

    def _available(self, at: int) -> int | None:
        """The first event that can't be read yet; None where there is none."""
        if self._target is not None:
            return self._target
        end = self._reading.end
        if self._reading.live:
            due = self._due(at)
            end = due if end is None else min(due, end)
        if self._until_now:
            self._target = end
        return end

    def _due(self, at: int) -> int:
        first, traffic = self._reading.first_event, self._generator.traffic
        now_us = time.time_ns() // 1_000
        if self._started_us is None:
            self._started_us = now_us - int(traffic.due_us(event_numbers(at - first, 1))[0])
        return first + traffic.available(now_us - self._started_us)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._reading.cut(start["event"], end["event"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._generator, partition)


class _NexmarkSource(_Source):
    short_name, settings_type = "nexmark", Nexmark


class _LinearRoadSource(_Source):
    short_name, settings_type = "linear-road", LinearRoad


class _ClusterMonitoringSource(_Source):
    short_name, settings_type = "cluster-monitoring", ClusterMonitoring


class _YsbSource(_Source):
    short_name, settings_type = "ysb", Ysb


class _ReadWriteSource(_Source):
    short_name, settings_type = "readwrite", ReadWrite


class _LogisticsSource(_Source):
    short_name, settings_type = "logistics", Logistics


SOURCES: tuple[type[_Source], ...] = (
    _NexmarkSource,
    _LinearRoadSource,
    _ClusterMonitoringSource,
    _YsbSource,
    _ReadWriteSource,
    _LogisticsSource,
)


def register(spark: SparkSession) -> None:
    """Makes the sources known to a session by their short names."""
    for source in SOURCES:
        spark.dataSource.register(source)
