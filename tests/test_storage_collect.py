"""Collection deletes garbage and nothing else, however it is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.errors import Fenced
from millpond.storage import names
from millpond.storage.collect import collect
from millpond.storage.local import LocalStorage
from millpond.storage.slotlog import ANCHOR_EVERY, SlotLog
from millpond.storage.store import Missing
from millpond.testing.storage import Crashed, Fault, FaultyStorage, MemoryStorage
from tests.storage_kit import append, commit, read_state, take


def pack(lease, batch):
    return names.pack_name(lease.slot, batch, 0)


def test_only_what_the_kept_versions_reach_stays():
    storage = MemoryStorage()
    lease = take(storage)
    commit(storage, lease, 0)
    for batch in range(1, 5):
        commit(storage, lease, batch, keep=(pack(lease, 0),))
    collected = collect(storage, lease)
    assert collected.packs == (pack(lease, 1), pack(lease, 2))
    assert collected.manifests == tuple(names.manifest_name(lease.slot, batch, 0) for batch in range(3))
    assert storage.list("packs/") == [pack(lease, batch) for batch in (0, 3, 4)]
    assert storage.list("manifests/") == [names.manifest_name(lease.slot, batch, 0) for batch in (3, 4)]
    for version in SlotLog(storage).head().commits:
        read_state(storage, version)


@pytest.mark.parametrize("keep", [1, 3, 10])
def test_as_many_versions_stay_as_asked(keep):
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(6):
        commit(storage, lease, batch)
    collect(storage, lease, keep_versions=keep)
    assert len(storage.list("manifests/")) == min(keep, 6)
    for version in SlotLog(storage).head(keep).commits:
        read_state(storage, version)


def test_keeping_more_versions_later_is_no_error():
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(6):
        commit(storage, lease, batch)
    collect(storage, lease, keep_versions=1)
    commit(storage, lease, 6)
    collect(storage, lease, keep_versions=5)
    assert len(storage.list("manifests/")) == 2


def test_a_missing_newest_manifest_stops_the_collection():
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(4):
        newest = commit(storage, lease, batch)
    storage.delete(newest.manifest)
    before = storage.list("")
    with pytest.raises(Missing, match=newest.manifest):
        collect(storage, lease)
    assert storage.list("") == before


def test_nothing_is_deleted_before_the_first_commit():
    storage = MemoryStorage()
    lease = take(storage)
    storage.put(pack(lease, 0), b"in flight")
    collect(storage, lease)
    assert storage.list("packs/") == [pack(lease, 0)]


def test_what_is_in_flight_stays():
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(4):
        commit(storage, lease, batch)
    compacted = names.pack_name(lease.slot, 2, "c.1")
    running = pack(lease, 4)
    manifest = names.manifest_name(lease.slot, 4, 0)
    for name in (compacted, running, manifest):
        storage.put(name, b"")
    collect(storage, lease, protected={compacted})
    assert {compacted, running, manifest} <= set(storage.list(""))
    collect(storage, lease)
    assert compacted not in storage.list("")


def test_what_came_into_flight_while_batches_went_on_stays():
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(4):
        commit(storage, lease, batch)
    # Gathered here, with batch 3 committed: nothing is in flight. Then a merged run appears during batch 4.
    merged = names.pack_name(lease.slot, 4, "c.1")
    storage.put(merged, b"")
    commit(storage, lease, 4)
    collect(storage, lease, settled_batch=3)
    assert merged in storage.list("packs/")


def test_leftovers_of_an_older_owner_go_and_those_of_a_newer_stay():
    storage = MemoryStorage()
    older = take(storage, "older")
    abandoned = pack(older, 9)
    storage.put(abandoned, b"")
    lease = take(storage, "current")
    commit(storage, lease, 0)
    newer = names.pack_name(lease.slot + 5, 0, 0)
    storage.put(newer, b"")
    collected = collect(storage, lease)
    assert collected.packs == (abandoned,)
    assert newer in storage.list("packs/")


def test_foreign_names_are_never_touched():
    storage = MemoryStorage()
    foreign = ["packs/mine", "log/notes.txt", "manifests/1", "readme", "log/7", "packs/a/b"]
    for name in foreign:
        storage.put(name, b"")
    lease = take(storage)
    for batch in range(5):
        commit(storage, lease, batch)
    collect(storage, lease, keep_versions=1)
    assert set(foreign) <= set(storage.list(""))


def test_a_fenced_owner_collects_nothing():
    storage = MemoryStorage()
    old = take(storage, "old")
    for batch in range(4):
        commit(storage, old, batch)
    take(storage, "new")
    before = storage.list("")
    with pytest.raises(Fenced):
        collect(storage, old)
    assert storage.list("") == before


def test_log_shrinks_to_anchors_the_owner_and_the_newest_records():
    storage = MemoryStorage()
    take(storage, "gone")
    lease = take(storage, "owner")
    for batch in range(2 * ANCHOR_EVERY + 10):
        append(lease, batch)
    newest = commit(storage, lease, 2 * ANCHOR_EVERY + 10)
    deleted = 0
    while log := collect(storage, lease).log:
        deleted += len(log)
        assert SlotLog(storage).head().newest == newest
    kept = {0, lease.slot, ANCHOR_EVERY, *range(2 * ANCHOR_EVERY, newest.slot + 1)}
    assert storage.list("log/") == [names.log_name(slot) for slot in sorted(kept)]
    assert deleted == newest.slot + 1 - len(kept)
    assert SlotLog(storage).head().owner == lease.owner


def test_kept_versions_below_the_last_anchor_keep_their_records():
    storage = MemoryStorage()
    lease = take(storage)
    for batch in range(ANCHOR_EVERY - 3):
        append(lease, batch)
    for batch in range(ANCHOR_EVERY - 3, ANCHOR_EVERY):
        commit(storage, lease, batch)
    assert lease.newest.slot == ANCHOR_EVERY
    while collect(storage, lease, keep_versions=3).log:
        pass
    kept = SlotLog(storage).head(3).commits
    assert [version.slot for version in kept] == [ANCHOR_EVERY, ANCHOR_EVERY - 1, ANCHOR_EVERY - 2]
    for version in kept:
        read_state(storage, version)


def long_lived(storage):
    """A query with garbage of every kind: old log records, versions, packs of an older owner."""
    old = take(storage, "old")
    storage.put(pack(old, 0), b"")
    lease = take(storage, "new")
    for batch in range(ANCHOR_EVERY + 4):
        append(lease, batch)
    first = ANCHOR_EVERY + 4
    commit(storage, lease, first)
    for batch in range(first + 1, first + 5):
        commit(storage, lease, batch, keep=(pack(lease, first),))
    return lease


def test_a_crash_after_any_operation_leaves_a_valid_state():
    past = MemoryStorage()
    long_lived(past)
    lease = take(past, "collecting")
    undisturbed = FaultyStorage(past.copy())
    collected = collect(undisturbed, lease)
    assert collected.log
    assert collected.manifests
    assert len(collected.packs) == 3
    for stop in range(len(undisturbed.operations)):
        inner = past.copy()
        with pytest.raises(Crashed):
            collect(FaultyStorage(inner, Fault("crash_after", after=stop)), lease)
        head = SlotLog(inner).head()
        assert [version.batch_id for version in head.commits] == [ANCHOR_EVERY + 8, ANCHOR_EVERY + 7]
        for version in head.commits:
            assert len(read_state(inner, version)) == 2
        for name in inner.list("manifests/"):
            assert_manifest_is_whole(inner, name)
        successor = take(inner, "successor")
        while collect(inner, successor).log:
            pass
        assert len(inner.list("packs/")) == 3
        assert len(inner.list("manifests/")) == 2


def assert_manifest_is_whole(storage, name):
    from millpond.storage import manifest as manifests

    for needed in manifests.decode(storage.get(name), name).packs():
        storage.get(needed)


def test_leftover_files_of_dead_writers_are_collected(tmp_path: Path):
    storage = LocalStorage(tmp_path)
    lease = take(storage)
    commit(storage, lease, 0)
    dead = tmp_path / "work" / "dead"
    dead.mkdir()
    (dead / "put-0").write_bytes(b"half")
    dead.with_suffix(".lock").touch()
    assert collect(storage, lease).leftovers == ("work/dead/put-0",)
    assert not dead.exists()
