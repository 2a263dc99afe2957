"""The kernel: what runs once per record or byte. Batches go in and out as Arrow; the GIL is released inside.

Encoded rows, the form in which grouped rows travel between an ingest task and a store, are record batches with
the columns `hash: uint64`, `slice: int64`, `key` and `value` (fixed-size binary where the layout is fixed, else
binary).
"""

from collections.abc import Iterator
from typing import Any, final

import pyarrow as pa

BUCKETS: int
"""Number of buckets: the top 12 bits of a key's hash are its bucket."""
FORMAT_VERSION: int
"""Version of the file format this kernel writes; it reads this one and no other."""

class KernelError(Exception):
    """Bad bytes or a failed read; the message names the file. Base of the two below."""

class DamagedFile(KernelError): ...
class NewerFormat(KernelError): ...

class Overflow(ArithmeticError):
    """An integer sum left the range of int64 under `sum_int`."""

@final
class Layout:
    """How an operator's groups lie in bytes. Equal arguments give equal bytes in every process."""

    def __new__(
        cls,
        input: pa.Schema,
        keys: int,
        aggregates: list[tuple[str, list[int], int | None]],
        panes: tuple[int, int, int, int] | None = None,
        keyed_time: tuple[int, int] | None = None,
        sessions: tuple[int, int, int] | None = None,
    ) -> Layout:
        """`aggregates`: (op, input positions, filter position); the op of the first N rows of a group is "top N BY
        ORDER...", with the number of fields that order them and the order of each field of the struct. `panes`:
        (column, size, slide, offset) and `keyed_time`: (expiry column, slice length), times in microseconds.
        `sessions`: (start column, end column, length of a slice of timers); with a length of 0 sessions never
        close."""
    @property
    def output_schema(self) -> pa.Schema:
        """Keys, then the buffers of the aggregates in order, then the start and end of a session."""
    @property
    def encoded_schema(self) -> pa.Schema: ...
    def identity(self) -> pa.RecordBatch:
        """One encoded row with the empty key and empty aggregates, for operators without keys."""

@final
class Combiner:
    """Encodes a task's rows, combines those of the same group while that pays, and sorts them out by shard."""

    def __new__(
        cls,
        layout: Layout,
        shard_starts: list[int],
        late_before_us: int | None = None,
        weight: int | None = None,
        apart: bool = False,
    ) -> Combiner:
        """`shard_starts`: the first bucket of each shard, the first being 0. Rows all of whose windows end at or
        before `late_before_us` are counted as late and left out. `weight`: an int64 column that says how many
        rows each row stands for, where they were combined before. `apart`: no rows are combined."""
    def push(self, batch: pa.RecordBatch) -> None: ...
    def drain(self) -> list[tuple[int, pa.RecordBatch]]:
        """What was gathered since the last drain, as (shard, encoded rows)."""
    @property
    def rows(self) -> int: ...
    @property
    def late_rows(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

@final
class Router:
    """Says where the rows of an operator go that keeps rows as they are."""

    def __new__(cls, layout: Layout, shard_starts: list[int], late_before_us: int | None = None) -> Router:
        """`layout`: the keys and the time; see `Combiner` for the rest."""
    def route(self, batch: pa.RecordBatch) -> list[tuple[int, int, pa.Array, pa.Array]]:
        """(shard, slice, numbers of the rows that go there, in order, hashes of their keys), late rows left out."""
    @property
    def rows(self) -> int: ...
    @property
    def late_rows(self) -> int: ...

@final
class Distinct:
    """Leaves out the rows whose key a task has seen before, while that pays, and sorts out the others by shard."""

    def __new__(
        cls,
        layout: Layout,
        shard_starts: list[int],
        late: tuple[int, int] | None = None,
        timers: tuple[int, int] | None = None,
    ) -> Distinct:
        """`late`: (column, time); rows at or before that time are counted as late and left out. `timers`: (expiry
        column, slice length) of keys that are forgotten at a time that is no part of them; their rows have the slice
        of their expiry."""
    def push(self, batch: pa.RecordBatch) -> list[tuple[int, pa.Array, pa.RecordBatch]]:
        """(shard, numbers of the rows that go there, in order, their encoded keys)."""
    def clear(self) -> None:
        """Forgets which keys were seen."""
    @property
    def rows(self) -> int: ...
    @property
    def late_rows(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

@final
class PackWriter:
    """Writes one pack: a header and any number of runs. Nothing is readable before `finish`."""

    def __new__(cls, path: str, buffer_bytes: int = ...) -> PackWriter: ...
    def append(self, bytes: bytes) -> tuple[int, int]:
        """Writes bytes that the kernel does not look into, with a checksum, as a run of their own; returns its
        offset and length."""
    def finish(self) -> int:
        """Flushes to disk and returns the pack's length; a pack without runs is removed and gives 0."""
    def discard(self) -> None: ...

def read_blob(path: str, offset: int, length: int, read_delay_us: int = 0) -> bytes:
    """What `PackWriter.append` wrote, checked. `read_delay_us`: for benchmarks, waits so long before."""

@final
class Run:
    """An immutable run of rows in hash order inside a pack, with its key filter and block index in memory."""

    @staticmethod
    def open(layout: Layout, path: str, offset: int, length: int, read_delay_us: int = 0) -> Run:
        """Checks magic, version and checksums of header, index and filter; blocks are checked when read.
        `read_delay_us`: for benchmarks, each read of blocks waits so long before."""
    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

def thread_files_ns() -> int:
    """What the calling thread has spent in the kernel's calls to the file system: reads, writes, syncs of packs."""

def merge_runs(
    layout: Layout, runs: list[Run], writer: PackWriter, first_bucket: int, end_bucket: int, whole: bool
) -> tuple[int, int, int]:
    """Merges runs, given oldest first, into one; the newest row of a key wins. `whole`: nothing older exists, so
    deleted keys are left out. Returns (offset, length, rows)."""

@final
class Store:
    """The read-modify-write store of one operator in one shard: one table per slice, memory over runs.

    One writer. `merge`, `put`, `insert`, `delete`, `delete_expired`, `forget` and `drop` belong to the running batch
    until `commit` or `abort`.
    """

    def __new__(cls, layout: Layout, first_bucket: int, end_bucket: int, memory_bytes: int) -> Store: ...
    def restore(self, slice: int, rows: int, runs: list[Run]) -> None:
        """Puts a committed slice in place, its runs oldest first."""
    def merge(self, encoded: pa.RecordBatch) -> None: ...
    def count(self, encoded: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
        """Merges rows, each of which stands for itself alone, in their order into windows of so many rows of a key.
        The first aggregate is a count; it goes on over all the windows of a key. Returns the windows that became
        full."""
    def put(self, encoded: pa.RecordBatch) -> None: ...
    def insert(self, encoded: pa.RecordBatch, main: int | None = None) -> pa.Array:
        """Adds the keys that are not there yet and says which rows brought them: of several with one key, the first.
        `main`: the slice in which keys are looked for, the rows' own slices being those of their timers."""
    def delete(self, encoded: pa.RecordBatch) -> None: ...
    def get(self, encoded: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        """The groups of the given keys in the output schema, and which of them exist."""
    def slices(self) -> list[tuple[int, int]]:
        """(slice, groups in it), dropped ones left out, in order."""
    def touched_slices(self) -> list[int]: ...
    def scan(
        self,
        slices: list[int],
        touched_only: bool = False,
        expired_at_us: int | None = None,
        max_rows: int = ...,
    ) -> Iterator[pa.RecordBatch]:
        """Groups of the slices in the output schema; those of one key are merged, slices in the given order.
        `touched_only`: only keys that the running batch changed in one of the slices. `expired_at_us`: only
        groups that expire at or before it (keyed time)."""
    def close_sessions(self, watermark_us: int, max_rows: int = ...) -> Iterator[pa.RecordBatch]:
        """Takes the sessions that end at or before the watermark out of the store and gives them in the output
        schema. Only keys whose timers are due are looked at, `max_rows` of them at once."""
    def delete_expired(self, slice: int, expired_at_us: int) -> int: ...
    def forget(self, slice: int, main: int, expired_at_us: int) -> int:
        """Deletes from the main slice the keys of a slice of timers that expire at or before the time, and drops the
        slice where that is all of them."""
    def drop(self, slice: int) -> None: ...
    def flush(self, writer: PackWriter) -> list[tuple[int, int, int, int]]:
        """Writes what the running batch changed and has not been flushed yet, as (slice, offset, length, rows)."""
    @property
    def dirty_bytes(self) -> int:
        """Bytes that the next flush would write."""
    def add_pending(self, slice: int, run: Run) -> None:
        """A flushed run of the running batch; it becomes committed or is forgotten with the batch."""
    def commit(self) -> None:
        """The batch's changes are now the state. Evicts what exceeds the memory."""
    def abort(self) -> None: ...
    def replace(self, slice: int, first: int, count: int, run: Run) -> bool:
        """Puts a merged run in the place of the committed runs `first` to `first + count` (oldest is 0). False,
        and nothing changed, when the slice is gone."""
    def runs(self, slice: int) -> list[Run]: ...
    def run_lengths(self, slice: int) -> list[tuple[int, int]]:
        """(length, rows) of the committed runs, oldest first."""
    def slice_stats(self, slice: int) -> dict[str, int]:
        """rows, live_bytes, run_bytes, runs, vain_ns: what look-ups spent in runs without their keys, which a merge
        would have spared, since the last merge."""
    def stats(self) -> dict[str, int]:
        """rows, memory_bytes, run_bytes, live_bytes, runs, gets, memory_hits, filter_negatives, disk_probes (of
        key and run), block_reads, read_requests, read_wait_ns, false_positives, read_bytes, lookup_ns,
        removal_ns."""
    @property
    def spent_ns(self) -> tuple[int, int]:
        """Time spent so far on looking for keys in runs and on removal, calls to the file system left out."""

@final
class SessionRowsLayout:
    """How rows that are kept for sessions lie in bytes. Kept columns that are keys are read back from the key."""

    def __new__(
        cls,
        input: pa.Schema,
        keys: list[int],
        kept: list[int],
        time: int | None = None,
        gap_us: int | None = None,
        end: int | None = None,
        rows: int | None = None,
        expected: int | None = None,
    ) -> SessionRowsLayout:
        """`keys`, `kept`, `time`, `end`: positions in the input schema; times are int64 microseconds. A window ends
        `gap_us` after its last row; at the latest `end` of its rows; without either, at the time, its bounds being
        keys; or with so many `rows`, which need no time. `expected`: position of the time (int64 microseconds, may be
        null) at which the row's window will be read, as far as the query knows; it decides what is read ahead and
        nothing else."""
    @property
    def encoded_schema(self) -> pa.Schema:
        """Time, key and value, and more where the layout has it: the form in which rows travel between an ingest task
        and a store."""
    @property
    def output_schema(self) -> pa.Schema:
        """The kept columns, then start and end of the session as int64 microseconds; where windows end with their
        rows, the start is the number of the window's first row among all of the key."""

@final
class SessionRowsSorter:
    """Encodes a task's rows for sessions and sorts them out by shard."""

    def __new__(
        cls, layout: SessionRowsLayout, shard_starts: list[int], late_before_us: int | None = None
    ) -> SessionRowsSorter:
        """Rows whose own session ends at or before `late_before_us` are counted as late and left out, rows without
        a time are left out."""
    def push(self, batch: pa.RecordBatch) -> None: ...
    def drain(self) -> list[tuple[int, pa.RecordBatch]]: ...
    @property
    def rows(self) -> int: ...
    @property
    def late_rows(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

@final
class SessionRowsRun:
    """An immutable run of session rows inside a pack; of its index only a directory is in memory."""

    @staticmethod
    def open(
        layout: SessionRowsLayout, path: str, offset: int, length: int, read_delay_us: int = 0
    ) -> SessionRowsRun: ...

@final
class SessionRowsStore:
    """The append, unaligned read store of one operator in one shard: rows of sessions until those have closed.

    One writer. `append` and `take_due` belong to the running batch until `commit` or `abort`. `read_ahead` and
    `rewrite` may run beside it, on another thread.
    """

    def __new__(
        cls, layout: SessionRowsLayout, first_bucket: int, end_bucket: int, memory_bytes: int
    ) -> SessionRowsStore: ...
    def restore(self, runs: list[SessionRowsRun]) -> None:
        """Puts committed runs in place, oldest first: one scan of their index."""
    def append(self, encoded: pa.RecordBatch) -> None: ...
    def take_due(self, watermark_us: int, max_rows: int = ...) -> Iterator[pa.RecordBatch]:
        """Takes the sessions that end at or before the watermark, or the windows that are full: their rows in the
        output schema, those of a session together. Nothing can be appended after it in the same batch."""
    @property
    def rows(self) -> int:
        """Rows of open sessions, as the running batch leaves them."""
    @property
    def sessions(self) -> int:
        """Open sessions. Where windows end with their rows, every key has one, be it without rows."""
    @property
    def dirty_bytes(self) -> int: ...
    def flush(self, writer: PackWriter) -> tuple[int, int, int] | None:
        """Writes what was appended and not taken, as (offset, length, rows)."""
    def add_pending(self, run: SessionRowsRun) -> None:
        """The run that was just flushed; it becomes committed or is forgotten with the batch."""
    def runs_in_use(self) -> list[bool]:
        """Which of the committed runs are needed after the running batch; its commit drops the others."""
    def commit(self) -> None: ...
    def abort(self) -> None:
        """Forgets the running batch, by reading the index of the committed runs."""
    def replace(self, first: int, count: int, run: SessionRowsRun) -> None:
        """Puts a rewritten run in the place of the committed runs `first` to `first + count` (oldest is 0)."""
    def runs(self) -> list[SessionRowsRun]: ...
    def run_uses(self) -> list[tuple[int, int]]:
        """(live bytes, all bytes) of the committed runs, oldest first."""
    def read_ahead(self, ratio: float) -> None:
        """Reads sessions that close next into memory: those that the next step of the watermark makes due if it is as
        long as the last, and at least this share of the open ones; none where it is 0."""
    def rewrite(self, ratio: float, runs: list[SessionRowsRun], writer: PackWriter) -> tuple[int, int, int]:
        """Writes what is alive of the runs as one and reads ahead in the same scan; gives (offset, length, rows)."""
    def stats(self) -> dict[str, int]:
        """rows, sessions, memory_bytes, run_bytes, live_bytes, runs, gets, memory_hits, disk_probes (sessions that
        cost a read), read_requests, read_wait_ns, read_ahead, read_ahead_hits, read_ahead_evicted, index_scans,
        read_bytes, taken_bytes, rewritten_bytes."""

@final
class Nexmark:
    """NEXMark's events, equal to Apache Beam's. An event follows from its number and the arguments alone."""

    def __new__(
        cls,
        *,
        events_per_second: int | None = None,
        base_time_ms: int | None = None,
        out_of_order_group: int | None = None,
        hot_auction_ratio: int | None = None,
        hot_seller_ratio: int | None = None,
        hot_bidder_ratio: int | None = None,
        hot_auction_interval: int | None = None,
        hot_seller_interval: int | None = None,
        hot_bidder_interval: int | None = None,
        in_flight_auctions: int | None = None,
        active_people: int | None = None,
        person_bytes: int | None = None,
        auction_bytes: int | None = None,
        bid_bytes: int | None = None,
    ) -> Nexmark:
        """What is None is as in Beam. A ratio of n: one in n is not hot. The hot auction, seller and bidder change
        with every `interval` new ids. Event times are apart by whole microseconds."""
    def batch(
        self, first: int, count: int, *, kinds: list[str] | None = None, columns: list[str] | None = None
    ) -> pa.RecordBatch:
        """The events at the places from `first` on: `event_type`, one struct each for `person`, `auction` and
        `bid`, null where the event is of another kind, and `ts`. Events of other than the named kinds are left
        out, so there may be fewer than `count`."""
    def json_lines(self, first: int, count: int, *, kinds: list[str] | None = None) -> pa.RecordBatch:
        """The same events as JSON objects, in one column `value`."""
    def text_lines(self, first: int, count: int) -> bytes:
        """The same events as lines, fields between bars, times in milliseconds since the epoch."""

@final
class JoinLayout:
    """How the rows of two joined streams lie in bytes. Equal arguments give equal bytes in every process."""

    def __new__(
        cls,
        left: dict[str, Any],
        right: dict[str, Any],
        comparisons: list[str],
        slice_us: int,
    ) -> JoinLayout:
        """A side is a dict. `input`: its schema. `keys`, `kept`, `comparands`: lists of positions. `matchable`,
        `late`, `expiry`: positions or None. `times`: the numbers of the comparisons whose comparand is the time that
        `expiry` follows, `expires_after_us` later. `null_keys`: null is equal to null. `outer`: rows that found no
        partner come out. `once`: rows come out with their first partner only."""
    @property
    def output_schema(self) -> pa.Schema:
        """The left side's kept columns, then the right side's."""
    @property
    def encoded_schema(self) -> pa.Schema: ...
    def open_run(self, path: str, offset: int, length: int, read_delay_us: int = 0) -> Run: ...
    def merge_runs(
        self,
        part: int,
        runs: list[Run],
        writer: PackWriter,
        buckets: tuple[int, int],
        whole: bool,
        evicted_us: int,
    ) -> tuple[int, int, int]:
        """Writes runs of a part, given oldest first, as one, without rows that expired. `whole`: nothing older
        exists. Returns (offset, length, rows)."""

@final
class JoinSorter:
    """Encodes a task's rows of one side and sorts them out by shard."""

    def __new__(
        cls, layout: JoinLayout, side: int, shard_starts: list[int], late_before_us: int | None = None
    ) -> JoinSorter: ...
    def push(self, batch: pa.RecordBatch) -> None: ...
    def drain(self) -> list[tuple[int, pa.RecordBatch]]: ...
    @property
    def rows(self) -> int: ...
    @property
    def late_rows(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

@final
class JoinStore:
    """The store of one join in one shard: the rows of both sides in parts, by the time they can be forgotten.

    One writer. What `apply` brings and firing removes belongs to the running batch until `commit` or `abort`.
    """

    def __new__(
        cls, layout: JoinLayout, first_bucket: int, end_bucket: int, memory_bytes: int
    ) -> JoinStore: ...
    def restore(self, part: int, rows: int, runs: list[Run]) -> None: ...
    @property
    def evicted_us(self) -> int:
        """The watermark at which rows were last let go, as the running batch leaves it."""
    def restore_evicted(self, evicted_us: int) -> None: ...
    def apply(self, encoded: pa.RecordBatch) -> None: ...
    def begin_fire(self, before_us: int) -> None:
        """From here on the batch takes no rows, and `next_output` gives what it leads to: pairs, then what expires at
        `before_us` without a partner."""
    def next_output(self) -> pa.RecordBatch | None: ...
    def parts(self) -> list[tuple[int, int]]:
        """(part, rows in it), dropped ones left out, in order."""
    @property
    def dirty_bytes(self) -> int: ...
    def flush(self, writer: PackWriter) -> list[tuple[int, int, int, int]]:
        """(part, offset, length, keys) of each run written; hand each back with `add_pending`."""
    def add_pending(self, part: int, run: Run) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def replace(self, part: int, first: int, count: int, run: Run) -> bool: ...
    def runs(self, part: int) -> list[Run]: ...
    def run_bytes(self, part: int) -> int: ...
    def read_ahead(self) -> None:
        """Reads what the next batches will look into. It may run beside all other calls."""
    def stats(self) -> dict[str, int]: ...
