"""The Flight front of a state service, and the life of its process.

The parent hands the token over on standard input and keeps that pipe open: when it closes, the driver is gone,
and the service gives up its shards and exits.
"""

from __future__ import annotations

import hmac
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from millpond.errors import Conflict, InternalError
from millpond.service.allocation import keep_freed_memory
from millpond.service.messages import (
    BatchTry,
    OpenReply,
    OpenRequest,
    OutputKey,
    SealRequest,
    StagedFile,
    StageKey,
)
from millpond.service.query import ServedQuery
from millpond.service.trace import TRACE_FILE
from millpond.service.wire import TOKEN_HEADER, as_flight_error, decode, encode

__all__ = ["StateServer", "serve"]


class _TokenCheck(flight.ServerMiddlewareFactory):
    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:  # noqa: ARG002
        given = headers.get(TOKEN_HEADER, [""])[0].encode()
        if not hmac.compare_digest(given, self._token):
            raise flight.FlightUnauthenticatedError("wrong or missing token")


class StateServer(flight.FlightServerBase):
    def __init__(self, uri: str, token: str, spool_directory: Path, trace_file: Path | None = None) -> None:
        super().__init__(uri, middleware={"token": _TokenCheck(token)})
        self._spool_directory = spool_directory
        self._trace_file = trace_file
        self._query: ServedQuery | None = None
        self._actions: dict[str, Callable[[bytes], bytes]] = {
            "open": self._open,
            "begin": self._begin,
            "stage": self._stage,
            "output_file": lambda body: encode(self._served.outputs(decode(body, OutputKey)).file().name),
            "seal": lambda body: encode(self._served.seal(decode(body, SealRequest))),
            "save": lambda body: encode(self._served.save(decode(body, BatchTry))),
            "commit": lambda body: encode(self._served.commit(decode(body, BatchTry))),
            "abort": self._abort,
        }

    @property
    def _served(self) -> ServedQuery:
        if self._query is None:
            raise Conflict("the state service has no query open")
        return self._query

    def _open(self, body: bytes) -> bytes:
        if self._query is not None:
            raise InternalError("a state service opens one query")
        self._query = ServedQuery(decode(body, OpenRequest), self._spool_directory, self._trace_file)
        return encode(OpenReply(stats=tuple(self._query.stats())))

    def _begin(self, body: bytes) -> bytes:
        self._served.begin(decode(body, BatchTry))
        return encode(None)

    def _stage(self, body: bytes) -> bytes:
        staged = decode(body, StagedFile)
        self._served.stage_file(staged.key, staged.name)
        return encode(None)

    def _abort(self, body: bytes) -> bytes:
        self._served.abort(decode(body, BatchTry))
        return encode(None)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:  # noqa: ARG002
        handler = self._actions.get(action.type)
        try:
            if handler is None:
                raise InternalError(f"unknown action {action.type!r}")
            reply = handler(action.body.to_pybytes())
        except Exception as error:
            raise as_flight_error(error) from error
        return iter([flight.Result(pa.py_buffer(reply))])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        try:
            key = decode(descriptor.command, StageKey)
            self._served.stage(key, reader.schema, _staged(reader))
        except Exception as error:
            raise as_flight_error(error) from error

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:  # noqa: ARG002
        try:
            spool = self._served.outputs(decode(ticket.ticket, OutputKey))
        except Exception as error:
            raise as_flight_error(error) from error
        return flight.GeneratorStream(spool.schema, spool.batches())

    def close(self) -> None:
        if self._query is not None:
            self._query.close()


def _staged(reader: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of a put, each with the shard that its metadata names."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield int.from_bytes(chunk.app_metadata.to_pybytes(), "little"), chunk.data


def serve(socket: Path, directory: Path) -> None:
    """Serves on a Unix socket until the parent's pipe closes. `directory` is for rows in files, and goes with it."""
    token = sys.stdin.readline().strip()
    if not token:
        raise SystemExit(
            "the state service is started by Millpond itself and reads its token from standard input"
        )
    keep_freed_memory()
    try:
        trace_file = os.environ.get(TRACE_FILE)
        server = StateServer(
            f"grpc+unix://{socket}", token, directory, Path(trace_file) if trace_file else None
        )
        socket.chmod(0o600)
        threading.Thread(target=_exit_with_parent, args=(server,), name="parent", daemon=True).start()
        print("ready", flush=True)
        server.serve()
        server.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _exit_with_parent(server: StateServer) -> None:
    # The parent's end of the pipe closes with the parent, however it ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    threading.Timer(10.0, os._exit, args=(0,)).start()
    server.shutdown()
