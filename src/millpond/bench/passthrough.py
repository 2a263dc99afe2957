"""The floor: the same ingest and emit as Millpond's, with nothing in between.

Rows go over Flight to a process that holds them until the next batch; as many rows as the query would put out,
prepared beforehand, come back and go to the sink. As with Millpond, Spark's tasks carry large batches and the driver
small ones.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from millpond.bench.live_outputs import live_output_path, load_live_outputs
from millpond.bench.workload import Prepared, output_path
from millpond.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Server", "batch_share", "carrier", "live_share", "serve"]

LIVE_FILE = -1
"""In place of a batch's number: the output of a whole run under live traffic."""
Share = Callable[[int, int], tuple[int, int, int]]
"""From a batch's number and rows to the output that is sent back for it: a file, the first row and the end."""
RECEIPT = "rows long"
_RECEIPT_SCHEMA = pa.schema([("rows", pa.int64())])


class Server:
    """The process that stands where the state service stands."""

    def __init__(self, data: Path, directory: Path) -> None:
        self.location = f"grpc+unix://{directory / 'flight.sock'}"
        command = [sys.executable, "-m", "millpond.bench.passthrough", str(data), self.location]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the passthrough server did not start (exit code {self._process.wait()})")

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def carrier(
    server: Server,
    share: Share,
    frame: DataFrame,
    schema: StructType,
    sink: Callable[[DataFrame, int], None],
) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`: rows to the server, rows from it, the sink."""
    from millpond.spark.jvm import Catalyst

    location, settings = server.location, Settings()
    # Looking classes up takes longer than a small batch may: once.
    catalyst = Catalyst(frame.sparkSession)
    last_rows: int | None = None

    def one_batch(batch: DataFrame, batch_id: int) -> None:
        nonlocal last_rows
        small = last_rows is not None and last_rows <= settings.local_ingest_rows
        last_rows = _bring(batch.select(*frame.columns), _Send(location, batch_id), small)
        file, first, end = share(batch_id, last_rows)
        spark, rows = batch.sparkSession, end - first
        if rows <= settings.local_emit_rows:
            chunks = _Fetch(location, file, first, end, 1).share(0)
            messages = (chunk.serialize().to_pybytes() for chunk in chunks)
            emitted: DataFrame = catalyst.frame_of_arrow(messages, schema, spark)
        else:
            tasks = max(1, min(spark.sparkContext.defaultParallelism, rows // settings.rows_per_task))
            fetch = _Fetch(location, file, first, end, tasks)
            emitted = spark.range(0, tasks, 1, tasks).mapInArrow(fetch, schema)
        sink(emitted, batch_id)

    return one_batch


def _bring(rows: DataFrame, send: _Send, small: bool) -> int:
    """Returns how many rows there were."""
    if small:
        return send.all(rows.toArrow().to_batches())
    return sum(receipt.rows for receipt in rows.mapInArrow(send, RECEIPT).collect())


def batch_share(prepared: Prepared) -> Share:
    """What another engine put out in the same batch."""

    def share(batch_id: int, rows: int) -> tuple[int, int, int]:
        if rows != prepared.batches[batch_id].rows:
            raise RuntimeError(f"batch {batch_id}: not every row reached the server")
        return batch_id, 0, prepared.batches[batch_id].output_rows

    return share


def live_share(data: Path) -> Share:
    """What another engine put out for as many rows of the same traffic; its batches were others."""
    outputs = load_live_outputs(data)
    taken_in = 0

    def share(batch_id: int, rows: int) -> tuple[int, int, int]:  # noqa: ARG001
        nonlocal taken_in
        first = outputs.out_after(taken_in)
        taken_in += rows
        return LIVE_FILE, first, outputs.out_after(taken_in)

    return share


@lru_cache(maxsize=1)
def _client(location: str) -> flight.FlightClient:
    """One connection per worker: workers live through many tasks."""
    return flight.FlightClient(location)


class _Send:
    def __init__(self, location: str, batch_id: int) -> None:
        self._location = location
        self._batch_id = batch_id

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([self.all(batches)])], schema=_RECEIPT_SCHEMA)

    def all(self, batches: Iterable[pa.RecordBatch]) -> int:
        rows = 0
        writer = None
        for batch in batches:
            if writer is None:
                descriptor = flight.FlightDescriptor.for_path(str(self._batch_id))
                writer, _ = _client(self._location).do_put(descriptor, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
        return rows


class _Fetch:
    def __init__(self, location: str, file: int, first: int, end: int, tasks: int) -> None:
        self._location = location
        self._file = file
        self._first = first
        self._end = end
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The input is read to its end before the first row is given, or Spark throws the worker away.
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        for task in tasks:
            yield from self.share(task)

    def share(self, task: int) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        rows = self._end - self._first
        first, end = (self._first + rows * at // self._tasks for at in (task, task + 1))
        ticket = flight.Ticket(f"{self._file} {first} {end}".encode())
        for chunk in _client(self._location).do_get(ticket):
            yield chunk.data


class _HoldingServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, data: Path, location: str) -> None:
        super().__init__(location)
        self._data = data
        self._lock = threading.Lock()
        self._held: dict[bytes, list[pa.RecordBatch]] = {}

    def do_put(self, _context: Any, descriptor: Any, reader: Any, _writer: Any) -> None:
        batch_id = descriptor.path[0]
        batches = [chunk.data for chunk in reader]
        with self._lock:
            for older in self._held.keys() - {batch_id}:
                del self._held[older]
            self._held.setdefault(batch_id, []).extend(batches)

    def do_get(self, _context: Any, ticket: Any) -> Any:
        file, first, end = map(int, ticket.ticket.split())
        path = live_output_path(self._data) if file == LIVE_FILE else output_path(self._data, file)
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        return flight.RecordBatchStream(table.slice(first, end - first))


def serve(data: Path, location: str) -> None:
    """Until the process that started this one closes its end of the input, or is gone."""
    server = _HoldingServer(data, location)
    print("ready", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
