"""A small query on a storage, for tests: takes the log and commits batches whose packs hold a few bytes."""

from __future__ import annotations

from millpond.storage import names, protocol
from millpond.storage.manifest import Manifest, RunRef, SliceState, StoreState
from millpond.storage.records import CommitRecord
from millpond.storage.slotlog import Lease, SlotLog
from millpond.storage.store import Storage


def take(storage: Storage, run_id: str = "run", query_id: str = "query") -> Lease:
    return SlotLog(storage).take(
        query_id=query_id,
        run_id=run_id,
        driver=f"driver of {run_id}",
        operators=(),
        shard_starts=(0,),
        taken_at_ms=1,
    )


def append(lease: Lease, batch_id: int, **changes: object) -> CommitRecord:
    fields: dict[str, object] = {
        "batch_id": batch_id,
        "offsets_digest": f"digest {batch_id}",
        "input_rows": 10,
        "watermark_us_before": None,
        "watermark_us": None,
        "manifest": names.manifest_name(lease.slot, batch_id, 0),
        "committed_at_ms": 5,
    }
    return lease.append(**(fields | changes))  # type: ignore[arg-type]


def commit(storage: Storage, lease: Lease, batch_id: int, keep: tuple[str, ...] = ()) -> CommitRecord:
    """A whole commit: one new pack, and a manifest that also points at the packs in `keep`."""
    pack = names.pack_name(lease.slot, batch_id, 0)
    path = storage.work_directory() / f"pack-{batch_id}"
    path.write_bytes(pack.encode())
    protocol.publish_pack(storage, pack, path)
    runs = tuple(RunRef(name, 0, len(name), 1) for name in (*keep, pack))
    manifest = Manifest(batch_id, (StoreState(0, 0, (SliceState(0, len(runs), runs),)),))
    name = protocol.publish_manifest(storage, manifest, owner_slot=lease.slot, attempt=0)
    return protocol.publish_commit(
        lease,
        batch_id=batch_id,
        offsets_digest=f"digest {batch_id}",
        input_rows=1,
        watermark_us_before=None,
        watermark_us=None,
        manifest=name,
        committed_at_ms=5,
    )


def read_state(storage: Storage, version: CommitRecord) -> dict[str, bytes]:
    """Every run of a version, read from its pack. Fails if anything is missing or wrong."""
    manifest = protocol.read_manifest(storage, version)
    found = {
        run.pack: storage.get(run.pack, run.offset, run.length)
        for store in manifest.stores
        for part in store.slices
        for run in part.runs
    }
    assert all(name.encode() == data for name, data in found.items())
    return found
