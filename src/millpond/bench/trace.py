"""Traces of state accesses as a workload: the same reads, merges, writes and removals for every store, without Spark.

Millpond's kernel gets the recorded calls as they are. For the others each call becomes steps that a store of bytes
knows: many keys read and written at once, or deleted. That is done here, before anything is timed:

- An operator has a table of its own. A key is the slice's number (for windows) and the encoded key. A dropped
  window is the deletion of its keys.
- Keys that come twice in one call are steps of their own, so that all stores do as many reads and writes.
- Counts and integer sums become vectors of int64 that the others add in numpy. Where an operator keeps anything else,
  they read the old value and write the new row's bytes, which are as long, and merge nothing: less work than Millpond
  does. Then only the keys that are there in the end can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond._kernel import BUCKETS, Layout, Store
from millpond.bench.workload import PREPARED, Batch, Prepared, Workload
from millpond.errors import InvalidQuery
from millpond.semantics.operator import AggregateSpec
from millpond.service.trace import RecordedAccess, TraceReader, TraceWriter
from millpond.state.layout import layout_of

__all__ = [
    "REPLAY_ENGINES",
    "Step",
    "TraceReplay",
    "adds",
    "asked",
    "encoded_rows",
    "kept_recording",
    "steps",
    "sums",
    "trace_batches",
]

REPLAY_ENGINES = ("millpond", "rocksdb", "lmdb")
_ADDED = {"count", "count_of", "sum_int", "sum_int_wrapping"}
_RECORDED = b"millpond.recorded"
_STEP = pa.schema([("name", pa.binary()), ("value", pa.binary()), ("known", pa.bool_())])
_EXPIRY_BYTES = 9
_SCRATCH_BYTES = 1 << 40


class _Recorded(msgspec.Struct, frozen=True):
    """What a trace was made from."""

    workload: str
    params: dict[str, Any]
    filling_batches: int = 0


class TraceReplay(Workload, frozen=True, kw_only=True, tag="trace"):
    """A recorded trace."""

    path: str
    recorded: str
    """The workload that it was recorded from."""
    recorded_params: dict[str, Any]
    batches: int
    filling_batches: int
    """The first ones brought the state to its size: they are replayed, and left out of the figures."""
    merges: tuple[str, ...]
    """For each operator what the other stores do: `add` vectors, or `put` values of the same length."""

    @classmethod
    def of(cls, path: Path) -> TraceReplay:
        reader = TraceReader(path)
        if _RECORDED not in reader.metadata:
            raise InvalidQuery(
                f"{path} does not say what was recorded; `millpond bench trace record` writes it"
            )
        recorded = msgspec.json.decode(reader.metadata[_RECORDED], type=_Recorded)
        merges = tuple("add" if adds(spec) else "put" for spec in reader.operators)
        return cls(
            path=str(path.resolve()),
            recorded=recorded.workload,
            recorded_params=recorded.params,
            batches=sum(1 for _ in trace_batches(reader)),
            filling_batches=recorded.filling_batches,
            merges=merges,
        )

    @property
    def name(self) -> str:
        return f"trace-{self.recorded}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ("operator", "slice", "key")

    def prepare(self, directory: Path) -> Prepared:
        directory.mkdir(parents=True)
        return _Planner(Path(self.path), directory, self.filling_batches).run()


def kept_recording(
    found: Path, out: Path, workload: str, params: Mapping[str, Any], filling_batches: int = 0
) -> int:
    """Copies what a service recorded, with what it was recorded from; gives the number of batches."""
    reader = TraceReader(found)
    said = msgspec.json.encode(_Recorded(workload, dict(params), filling_batches))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    writer = TraceWriter(out, reader.operators, {_RECORDED: said})
    batches = set()
    for recorded in reader:
        writer.write(recorded)
        batches.add(recorded.batch)
    writer.close()
    return len(batches)


def adds(spec: AggregateSpec) -> bool:
    """Whether merging is adding int64."""
    return all(aggregate.op in _ADDED for aggregate in spec.aggregates)


def trace_batches(reader: TraceReader) -> Iterator[list[RecordedAccess]]:
    """The calls of each batch."""
    running: list[RecordedAccess] = []
    for recorded in reader:
        if running and recorded.batch != running[0].batch:
            yield running
            running = []
        running.append(recorded)
    if running:
        yield running


def encoded_rows(layout: Layout, rows: pa.RecordBatch) -> pa.RecordBatch:
    """A trace's rows as the kernel wants them."""
    schema = layout.encoded_schema
    return pa.RecordBatch.from_arrays(
        [rows.column(field.name).cast(field.type) for field in schema], schema=schema
    )


def sums(layout: Layout, keys: int, rows: pa.RecordBatch, store: Store | None = None) -> bytes:
    """The counts and sums of the rows' groups in a store, or of the rows themselves: a vector of int64 each."""
    if store is None:
        store = Store(layout, 0, BUCKETS, _SCRATCH_BYTES)
        store.merge(rows)
    groups, _ = store.get(rows)
    columns = [column.fill_null(0).to_numpy(zero_copy_only=False) for column in groups.columns[keys:]]
    return np.column_stack(columns).astype("<i8").tobytes()


class Step(NamedTuple):
    """Keys in order, each once. Without values they are deleted, else read and written; `known`: which exist."""

    operator: int
    keys: list[bytes]
    values: list[bytes] | None
    known: np.ndarray[Any, np.dtype[np.bool_]]
    adds: bool


def steps(directory: Path, batch: int) -> list[Step]:
    found: list[Step] = []
    with pa.memory_map(str(_steps_path(directory, batch))) as source, pa.ipc.open_stream(source) as stream:
        while True:
            try:
                rows, metadata = stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                return found
            keys, values, known = rows.columns
            kind = metadata[b"kind"].decode()
            found.append(
                Step(
                    int(metadata[b"operator"]),
                    keys.to_pylist(),
                    None if kind == "delete" else values.to_pylist(),
                    known.to_numpy(zero_copy_only=False),
                    kind == "add",
                )
            )


def asked(directory: Path, operator: int) -> pa.Table:
    """Every group that the operator ever had: the trace's columns, and `name`, its key in the other stores."""
    with pa.memory_map(str(_asked_path(directory, operator))) as source:
        return pa.ipc.open_stream(source).read_all()


def _steps_path(directory: Path, batch: int) -> Path:
    return directory / f"steps-{batch:06}.arrow"


def _asked_path(directory: Path, operator: int) -> Path:
    return directory / f"asked-{operator}.arrow"


class _Planner:
    """Turns a trace into steps. It knows which keys a store has at each point."""

    def __init__(self, path: Path, directory: Path, filling_batches: int) -> None:
        self._filling_batches = filling_batches
        self._reader = TraceReader(path)
        self._directory = directory
        self._layouts = [layout_of(spec) for spec in self._reader.operators]
        self._living: dict[tuple[int, int], set[bytes]] = {}
        self._met: list[set[bytes]] = [set() for _ in self._layouts]
        self._asked: list[list[pa.RecordBatch]] = [[] for _ in self._layouts]

    def run(self) -> Prepared:
        batches = []
        for number, calls in enumerate(trace_batches(self._reader)):
            with pa.ipc.new_stream(str(_steps_path(self._directory, number)), _STEP) as writer:
                for call in calls:
                    for kind, rows in self._steps(call):
                        where = {"kind": kind, "operator": str(call.operator)}
                        writer.write_batch(rows, custom_metadata=where)
            merged = [call.access.rows for call in calls if call.access.rows is not None]
            batches.append(Batch(sum(rows.num_rows for rows in merged)))
        for operator, rows in enumerate(self._asked):
            schema = _asked_schema(self._layouts[operator])
            with pa.ipc.new_stream(str(_asked_path(self._directory, operator)), schema) as writer:
                for each in rows:
                    writer.write_batch(each)
        prepared = Prepared(batches=tuple(batches), filling_batches=self._filling_batches)
        (self._directory / PREPARED).write_bytes(msgspec.json.encode(prepared))
        return prepared

    def _steps(self, call: RecordedAccess) -> Iterator[tuple[str, pa.RecordBatch]]:
        access, operator = call.access, call.operator
        if access.rows is not None:
            yield from self._merges(operator, access.rows)
            return
        living = self._living.get((operator, access.slice), set())
        gone = sorted(living)
        if access.kind == "expire":
            prefix = len(self._prefix(operator, access.slice))
            gone = [name for name in gone if _expires(name[prefix:], access.expired_at_us)]
        living.difference_update(gone)
        if gone:
            yield "delete", _step(gone, [b""] * len(gone), [True] * len(gone))

    def _merges(self, operator: int, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        spec, layout = self._reader.operators[operator], self._layouts[operator]
        slices = rows.column("slice").to_pylist()
        prefixes = {slice_: self._prefix(operator, slice_) for slice_ in dict.fromkeys(slices)}
        names = [
            prefixes[slice_] + key for slice_, key in zip(slices, rows.column("key").to_pylist(), strict=True)
        ]
        for places in _each_once(names):
            taken = rows.take(pa.array(places))
            mine = [names[place] for place in places]
            encoded = encoded_rows(layout, taken)
            self._ask(operator, encoded, mine)
            known = []
            for name, place in zip(mine, places, strict=True):
                living = self._living.setdefault((operator, slices[place]), set())
                known.append(name in living)
                living.add(name)
            if adds(spec):
                packed = sums(layout, len(spec.keys), encoded)
                width = len(packed) // len(mine)
                values = [packed[at : at + width] for at in range(0, len(packed), width)]
                yield "add", _step(mine, values, known)
            else:
                yield "put", _step(mine, taken.column("value").to_pylist(), known)

    def _prefix(self, operator: int, slice_: int) -> bytes:
        """The slice, where there is more than one. With the sign turned, bytes are in the order of numbers."""
        timed = self._reader.operators[operator].time is not None
        return (slice_ + 2**63).to_bytes(8, "big") if timed else b""

    def _ask(self, operator: int, encoded: pa.RecordBatch, names: Sequence[bytes]) -> None:
        met = self._met[operator]
        new = [place for place, name in enumerate(names) if name not in met]
        met.update(names)
        if new:
            rows = encoded.take(pa.array(new))
            column = pa.array([names[place] for place in new], pa.binary())
            schema = _asked_schema(self._layouts[operator])
            self._asked[operator].append(pa.RecordBatch.from_arrays([*rows.columns, column], schema=schema))


def _asked_schema(layout: Layout) -> pa.Schema:
    return layout.encoded_schema.append(pa.field("name", pa.binary()))


def _step(names: Sequence[bytes], values: Sequence[bytes], known: Sequence[bool]) -> pa.RecordBatch:
    columns = [pa.array(names, pa.binary()), pa.array(values, pa.binary()), pa.array(known, pa.bool_())]
    return pa.RecordBatch.from_arrays(columns, schema=_STEP)


def _each_once(names: Sequence[bytes]) -> list[list[int]]:
    """Places of names, in as many lists as the commonest name has places, no name twice in one, each in order."""
    rounds: list[list[int]] = []
    times: dict[bytes, int] = {}
    for place, name in enumerate(names):
        turn = times.get(name, 0)
        times[name] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(place)
    for places in rounds:
        places.sort(key=names.__getitem__)
    return rounds


def _expires(key: bytes, at_us: int) -> bool:
    """An expiry stands in front of the key: a mark, and the time with its sign turned."""
    return key[0] == 1 and int.from_bytes(key[1:_EXPIRY_BYTES], "big") - 2**63 <= at_us
