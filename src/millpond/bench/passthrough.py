"""The floor: the same ingest and emit as Millpond's, with nothing in between.

Rows go to a process that holds them until the next batch; as many rows as the query would put out, prepared
beforehand, come back and go to the sink. As with Millpond, Spark's tasks carry large batches, in files, and the
driver small ones, over Flight.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
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

    from millpond.spark.handover import Handover

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
        self.directory = directory
        self.data = data
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
    from millpond.spark.handover import Handover
    from millpond.spark.jvm import Catalyst

    settings = Settings()
    # Looking classes up takes longer than a small batch may: once.
    catalyst = Catalyst(frame.sparkSession)
    handover = Handover(catalyst, frame)
    last_rows: int | None = None

    def one_batch(batch: DataFrame, batch_id: int) -> None:
        nonlocal last_rows
        small = last_rows is not None and last_rows <= settings.local_ingest_rows
        last_rows = _bring(batch.select(*frame.columns), server, batch_id, None if small else handover)
        file, first, end = share(batch_id, last_rows)
        spark, rows = batch.sparkSession, end - first
        if rows <= settings.local_emit_rows:
            ticket = flight.Ticket(f"{file} {first} {end}".encode())
            chunks = _client(server.location).do_get(ticket)
            messages = (chunk.data.serialize().to_pybytes() for chunk in chunks)
            emitted: DataFrame = catalyst.frame_of_arrow(messages, schema, spark)
        else:
            tasks = max(1, min(spark.sparkContext.defaultParallelism, rows // settings.rows_per_task))
            fetch = _Fetch(_output(server.data, file), first, end, tasks)
            emitted = spark.range(0, tasks, 1, tasks).mapInArrow(fetch, schema)
        sink(emitted, batch_id)

    return one_batch


def _bring(rows: DataFrame, server: Server, batch_id: int, handover: Handover | None) -> int:
    """Returns how many rows there were. `handover`: to tasks; None: by way of the driver."""
    if handover is None:
        return _put(server.location, batch_id, rows.toArrow().to_batches())
    leave = _Leave(server.location, batch_id, server.directory)
    return sum(receipt.rows for receipt in handover.run(rows, leave, RECEIPT))


def _put(location: str, batch_id: int, batches: list[pa.RecordBatch]) -> int:
    if batches:
        descriptor = flight.FlightDescriptor.for_path(str(batch_id))
        writer, _ = _client(location).do_put(descriptor, batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.close()
    return sum(batch.num_rows for batch in batches)


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


class _Leave:
    """Leaves a task's rows in a file, and tells the server."""

    def __init__(self, location: str, batch_id: int, directory: Path) -> None:
        self._location = location
        self._batch_id = batch_id
        self._directory = directory

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        path = self._directory / f"floor-{uuid.uuid4().hex}"
        writer = None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(str(path), batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
            told = f"{self._batch_id} {path}".encode()
            list(_client(self._location).do_action(("left", told)))
        yield pa.record_batch([pa.array([rows])], schema=_RECEIPT_SCHEMA)


class _Fetch:
    def __init__(self, path: Path, first: int, end: int, tasks: int) -> None:
        self._path = path
        self._first = first
        self._end = end
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The input is read to its end before the first row is given, or Spark throws the worker away.
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        rows = self._end - self._first
        for task in tasks:
            first, end = (self._first + rows * at // self._tasks for at in (task, task + 1))
            yield from _slice(self._path, first, end).to_batches()


def _output(data: Path, file: int) -> Path:
    return live_output_path(data) if file == LIVE_FILE else output_path(data, file)


def _slice(path: Path, first: int, end: int) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all().slice(first, end - first)


class _HoldingServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, data: Path, location: str) -> None:
        super().__init__(location)
        self._data = data
        self._lock = threading.Lock()
        self._held: dict[int, list[pa.RecordBatch]] = {}

    def do_put(self, _context: Any, descriptor: Any, reader: Any, _writer: Any) -> None:
        self._hold(int(descriptor.path[0]), [chunk.data for chunk in reader])

    def do_action(self, _context: Any, action: Any) -> Iterator[Any]:
        batch_id, path = action.body.to_pybytes().decode().split(" ", 1)
        with pa.memory_map(path) as source:
            self._hold(int(batch_id), list(pa.ipc.open_stream(source)))
        Path(path).unlink()
        return iter(())

    def _hold(self, batch_id: int, batches: list[pa.RecordBatch]) -> None:
        with self._lock:
            for older in self._held.keys() - {batch_id}:
                del self._held[older]
            self._held.setdefault(batch_id, []).extend(batches)

    def do_get(self, _context: Any, ticket: Any) -> Any:
        file, first, end = map(int, ticket.ticket.split())
        return flight.RecordBatchStream(_slice(_output(self._data, file), first, end))


def serve(data: Path, location: str) -> None:
    """Until the process that started this one closes its end of the input, or is gone."""
    server = _HoldingServer(data, location)
    print("ready", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
