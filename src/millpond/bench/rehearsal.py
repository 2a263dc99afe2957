"""The data of a rehearsal: the first batches of a workload, half of them cut into small ones.

A JVM compiles what ran often, and Spark plans each batch, large or small, by the same code: many small batches
bring it to its speed in the time of a few large ones. The large ones at the end are for the code that goes over rows.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from millpond.bench.workload import (
    OUTPUT,
    Batch,
    StreamingWorkload,
    has_outputs,
    load,
    output_path,
    save,
    stream_directory,
    write_batch,
)

__all__ = ["prepare_rehearsal"]

PIECES = 16
"""Of a batch that is cut."""
LEAST_ROWS = 25_000
"""Of a piece: a batch of fewer goes another way through the driver, so smaller batches are cut into fewer pieces."""


def prepare_rehearsal(data: Path, workload: StreamingWorkload, batches: int, target: Path) -> None:
    """Writes the first batches of a workload's data, after those that fill the state, as data of their own."""
    prepared = load(data)
    first = prepared.filling_batches
    kept = prepared.batches[first : first + batches]
    live = workload.traffic is not None
    if live:
        # Each file is small already.
        cuts = [1] * len(kept)
    else:
        pieces = max(1, min(PIECES, max(batch.rows for batch in kept) // LEAST_ROWS))
        whole = -(-len(kept) // 2)
        cuts = [pieces] * (len(kept) - whole) + [1] * whole
    files = {stream: sorted(stream_directory(data, stream).iterdir()) for stream in workload.streams}
    for stream in files:
        stream_directory(target, stream).mkdir(parents=True)
    if has_outputs(data):
        (target / OUTPUT).symlink_to(data / OUTPUT) if live else (target / OUTPUT).mkdir()
    written: list[Batch] = []
    for number, (batch, pieces) in enumerate(zip(kept, cuts, strict=True), first):
        tables = {stream: pq.read_table(paths[number]) for stream, paths in files.items()}
        for piece in range(pieces):
            rows = 0
            for stream, table in tables.items():
                start, end = _share(table.num_rows, piece, pieces)
                write_batch(stream_directory(target, stream), len(written), table.slice(start, end - start))
                rows += end - start
            if has_outputs(data) and not live:
                output_path(target, len(written)).symlink_to(output_path(data, number))
            start, end = _share(batch.output_rows, piece, pieces)
            written.append(Batch(rows, end - start))
    save(
        target,
        msgspec.structs.replace(prepared, batches=tuple(written), filling_batches=0, closing_batches=0),
    )


def _share(rows: int, piece: int, pieces: int) -> tuple[int, int]:
    return rows * piece // pieces, rows * (piece + 1) // pieces
