"""What an engine put out under live traffic, kept for the floor, whose batches begin and end elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.bench.workload import OUTPUT

__all__ = ["LiveOutputs", "keep_live_outputs", "live_output_path", "load_live_outputs"]

INDEX = "live.json"


class LiveOutputs(msgspec.Struct, frozen=True):
    """After each batch: the rows that had come in and gone out."""

    rows_in: tuple[int, ...]
    rows_out: tuple[int, ...]

    def out_after(self, rows_in: int) -> int:
        """How many rows are out once so many are in."""
        known_in, known_out = (0, *self.rows_in), (0, *self.rows_out)
        return round(float(np.interp(rows_in, known_in, known_out)))


def live_output_path(data: Path) -> Path:
    return data / OUTPUT / "live.arrow"


def keep_live_outputs(data: Path, output: Path, rows_in: Sequence[int]) -> None:
    """`rows_in`: of each batch."""
    tables = [
        pq.ParquetFile(output / f"batch={number}" / "rows.parquet").read() for number in range(len(rows_in))
    ]
    (data / OUTPUT).mkdir()
    with (
        pa.OSFile(str(live_output_path(data)), "wb") as sink,
        pa.ipc.new_file(sink, tables[0].schema) as writer,
    ):
        for table in tables:
            writer.write_table(table, max_chunksize=65_536)
    index = LiveOutputs(
        tuple(int(rows) for rows in np.cumsum(rows_in)),
        tuple(int(rows) for rows in np.cumsum([table.num_rows for table in tables])),
    )
    (data / OUTPUT / INDEX).write_bytes(msgspec.json.encode(index))


def load_live_outputs(data: Path) -> LiveOutputs:
    return msgspec.json.decode((data / OUTPUT / INDEX).read_bytes(), type=LiveOutputs)
