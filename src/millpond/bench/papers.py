"""The papers' queries as workloads of the harness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa

from millpond.bench.flink.papers import FLINK_FORMS
from millpond.bench.flink.query import FlinkQuery
from millpond.bench.live import Live
from millpond.bench.workload import StreamingWorkload
from millpond.workloads.lines import Form, parsed_stream
from millpond.workloads.queries.catalog import QUERIES
from millpond.workloads.queries.query import Mode, PaperQuery, Windows
from millpond.workloads.scales import EVENTS_PER_SECOND, Shape, Size, batches, closing_rows, filling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Paper"]

CLOSING_BATCHES = 3
"""One moves the watermark; Spark fires in the batch after, and a second operator one batch later still."""


class Paper(StreamingWorkload, frozen=True, kw_only=True, tag="paper"):
    """One query at one size. `window_seconds` and `slide_seconds` at 0: as the query's source says."""

    query_name: str
    size: Size = "large"
    events: int = 6_000_000
    batch_events: int = 500_000
    events_per_second: int = EVENTS_PER_SECOND
    window_seconds: int = 0
    slide_seconds: int = 0
    keys: int = 0
    """Active keys; 0: as the size says."""
    hot_ratio: int = 0
    """One event in so many is about a key that is not hot; 0: as the stream's source says."""
    input: Form = "columns"
    """What the files hold; JSON lines are parsed in front of the query."""
    live: Live | None = None
    """Traffic that arrives while the query runs, in place of `events` at full speed."""

    def at_rate(self, rate: int) -> Self:
        """The same with traffic at another rate."""
        assert self.live is not None
        return msgspec.structs.replace(self, live=msgspec.structs.replace(self.live, rate=rate))

    @property
    def _query(self) -> PaperQuery:
        return QUERIES[self.query_name]

    @property
    def name(self) -> str:
        return self.query_name

    @property
    def streams(self) -> tuple[str, ...]:
        return self._query.streams

    @property
    def mode(self) -> Mode:
        return self._query.mode

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._query.keys if self.mode == "update" else ()

    @property
    def comparable(self) -> bool:
        return self._query.comparable

    @property
    def closing_batches(self) -> int:
        return CLOSING_BATCHES if self.mode == "append" else 0

    @property
    def traffic(self) -> Live | None:
        return self.live

    @property
    def _columns(self) -> dict[str, tuple[str, ...]]:
        return {stream: tuple(self._query.columns.get(stream, ())) for stream in self.streams}

    def filling(self) -> Iterator[Mapping[str, pa.Table]]:
        key = self._query.filled
        if not key or self.size != "large" or self.live is not None:
            return
        ((stream, columns),) = self._columns.items()
        for rows in filling(
            stream, key, columns, size=self.size, seed=self.seed, shape=self._shape, form=self.input
        ):
            yield {stream: rows}

    @property
    def _shape(self) -> Shape:
        return Shape(
            keys=self.keys,
            hot_ratio=self.hot_ratio,
            rate_stddev=self.live.rate_stddev if self.live else 0.0,
        )

    def inputs(self) -> Iterator[Mapping[str, pa.Table]]:
        yield from batches(
            self._columns,
            size=self.size,
            seed=self.seed,
            events=self.events,
            batch_events=self.batch_events,
            rate=self.live.rate if self.live else self.events_per_second,
            shape=self._shape,
            counts=self.live.counts() if self.live else None,
            form=self.input,
        )
        for _ in range(self.closing_batches):
            yield closing_rows(self._columns, self.seed, self.input)

    @property
    def in_lines(self) -> bool:
        return self.input == "json"

    def stream(self, name: str, rows: DataFrame) -> DataFrame:
        return parsed_stream(name, rows, self._columns[name]) if self.in_lines else rows

    def query(self, frames: Mapping[str, DataFrame], *, own: bool = False) -> DataFrame:
        form = self._query.own if own and self._query.own is not None else self._query.plain
        return form(frames, self._windows)

    @property
    def _windows(self) -> Windows:
        return Windows(self.window_seconds or None, self.slide_seconds or None)

    def tables(self, spark: SparkSession) -> dict[str, DataFrame]:
        return {name: spark.createDataFrame(make(self.seed)) for name, make in self._query.tables.items()}

    def flink_query(self) -> FlinkQuery | None:
        form = FLINK_FORMS.get(self.query_name)
        if form is None:
            return None
        return FlinkQuery(
            select=form.select(self._windows),
            update=self.mode == "update",
            key_columns=self.key_columns,
            event_time=form.event_time,
            types=dict(form.types),
        )

    def tws_query(self) -> Callable[[Mapping[str, DataFrame]], DataFrame] | None:
        from millpond.bench.tws import TWS_QUERIES

        return TWS_QUERIES.get(self.query_name)

    def params(self) -> dict[str, Any]:
        params = super().params() | {"live": None}
        if self.live is not None:
            # What is only about full speed is left out.
            for name in ("events", "batch_events", "events_per_second"):
                del params[name]
            params["live"] = msgspec.to_builtins(self.live)
        return params | {"mode": self.mode, "pattern": self._query.pattern}
