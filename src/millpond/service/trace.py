"""Traces of state accesses: an Arrow stream of what each batch merged into its stores and removed from them.

The service writes one where the environment variable `MILLPOND_TRACE_FILE` names a file that does not exist yet. A
record batch is one call on a store; its metadata says which. Batches that were aborted are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from millpond.errors import InvalidQuery
from millpond.semantics.operator import AggregateSpec, OperatorSpec
from millpond.service.wire import decode, encode
from millpond.state.trace import Access

__all__ = ["TRACE_FILE", "TRACE_SCHEMA", "RecordedAccess", "TraceReader", "TraceWriter"]

TRACE_FILE = "MILLPOND_TRACE_FILE"
TRACE_SCHEMA = pa.schema(
    [("hash", pa.uint64()), ("slice", pa.int64()), ("key", pa.binary()), ("value", pa.binary())]
)
_OPERATORS = b"millpond.operators"


@dataclass(frozen=True)
class RecordedAccess:
    """A call on the store of an operator, in a batch. Rows are in the trace's schema."""

    batch: int
    operator: int
    access: Access


class TraceWriter:
    """Gathers the calls of the running batch, from any thread, and writes them when it is committed."""

    def __init__(
        self, path: Path, operators: tuple[OperatorSpec, ...], metadata: Mapping[bytes, bytes] | None = None
    ) -> None:
        try:
            self._file = path.open("xb")
        except FileExistsError:
            raise InvalidQuery(
                f"{TRACE_FILE} names {path}, which exists already: name a file that does not"
            ) from None
        schema = TRACE_SCHEMA.with_metadata({**(metadata or {}), _OPERATORS: encode(operators)})
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._schema = schema
        self._running: list[tuple[int, Access]] = []

    def listener(self, operator: int) -> Callable[[Access], None]:
        return lambda access: self._running.append((operator, access))

    def commit(self, batch: int) -> None:
        running, self._running = self._running, []
        for operator, access in running:
            self.write(RecordedAccess(batch, operator, access))

    def abort(self) -> None:
        self._running = []

    def write(self, recorded: RecordedAccess) -> None:
        kind, rows, slice_, expired_at_us = recorded.access
        if rows is None:
            values: list[list[int] | list[bytes]] = [[0], [slice_], [b""], [b""]]
            arrays = [pa.array(each, field.type) for each, field in zip(values, TRACE_SCHEMA, strict=True)]
        else:
            arrays = [rows.column(field.name).cast(field.type) for field in TRACE_SCHEMA]
        where = {
            "batch": recorded.batch,
            "operator": recorded.operator,
            "kind": kind,
            "expired_at_us": expired_at_us,
        }
        self._writer.write_batch(
            pa.RecordBatch.from_arrays(arrays, schema=self._schema),
            custom_metadata={name: str(value) for name, value in where.items()},
        )

    def close(self) -> None:
        self._writer.close()
        self._file.close()


class TraceReader:
    """A trace, from its beginning as often as it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self.metadata: dict[bytes, bytes] = pa.ipc.open_stream(file).schema.metadata or {}
        except pa.ArrowInvalid as error:
            raise InvalidQuery(f"{path} is no trace of state accesses: {error}") from None
        if _OPERATORS not in self.metadata:
            raise InvalidQuery(f"{path} is an Arrow stream, but no trace of state accesses")
        self.operators = decode(self.metadata[_OPERATORS], tuple[AggregateSpec, ...])

    def __iter__(self) -> Iterator[RecordedAccess]:
        with pa.memory_map(str(self._path)) as source, pa.ipc.open_stream(source) as stream:
            while True:
                try:
                    rows, metadata = stream.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                said = {name.decode(): value.decode() for name, value in metadata.items()}
                kind = said["kind"]
                if kind == "merge":
                    access = Access("merge", rows=rows)
                else:
                    slice_ = rows.column("slice")[0].as_py()
                    expired_at_us = int(said["expired_at_us"])
                    access = Access("drop" if kind == "drop" else "expire", None, slice_, expired_at_us)
                yield RecordedAccess(int(said["batch"]), int(said["operator"]), access)
