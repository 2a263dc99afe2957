"""What a workload is to the harness; a streaming one is input files, one per batch, and a query over them."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.bench.flink.query import FlinkQuery
from millpond.bench.live import Live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "OUTPUT",
    "PREPARED",
    "Batch",
    "Mode",
    "Prepared",
    "StreamingWorkload",
    "Workload",
    "has_outputs",
    "keep_outputs",
    "load",
    "output_path",
    "save",
    "stream_directory",
    "stream_rows",
    "write_batch",
]

ROW_GROUPS = 4
"""Per file, so that two tasks get the same share of a large batch."""
FIRST_CHANGE_S = 1_700_000_000
PREPARED = "prepared.json"
OUTPUT = "output"
Mode = Literal["append", "update", "complete"]


class Batch(msgspec.Struct, frozen=True):
    """One batch of input, and how many rows the floor sends back for it."""

    rows: int
    output_rows: int = 0


class Prepared(msgspec.Struct, frozen=True):
    """A workload's data on disk."""

    batches: tuple[Batch, ...]
    filling_batches: int = 0
    """The first ones bring the state to its size: they belong to the result, not to the figures."""
    closing_batches: int = 0
    """The last ones only close what is open: they belong to the result, not to the figures."""
    live: bool = False
    """A batch is a file of traffic that arrives while the query runs."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters, and what the harness asks of every workload."""

    seed: int = 1

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def key_columns(self) -> tuple[str, ...]:
        """Columns of the output that make a row the newer version of another, structs flattened."""

    @abstractmethod
    def prepare(self, directory: Path) -> Prepared:
        """Writes what the engines will read, and says what is in it."""

    def params(self) -> dict[str, Any]:
        """The parameters as they stand in a report."""
        return msgspec.structs.asdict(self)


class StreamingWorkload(Workload, frozen=True, kw_only=True):
    """A streaming query over files: for each stream a directory, in it one file per batch."""

    @property
    def streams(self) -> tuple[str, ...]:
        return ("input",)

    @property
    def mode(self) -> Mode:
        return "update"

    @property
    def comparable(self) -> bool:
        """Whether engines have to agree on the result."""
        return True

    @property
    def closing_batches(self) -> int:
        return 0

    @property
    def traffic(self) -> Live | None:
        """How the input arrives while the query runs; None: all of it is there from the start."""
        return None

    def filling(self) -> Iterator[Mapping[str, pa.Table]]:
        """Batches that come before all others and bring the state to its size."""
        return iter(())

    @abstractmethod
    def inputs(self) -> Iterator[Mapping[str, pa.Table]]:
        """The rows of each stream, batch by batch, the closing ones included."""

    @property
    def in_lines(self) -> bool:
        """Whether the files hold JSON lines that `stream` parses."""
        return False

    def stream(self, name: str, rows: DataFrame) -> DataFrame:  # noqa: ARG002
        """A stream as the query reads it, from the rows of its files."""
        return rows

    @abstractmethod
    def query(self, frames: Mapping[str, DataFrame], *, own: bool = False) -> DataFrame:
        """The query, of streaming frames of Spark's or of Millpond's. `own`: with Millpond's own operators where
        Spark has none."""

    def tables(self, spark: SparkSession) -> dict[str, DataFrame]:  # noqa: ARG002
        """Bounded tables that the query finds beside its streams."""
        return {}

    def flink_query(self) -> FlinkQuery | None:
        """The same query in Flink's SQL; None where its SQL can't express it."""
        return None

    def tws_query(self) -> Callable[[Mapping[str, DataFrame]], DataFrame] | None:
        """The same query with Spark's `transformWithState`; None where it is not written so."""
        return None

    def prepare(self, directory: Path) -> Prepared:
        """The input as Parquet files."""
        for stream in self.streams:
            stream_directory(directory, stream).mkdir(parents=True)
        batches: list[Batch] = []

        def write(inputs: Iterable[Mapping[str, pa.Table]]) -> None:
            for tables in inputs:
                for stream, rows in tables.items():
                    write_batch(stream_directory(directory, stream), len(batches), rows)
                batches.append(Batch(sum(rows.num_rows for rows in tables.values())))

        write(self.filling())
        filling_batches = len(batches)
        write(self.inputs())
        prepared = Prepared(
            batches=tuple(batches),
            filling_batches=filling_batches,
            closing_batches=self.closing_batches,
            live=self.traffic is not None,
        )
        save(directory, prepared)
        return prepared


def stream_directory(data: Path, stream: str) -> Path:
    return data / stream


def write_batch(directory: Path, number: int, rows: pa.Table) -> None:
    path = directory / f"batch-{number:06}.parquet"
    group = max(1, -(-rows.num_rows // ROW_GROUPS))
    pq.write_table(rows, path, row_group_size=group, compression="none", use_dictionary=False)
    # Spark takes files in the order of their times of change.
    os.utime(path, (FIRST_CHANGE_S + number, FIRST_CHANGE_S + number))


def load(directory: Path) -> Prepared:
    return msgspec.json.decode((directory / PREPARED).read_bytes(), type=Prepared)


def save(directory: Path, prepared: Prepared) -> None:
    (directory / PREPARED).write_bytes(msgspec.json.encode(prepared))


def output_path(directory: Path, batch: int) -> Path:
    return directory / OUTPUT / f"batch-{batch:06}.arrow"


def stream_rows(directory: Path, streams: Iterable[str]) -> dict[tuple[str, int], int]:
    """The rows of each file, by its stream and number."""
    return {
        (stream, number): pq.read_metadata(path).num_rows
        for stream in streams
        for number, path in enumerate(sorted(stream_directory(directory, stream).iterdir()))
    }


def has_outputs(directory: Path) -> bool:
    return (directory / OUTPUT).exists()


def keep_outputs(directory: Path, output: Path) -> None:
    """Keeps what an engine put out, batch by batch, for the floor to send back."""
    prepared = load(directory)
    (directory / OUTPUT).mkdir()
    batches = []
    for number, batch in enumerate(prepared.batches):
        rows = pq.ParquetFile(output / f"batch={number}" / "rows.parquet").read()
        with (
            pa.OSFile(str(output_path(directory, number)), "wb") as sink,
            pa.ipc.new_file(sink, rows.schema) as writer,
        ):
            writer.write_table(rows, max_chunksize=65_536)
        batches.append(msgspec.structs.replace(batch, output_rows=rows.num_rows))
    save(directory, msgspec.structs.replace(prepared, batches=tuple(batches)))
