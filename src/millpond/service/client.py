"""Talking to a state service, from the driver and from tasks."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from millpond.errors import Unavailable
from millpond.service.messages import (
    BatchTry,
    CommitReply,
    Endpoint,
    OpenReply,
    OpenRequest,
    OutputKey,
    SaveReply,
    SealReply,
    SealRequest,
    StagedFile,
    StageKey,
)
from millpond.service.wire import SHARD, STAGED, TOKEN_HEADER, decode, encode, from_flight_error

__all__ = ["ServiceClient", "StageFile", "StageWriter", "connect"]

T = TypeVar("T")

_CLIENTS_KEPT = 16
"""More than a process talks to at a time; a worker that outlives its services would keep a client for each."""

_connected: dict[tuple[int, Endpoint], ServiceClient] = {}
"""The one not used longest first."""
_connecting = threading.Lock()


def connect(endpoint: Endpoint) -> ServiceClient:
    """The process's client for an endpoint. Keyed by process, because Spark forks its workers."""
    key = (os.getpid(), endpoint)
    with _connecting:
        client = _connected.pop(key, None) or ServiceClient(endpoint)
        _connected[key] = client
        while len(_connected) > _CLIENTS_KEPT:
            # Not closed here, where another thread may be using it: it closes when nobody holds it any more.
            del _connected[next(iter(_connected))]
    return client


class StageWriter:
    """Rows on their way to a service. They count once `close` has returned and the receipt has reached the driver."""

    def __init__(self, client: ServiceClient, writer: flight.FlightStreamWriter) -> None:
        # Held, so that the connection stays open under the rows when `connect` forgets its client.
        self._client = client
        self._writer = writer

    def write(self, shard: int, rows: pa.RecordBatch) -> None:
        try:
            self._writer.write_with_metadata(rows, shard.to_bytes(4, "little"))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from error

    def close(self) -> None:
        """Returns when the service has all rows."""
        try:
            self._writer.close()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from error


class StageFile:
    """The same in a file on the service's host, for many rows."""

    def __init__(self, client: ServiceClient, key: StageKey, schema: pa.Schema, directory: str) -> None:
        self._client = client
        self._name = f"{STAGED}{uuid.uuid4().hex}"
        self._key = key
        try:
            self._writer = pa.ipc.new_stream(str(Path(directory, self._name)), schema)
        except OSError as error:
            raise _no_file(error) from error

    def write(self, shard: int, rows: pa.RecordBatch) -> None:
        try:
            self._writer.write_batch(rows, custom_metadata={SHARD: str(shard)})
        except OSError as error:
            raise _no_file(error) from error

    def close(self) -> None:
        """Returns when the service has all rows."""
        try:
            self._writer.close()
        except OSError as error:
            raise _no_file(error) from error
        self._client.stage_file(StagedFile(self._key, self._name))


def _no_file(error: OSError) -> Unavailable:
    return Unavailable(f"rows can't be exchanged with the state service in a file: {error}")


class ServiceClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._directory = endpoint.directory
        self._client = flight.FlightClient(endpoint.uri)
        self._options = flight.FlightCallOptions(headers=[(TOKEN_HEADER.encode(), endpoint.token.encode())])

    def open(self, request: OpenRequest) -> OpenReply:
        return self._act("open", request, OpenReply)

    def begin(self, at: BatchTry) -> None:
        self._act("begin", at, type(None))

    def seal(self, request: SealRequest) -> SealReply:
        return self._act("seal", request, SealReply)

    def save(self, at: BatchTry) -> SaveReply:
        return self._act("save", at, SaveReply)

    def commit(self, at: BatchTry) -> CommitReply:
        return self._act("commit", at, CommitReply)

    def abort(self, at: BatchTry) -> None:
        self._act("abort", at, type(None))

    def stage_writer(self, key: StageKey, schema: pa.Schema) -> StageWriter:
        try:
            command = flight.FlightDescriptor.for_command(encode(key))
            writer, _ = self._client.do_put(command, schema, self._options)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from error
        return StageWriter(self, writer)

    def stage_file_writer(self, key: StageKey, schema: pa.Schema) -> StageFile:
        return StageFile(self, key, schema, self._directory)

    def stage_file(self, staged: StagedFile) -> None:
        self._act("stage", staged, type(None))

    def output_file(self, key: OutputKey) -> Iterator[pa.RecordBatch]:
        """The outputs out of a file, for many rows."""
        name = self._act("output_file", key, str)
        try:
            with pa.memory_map(str(Path(self._directory, name))) as source:
                yield from pa.ipc.open_stream(source)
        except OSError as error:
            raise _no_file(error) from error

    def outputs(self, key: OutputKey) -> Iterator[pa.RecordBatch]:
        try:
            for chunk in self._client.do_get(flight.Ticket(encode(key)), self._options):
                yield chunk.data
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from error

    def close(self) -> None:
        self._client.close()

    def _act(self, name: str, request: Any, reply: type[T]) -> T:
        try:
            results = list(self._client.do_action((name, encode(request)), self._options))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight_error(error) from error
        return decode(results[0].body.to_pybytes(), reply)
