"""The order of writes, and what a start makes of what it finds."""

from __future__ import annotations

import pytest

from millpond.errors import Conflict, CorruptState, Fenced, InternalError, InvalidQuery, Unavailable
from millpond.storage import names, protocol
from millpond.storage.manifest import Manifest
from millpond.storage.protocol import Fresh, Resume
from millpond.storage.slotlog import SlotLog
from millpond.storage.store import Missing
from millpond.testing.storage import Crashed, Fault, FaultyStorage, MemoryStorage
from tests.storage_kit import append, commit, read_state, take


def start(storage, *, spark=None, query_id="query", new=False):
    return protocol.verify_start(
        SlotLog(storage).head(),
        spark_last_committed_batch=spark,
        spark_query_id=query_id,
        checkpoint_is_new=new,
        location="/the/state",
    )


def committed(batches):
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(batches):
        append(lease, batch)
    return storage


def test_writes_come_in_the_order_of_the_rule():
    storage = FaultyStorage(MemoryStorage())
    commit(storage, take(storage), 0)
    written = [
        name.partition("/")[0] for operation, name in storage.operations if operation.startswith("put")
    ]
    assert written == ["log", "packs", "manifests", "log"]


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
@pytest.mark.parametrize("after", range(20))
def test_a_crash_at_any_point_of_a_commit_keeps_the_last_version_or_gives_the_new_one(kind, after):
    inner = MemoryStorage()
    old = commit(inner, take(inner), 0)
    storage = FaultyStorage(inner, Fault(kind, after=after))
    survived = True
    try:
        commit(storage, take(storage, "second"), 1, keep=tuple(inner.list("packs/")))
    except Crashed:
        survived = False
    head = SlotLog(inner).head()
    assert head.newest is not None
    if survived:
        assert head.newest.batch_id == 1
    assert len(read_state(inner, head.newest)) == head.newest.batch_id + 1
    if head.newest.batch_id == 0:
        assert head.newest == old
        # Spark replays the batch with a new driver.
        commit(inner, take(inner, "third"), 1, keep=tuple(read_state(inner, old)))
        newest = SlotLog(inner).head().newest
        assert newest is not None
        assert len(read_state(inner, newest)) == 2


def test_a_fenced_driver_can_write_packs_but_not_commit():
    storage = MemoryStorage()
    old = take(storage, "old")
    commit(storage, old, 0)
    new = take(storage, "new")
    with pytest.raises(Fenced):
        commit(storage, old, 1)
    assert commit(storage, new, 1).owner_slot == new.slot


def test_a_manifest_can_be_published_again_after_a_lost_reply():
    storage = FaultyStorage(MemoryStorage(), Fault("lose_reply", "put", "manifests/"))
    with pytest.raises(Unavailable):
        protocol.publish_manifest(storage, Manifest(3, ()), owner_slot=0, attempt=1)
    assert protocol.publish_manifest(
        storage, Manifest(3, ()), owner_slot=0, attempt=1
    ) == names.manifest_name(0, 3, 1)


def test_another_manifest_under_the_same_name_is_a_conflict():
    from millpond.storage.manifest import StoreState

    storage = MemoryStorage()
    protocol.publish_manifest(storage, Manifest(3, ()), owner_slot=0, attempt=1)
    with pytest.raises(Conflict):
        protocol.publish_manifest(storage, Manifest(3, (StoreState(0, 0, ()),)), owner_slot=0, attempt=1)


def test_a_cut_manifest_is_noticed():
    storage = FaultyStorage(MemoryStorage(), Fault("cut", "put", "manifests/"))
    record = commit(storage, take(storage), 0)
    with pytest.raises(CorruptState, match=f"{record.manifest} in memory is damaged"):
        protocol.read_manifest(storage, record)


def test_a_missing_manifest_is_named():
    storage = MemoryStorage()
    record = commit(storage, take(storage), 0)
    storage.delete(record.manifest)
    with pytest.raises(Missing, match=record.manifest):
        protocol.read_manifest(storage, record)


def test_only_packs_are_published_as_packs(tmp_path):
    with pytest.raises(InternalError, match="log/1"):
        protocol.publish_pack(MemoryStorage(), "log/1", tmp_path / "x")


def test_a_commit_names_a_manifest_of_its_own_batch():
    storage = MemoryStorage()
    lease = take(storage)
    with pytest.raises(InternalError, match="no manifest of batch 1"):
        protocol.publish_commit(
            lease,
            batch_id=1,
            offsets_digest="",
            input_rows=0,
            watermark_us_before=None,
            watermark_us=None,
            manifest=names.manifest_name(lease.slot, 0, 0),
            committed_at_ms=0,
        )


def test_new_checkpoint_without_state_is_fresh():
    assert start(MemoryStorage(), new=True) == Fresh()


def test_crash_before_the_first_commit_is_fresh():
    assert start(MemoryStorage()) == Fresh()
    assert start(committed(0)) == Fresh()


def test_state_level_with_the_checkpoint_is_resumed():
    found = start(committed(5), spark=4)
    assert isinstance(found, Resume)
    assert found.commit.batch_id == 4


@pytest.mark.parametrize(("batches", "spark"), [(1, None), (6, 4)])
def test_state_one_batch_ahead_is_resumed(batches, spark):
    found = start(committed(batches), spark=spark)
    assert isinstance(found, Resume)
    assert found.commit.batch_id == batches - 1


@pytest.mark.parametrize("storage", [MemoryStorage(), committed(0)])
def test_used_checkpoint_without_state(storage):
    with pytest.raises(
        CorruptState, match=r"batches up to 4 but the state directory /the/state is empty: restore"
    ):
        start(storage, spark=4)


def test_state_behind_the_checkpoint():
    with pytest.raises(
        CorruptState, match=r"checkpoint has batches up to 4 .* /the/state only up to 3.*restore"
    ):
        start(committed(4), spark=4)


@pytest.mark.parametrize(("spark", "has"), [(2, "batches up to 2"), (None, "no committed batch")])
def test_state_far_ahead_of_the_checkpoint(spark, has):
    with pytest.raises(CorruptState, match=f"/the/state has batches up to 4 but the checkpoint has {has}"):
        start(committed(5), spark=spark)


def test_state_of_another_query():
    with pytest.raises(
        InvalidQuery, match="state of query query up to batch 4, but the checkpoint belongs to query other"
    ):
        start(committed(5), spark=4, query_id="other")


def test_state_beside_a_new_checkpoint():
    with pytest.raises(
        InvalidQuery, match=r"checkpoint is new, but .* holds the state of query query.*stateLocation"
    ):
        start(committed(5), query_id="other", new=True)


def test_state_of_another_query_is_noticed_even_after_taking_the_log():
    storage = committed(5)
    take(storage, "mistaken", query_id="other")
    with pytest.raises(InvalidQuery, match="state of query query"):
        start(storage, spark=4, query_id="other")


def test_a_mistaken_driver_that_took_the_log_does_not_lock_the_query_out():
    storage = committed(5)
    take(storage, "mistaken", query_id="other")
    assert isinstance(start(storage, spark=4), Resume)


def test_log_taken_by_another_query_that_never_committed():
    with pytest.raises(InvalidQuery, match="holds the state of query query, but"):
        start(committed(0), query_id="other")
