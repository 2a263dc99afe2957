"""What a workload is to the harness; a streaming one is input files, one per batch, and a query over them."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.bench.flink.query import FlinkQuery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

__all__ = ["Batch", "Prepared", "StreamingWorkload", "Workload", "load", "output_path"]

ROW_GROUPS = 4
"""Per file, so that two tasks get the same share of a large batch."""
FIRST_CHANGE_S = 1_700_000_000


class Batch(msgspec.Struct, frozen=True):
    """One input file and how many rows an aggregate of it alone has: what a query in update mode puts out."""

    rows: int
    output_rows: int


class Prepared(msgspec.Struct, frozen=True):
    """A workload's data on disk."""

    batches: tuple[Batch, ...]


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
    """A streaming query over files, one per batch."""

    @abstractmethod
    def batches(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Input of each batch, and what a query without a past would put out for it."""

    @abstractmethod
    def query(self, frame: DataFrame) -> DataFrame:
        """The query, of a streaming frame of Spark's or of Millpond's."""

    def flink_query(self) -> FlinkQuery | None:
        """The same query in Flink's SQL; None where its SQL can't express it."""
        return None

    def prepare(self, directory: Path) -> Prepared:
        """The input as Parquet, and beside it the output rows that an engine without state sends back."""
        (directory / "input").mkdir(parents=True)
        (directory / "output").mkdir()
        written = [
            _write_batch(directory, number, rows, output)
            for number, (rows, output) in enumerate(self.batches())
        ]
        prepared = Prepared(batches=tuple(written))
        (directory / "prepared.json").write_bytes(msgspec.json.encode(prepared))
        return prepared


def _write_batch(directory: Path, number: int, rows: pa.Table, output: pa.Table) -> Batch:
    path = directory / "input" / f"batch-{number:06}.parquet"
    group = -(-rows.num_rows // ROW_GROUPS)
    pq.write_table(rows, path, row_group_size=group, compression="none", use_dictionary=False)
    # Spark takes files in the order of their times of change.
    os.utime(path, (FIRST_CHANGE_S + number, FIRST_CHANGE_S + number))
    with (
        pa.OSFile(str(output_path(directory, number)), "wb") as sink,
        pa.ipc.new_file(sink, output.schema) as writer,
    ):
        writer.write_table(output, max_chunksize=65_536)
    return Batch(rows=rows.num_rows, output_rows=output.num_rows)


def load(directory: Path) -> Prepared:
    return msgspec.json.decode((directory / "prepared.json").read_bytes(), type=Prepared)


def output_path(directory: Path, batch: int) -> Path:
    return directory / "output" / f"batch-{batch:06}.arrow"
