"""What driver, tasks and service say to each other, as plain data. Nothing here is unpickled."""

from __future__ import annotations

import msgspec

from millpond.semantics.operator import OperatorSpec, OutputMode
from millpond.service.spent import Spent
from millpond.settings import Settings
from millpond.storage.records import CommitRecord

__all__ = [
    "BatchTry",
    "CommitReply",
    "Endpoint",
    "OpenReply",
    "OpenRequest",
    "OutputKey",
    "Receipt",
    "SaveReply",
    "SealReply",
    "SealRequest",
    "StageKey",
    "StagedFile",
    "StatsReply",
]


class Endpoint(msgspec.Struct, frozen=True):
    """Where a service listens, the token that it asks for, and its directory, for rows that go to it or come from it
    in files: on one host that costs less than a socket."""

    uri: str
    token: str
    directory: str


class BatchTry(msgspec.Struct, frozen=True):
    """One try at one micro-batch. What belongs to another try is refused."""

    run: str
    batch: int
    number: int


class StageKey(msgspec.Struct, frozen=True):
    """Who staged rows: an attempt of a task of one operator's ingest job."""

    at: BatchTry
    operator: int
    task: int
    attempt: int
    side: int = 0
    """Which of the operator's inputs."""


class StagedFile(msgspec.Struct, frozen=True):
    """Rows that a task has left in the service's directory, the shard of each batch in its metadata."""

    key: StageKey
    name: str


class OutputKey(msgspec.Struct, frozen=True):
    at: BatchTry
    operator: int
    shard: int


class Receipt(msgspec.Struct, frozen=True):
    """What a task attempt says it has staged. Only attempts whose receipt reached the driver count."""

    task: int
    attempt: int
    input_rows: int
    late_rows: int
    staged_rows: tuple[int, ...]
    """Encoded rows per shard."""
    overflow: str | None = None
    """Set when a sum left the range of its type while the task combined its rows."""
    side: int = 0
    spent: Spent = Spent()


class OpenRequest(msgspec.Struct, frozen=True):
    location: str
    owner_slot: int
    operators: tuple[OperatorSpec, ...]
    shard_starts: tuple[int, ...]
    commit: CommitRecord | None
    """The version to start from."""
    settings: Settings


class SealRequest(msgspec.Struct, frozen=True):
    at: BatchTry
    operator: int
    mode: OutputMode
    receipts: tuple[Receipt, ...]
    before_us: int
    watermark_us: int


class SealReply(msgspec.Struct, frozen=True):
    output_rows: tuple[int, ...]
    """Rows to emit per shard."""
    spent: Spent = Spent()
    """Over all shards, as it passed for the caller."""


class SaveReply(msgspec.Struct, frozen=True):
    manifest: str
    written_bytes: int
    spent: Spent = Spent()


class StatsReply(msgspec.Struct, frozen=True):
    """Figures of one operator, summed over the shards."""

    rows: int = 0
    memory_bytes: int = 0
    run_bytes: int = 0
    live_bytes: int = 0
    runs: int = 0
    gets: int = 0
    memory_hits: int = 0
    filter_negatives: int = 0
    disk_probes: int = 0
    block_reads: int = 0
    read_requests: int = 0
    read_wait_ns: int = 0
    false_positives: int = 0
    read_bytes: int = 0
    taken_bytes: int = 0
    """Bytes of rows that were given out from files; `read_bytes` for each of them is the read amplification."""
    index_scans: int = 0
    read_ahead: int = 0
    """Sessions read ahead; those of them that closed before they grew; those that grew first. Of joins: blocks, and
    keys that were found in them."""
    read_ahead_hits: int = 0
    read_ahead_evicted: int = 0
    rewritten_bytes: int = 0
    observing_shards: int = 0
    """Of an operator of unknown pattern: shards whose store is not chosen yet, and those whose windows end together
    or each by itself."""
    aligned_shards: int = 0
    unaligned_shards: int = 0
    seen_windows: int = 0
    """What the choice rests on: open windows, and the different times at which they end."""
    seen_ends: int = 0
    unmoved_rows: int = 0
    """Rows that are still to be moved to the store that was chosen."""


class OpenReply(msgspec.Struct, frozen=True):
    stats: tuple[StatsReply, ...]
    """One per operator."""


class CommitReply(msgspec.Struct, frozen=True):
    stats: tuple[StatsReply, ...]
    """One per operator."""
    in_flight: tuple[str, ...]
    """Packs that no manifest names yet and that collection must spare."""
    spent: Spent = Spent()
    """With the CPU time of merges that ended since the last commit."""
    storage_wait_ns: int = 0
    """What the service has waited for requests to storage, since it was opened."""
