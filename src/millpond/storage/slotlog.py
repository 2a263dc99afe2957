"""The slot log: numbered records, each written once, that say who owns a query and what is committed.

Nothing is decided by a listing, which may lag. It only gives a starting point; from there the newest slot is
found by name. For that to work after old records were deleted, the log keeps every slot that is a multiple of
`ANCHOR_EVERY` (the *anchors*) and everything from the last anchor on: the newest slot is then reached from
anywhere by going from anchor to anchor and then one by one. It also means that a driver that slept so long
that its next slot was written and deleted again finds the next anchor taken; whoever writes a slot looks
there afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from millpond.errors import Conflict, CorruptState, Fenced, InternalError
from millpond.semantics.operator import OperatorSpec
from millpond.storage import records
from millpond.storage.names import LOG, LogName, log_name, parse
from millpond.storage.records import CommitRecord, LogRecord, OwnerRecord, damaged
from millpond.storage.store import Missing, Storage

__all__ = ["ANCHOR_EVERY", "Head", "Lease", "SlotLog"]

ANCHOR_EVERY = 1024
"""Part of the format: drivers that disagree on it would not find each other's records."""


class Head(msgspec.Struct, frozen=True):
    """The newest part of the log."""

    owner: OwnerRecord | None
    commits: tuple[CommitRecord, ...]
    """The newest commit records, newest first."""
    next_slot: int

    @property
    def newest(self) -> CommitRecord | None:
        return self.commits[0] if self.commits else None


class SlotLog:
    """Reads the log of one query and takes it over."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def read(self, slot: int) -> LogRecord:
        name = log_name(slot)
        where = f"{name} in {self.storage.location}"
        record = records.decode(self.storage.get(name), where)
        if record.slot != slot:
            raise damaged(where, f"it holds the record of slot {record.slot}")
        return record

    def find(self, slot: int) -> LogRecord | None:
        try:
            return self.read(slot)
        except Missing:
            return None

    def head(self, versions: int = 2) -> Head:
        """The newest owner and up to `versions` commit records, fewer if the log has no more."""
        newest = self._newest_slot()
        if newest < 0:
            return Head(None, (), 0)
        owner: OwnerRecord | None = None
        commits: list[CommitRecord] = []
        for record in self._downward(newest):
            if isinstance(record, OwnerRecord):
                owner = owner or record
            else:
                owner = owner or self.owner_of(record)
                commits.append(record)
                if len(commits) >= versions:
                    break
        return Head(owner, tuple(commits), newest + 1)

    def owner_of(self, commit: CommitRecord) -> OwnerRecord:
        record = self.read(commit.owner_slot)
        if not isinstance(record, OwnerRecord):
            raise damaged(
                f"{log_name(commit.slot)} in {self.storage.location}", "its owner's slot holds no owner"
            )
        return record

    def take(
        self,
        *,
        query_id: str,
        run_id: str,
        driver: str,
        operators: tuple[OperatorSpec, ...],
        shard_starts: tuple[int, ...],
        taken_at_ms: int,
    ) -> Lease:
        """Makes the caller the owner. `run_id` is unique to this start; every earlier owner is fenced."""
        while True:
            head = self.head()
            owner = OwnerRecord(
                slot=head.next_slot,
                query_id=query_id,
                run_id=run_id,
                driver=driver,
                operators=operators,
                shard_starts=shard_starts,
                taken_at_ms=taken_at_ms,
            )
            try:
                self.storage.put(log_name(owner.slot), records.encode(owner))
            except Conflict:
                continue
            # If the slot was free only because what stood there was deleted, the head that was read is old.
            if not self.passed(owner.slot):
                return Lease(self, owner, head.newest)

    def passed(self, slot: int) -> bool:
        """Whether the log has reached the next anchor after `slot`, so that `slot` may be deleted."""
        return self._exists(_next_anchor(slot))

    def _downward(self, slot: int) -> Iterator[LogRecord]:
        """Records from `slot` down to where older ones were deleted."""
        committed = False
        while slot >= 0:
            record = self.find(slot)
            if record is None:
                if not committed:
                    # A commit record is deleted only after newer ones were written.
                    raise CorruptState(
                        f"{log_name(slot)} is missing in {self.storage.location}: restore it from a copy, or "
                        "start with a new checkpoint and an empty state directory"
                    )
                return
            committed = committed or isinstance(record, CommitRecord)
            yield record
            slot -= 1

    def _newest_slot(self) -> int:
        """The newest slot, -1 if the log is empty."""
        newest = self._listed_slot()
        while self.passed(newest):
            newest = _next_anchor(newest)
        while self._exists(newest + 1):
            newest += 1
        return newest

    def _listed_slot(self) -> int:
        names = (parse(name) for name in self.storage.list(LOG))
        return max((name.slot for name in names if isinstance(name, LogName)), default=-1)

    def _exists(self, slot: int) -> bool:
        try:
            self.storage.get(log_name(slot), 0, 1)
        except Missing:
            return False
        return True


class Lease:
    """The right to append, as long as nobody newer has taken the log."""

    def __init__(self, log: SlotLog, owner: OwnerRecord, newest: CommitRecord | None) -> None:
        self.log = log
        self.owner = owner
        self._newest = newest
        self._next_slot = owner.slot + 1
        self._lock = threading.Lock()

    @property
    def slot(self) -> int:
        """The owner's slot, which stands in the names of all it writes."""
        return self.owner.slot

    @property
    def newest(self) -> CommitRecord | None:
        """The newest commit record of the query that is known here."""
        return self._newest

    def check(self) -> None:
        """`Fenced` if a newer owner has taken the log. Takes notice of own records whose reply was lost."""
        with self._lock:
            self._catch_up()

    def append(
        self,
        *,
        batch_id: int,
        offsets_digest: str,
        input_rows: int,
        watermark_us_before: int | None,
        watermark_us: int | None,
        manifest: str,
        committed_at_ms: int,
    ) -> CommitRecord:
        """Commits a batch. May be repeated after an error: a record that an earlier attempt wrote counts."""
        with self._lock:
            record = CommitRecord(
                slot=self._next_slot,
                owner_slot=self.slot,
                query_id=self.owner.query_id,
                batch_id=batch_id,
                offsets_digest=offsets_digest,
                input_rows=input_rows,
                watermark_us_before=watermark_us_before,
                watermark_us=watermark_us,
                manifest=manifest,
                committed_at_ms=committed_at_ms,
            )
            if self._newest is None or self._newest.batch_id != batch_id:
                self._check_order(record)
                try:
                    self.log.storage.put(log_name(record.slot), records.encode(record))
                except Conflict:
                    self._catch_up()
                else:
                    self._advance(record)
                    self._check_passed()
            newest = self._newest
            if newest is None or not _same_commit(newest, record):
                raise Conflict(
                    f"batch {batch_id} of query {record.query_id} was committed before with another result "
                    f"({newest.manifest if newest else 'unknown'}, now {manifest}): read the log and go "
                    "on from it"
                )
            return newest

    def _check_order(self, record: CommitRecord) -> None:
        if self._newest is not None and record.batch_id != self._newest.batch_id + 1:
            raise InternalError(
                f"batch {record.batch_id} of query {record.query_id} can't follow committed batch "
                f"{self._newest.batch_id}"
            )

    def _catch_up(self) -> None:
        while (found := self.log.find(self._next_slot)) is not None:
            if isinstance(found, OwnerRecord) or found.owner_slot != self.slot:
                raise self._fenced()
            self._advance(found)
        self._check_passed()

    def _check_passed(self) -> None:
        if self.log.passed(self._next_slot - 1):
            raise self._fenced()

    def _advance(self, record: CommitRecord) -> None:
        self._newest = record
        self._next_slot = record.slot + 1

    def _fenced(self) -> Fenced:
        owner = self.log.head(versions=1).owner
        newer = f"{owner.driver} (run {owner.run_id}, slot {owner.slot})" if owner else "another driver"
        return Fenced(
            f"query {self.owner.query_id} was taken over by {newer}, as the log in "
            f"{self.log.storage.location} says: this driver, {self.owner.driver}, must stop. If two "
            "were started by mistake, stop one of them"
        )


def _next_anchor(slot: int) -> int:
    return (slot // ANCHOR_EVERY + 1) * ANCHOR_EVERY


def _same_commit(one: CommitRecord, other: CommitRecord) -> bool:
    """Whether both say the same of a batch, whenever and wherever they were written."""
    neutral = {"slot": 0, "committed_at_ms": 0}
    return msgspec.structs.replace(one, **neutral) == msgspec.structs.replace(other, **neutral)
