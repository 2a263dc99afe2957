"""The slot log: one owner at a time, and no listing, lost reply or long sleep that fools it."""

from __future__ import annotations

import threading

import pytest

from millpond.errors import Conflict, CorruptState, Fenced, InternalError, Unavailable
from millpond.storage.collect import collect
from millpond.storage.names import log_name
from millpond.storage.slotlog import ANCHOR_EVERY, SlotLog
from millpond.testing.storage import Fault, FaultyStorage, LaggingStorage, MemoryStorage
from tests.storage_kit import append, take


def test_empty_log():
    head = SlotLog(MemoryStorage()).head()
    assert (head.owner, head.commits, head.newest, head.next_slot) == (None, (), None, 0)


def test_head_has_the_newest_owner_and_commits():
    storage = MemoryStorage()
    first = take(storage, "one")
    records = [append(first, batch) for batch in range(3)]
    second = take(storage, "two")
    head = SlotLog(storage).head()
    assert head.owner == second.owner
    assert head.commits == (records[2], records[1])
    assert head.newest == second.newest == records[2]
    assert head.next_slot == 5
    assert SlotLog(storage).head(versions=10).commits == tuple(reversed(records))


def test_slots_are_consecutive():
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(3):
        append(lease, batch)
    assert storage.list("") == [log_name(slot) for slot in range(4)]


def test_older_owner_is_fenced_by_the_newer_one():
    storage = MemoryStorage()
    old = take(storage, "old")
    append(old, 0)
    new = take(storage, "new")
    with pytest.raises(Fenced, match=r"query query was taken over by driver of new \(run new"):
        append(old, 1)
    with pytest.raises(Fenced, match="driver of new"):
        old.check()
    assert append(new, 1).owner_slot == new.slot


def test_check_passes_while_nobody_else_came():
    lease = take(MemoryStorage())
    lease.check()
    append(lease, 0)
    lease.check()


@pytest.mark.parametrize("settled_after", [None, 1, 3, 6])
def test_a_listing_that_lags_does_not_hide_records(settled_after):
    storage = LaggingStorage(MemoryStorage())
    lease = take(storage)
    for batch in range(10):
        append(lease, batch)
        if batch == settled_after:
            storage.settle()
    head = SlotLog(storage).head()
    assert head.newest is not None
    assert head.newest.batch_id == 9
    assert take(storage, "next").slot == 11


@pytest.mark.parametrize("settled_after", [None, 0, 700, 1022, 1023, 1024, 1500, 2200])
def test_a_listing_from_before_a_collection_does_not_hide_records(settled_after):
    inner = MemoryStorage()
    storage = LaggingStorage(inner)
    lease = take(storage)
    for batch in range(2300):
        append(lease, batch)
        if batch == settled_after:
            storage.settle()
    delete_old_log_records(inner, lease)
    assert log_name(701) not in inner.list("log/")
    head = SlotLog(storage).head()
    assert head.newest is not None
    assert head.newest.batch_id == 2299
    assert head.owner == lease.owner


def delete_old_log_records(storage, lease):
    """Collects until nothing is left to collect, with a manifest behind the newest record."""
    from millpond.storage.manifest import Manifest
    from millpond.storage.protocol import publish_manifest

    publish_manifest(storage, Manifest(lease.newest.batch_id, ()), owner_slot=lease.slot, attempt=0)
    while collect(storage, lease).log:
        pass


def test_a_driver_that_slept_through_a_collection_is_fenced():
    storage = MemoryStorage()
    sleeper = take(storage, "sleeper")
    append(sleeper, 0)
    take(storage, "between")
    lease = take(storage, "awake")
    for batch in range(1, 2 * ANCHOR_EVERY):
        append(lease, batch)
    delete_old_log_records(storage, lease)
    assert log_name(2) not in storage.list("log/"), "the record that fenced the sleeper is gone"
    with pytest.raises(Fenced, match="driver of awake"):
        sleeper.check()
    with pytest.raises(Fenced, match="driver of awake"):
        append(sleeper, 1)
    head = SlotLog(storage).head()
    assert head.owner == lease.owner
    assert head.newest == lease.newest


def test_a_driver_that_slept_while_taking_does_not_own_a_deleted_slot():
    storage = MemoryStorage()
    lease = take(storage, "first")
    append(lease, 0)

    class Sleepy(FaultyStorage):
        slept = False

        def put(self, name, data):
            if not self.slept:
                self.slept = True
                for batch in range(1, 2 * ANCHOR_EVERY):
                    append(lease, batch)
                delete_old_log_records(storage, lease)
            super().put(name, data)

    late = take(Sleepy(storage), "late")
    assert late.slot == 2 * ANCHOR_EVERY + 1
    assert late.newest == lease.newest
    late.check()


def test_a_lost_reply_counts_as_done_when_repeated():
    inner = MemoryStorage()
    lease = take(FaultyStorage(inner, Fault("lose_reply", "put", after=1)))
    with pytest.raises(Unavailable):
        append(lease, 0, committed_at_ms=5)
    again = append(lease, 0, committed_at_ms=6)
    assert again.committed_at_ms == 5, "the record that was written is the one that counts"
    assert append(lease, 1).slot == again.slot + 1
    assert len(inner.list("log/")) == 3


def test_a_lost_reply_is_noticed_by_check():
    lease = take(FaultyStorage(MemoryStorage(), Fault("lose_reply", "put", after=1)))
    with pytest.raises(Unavailable):
        append(lease, 0)
    assert lease.newest is None
    lease.check()
    assert lease.newest is not None
    assert lease.newest.batch_id == 0
    assert append(lease, 0) == lease.newest


def test_a_failed_append_can_be_repeated():
    lease = take(FaultyStorage(MemoryStorage(), Fault("fail", "put", after=1)))
    with pytest.raises(Unavailable):
        append(lease, 0)
    assert append(lease, 0).batch_id == 0


def test_another_result_for_a_committed_batch_is_a_conflict():
    lease = take(FaultyStorage(MemoryStorage(), Fault("lose_reply", "put", after=1)))
    with pytest.raises(Unavailable):
        append(lease, 0)
    with pytest.raises(Conflict, match=r"batch 0 .* committed before"):
        append(lease, 0, input_rows=11)


def test_batches_are_committed_in_order():
    lease = take(MemoryStorage())
    append(lease, 0)
    with pytest.raises(InternalError, match=r"batch 2 .* can't follow committed batch 0"):
        append(lease, 2)
    append(lease, 1)
    with pytest.raises(InternalError, match=r"batch 0 .* can't follow committed batch 1"):
        append(lease, 0)


def test_two_drivers_that_start_at_once_get_different_slots():
    storage = MemoryStorage()
    start = threading.Barrier(4)
    leases = []

    def begin(number):
        start.wait()
        leases.append(take(storage, f"run {number}"))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lease.slot for lease in leases) == [0, 1, 2, 3]
    *fenced, owner = sorted(leases, key=lambda lease: lease.slot)
    owner.check()
    for lease in fenced:
        with pytest.raises(Fenced):
            lease.check()


def test_damaged_record_is_named():
    storage = MemoryStorage()
    append(take(storage), 0)
    storage.damage(log_name(1), storage.get(log_name(1))[:-9])
    with pytest.raises(CorruptState, match=f"{log_name(1)} in memory is damaged"):
        SlotLog(storage).head()


def test_a_record_under_another_slot_is_noticed():
    storage = MemoryStorage()
    append(take(storage), 0)
    storage.put(log_name(2), storage.get(log_name(1)))
    with pytest.raises(CorruptState, match="record of slot 1"):
        SlotLog(storage).head()


def test_a_hole_below_the_newest_owner_is_named():
    storage = MemoryStorage()
    append(take(storage), 0)
    take(storage)
    storage.delete(log_name(1))
    with pytest.raises(CorruptState, match=f"{log_name(1)} is missing"):
        SlotLog(storage).head()
