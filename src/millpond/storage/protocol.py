"""The order of durable writes. Nobody else sequences them.

The rule:
1. packs before the manifest that points at them, the manifest before the commit record that names it;
2. sink before commit record: what is committed has been put out;
3. commit record N before sink N+1: what is put out can be replayed from what is committed;
4. references before deletion: nothing is deleted that something still points at (see `collect`).

A crash between any two writes therefore leaves either objects that nothing reaches or a batch whose record is
missing, which Spark replays.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millpond.errors import Conflict, CorruptState, InternalError, InvalidQuery
from millpond.storage import manifest as manifests
from millpond.storage.manifest import Manifest
from millpond.storage.names import ManifestName, PackName, manifest_name, parse
from millpond.storage.records import CommitRecord, damaged
from millpond.storage.slotlog import Head, Lease
from millpond.storage.store import Storage

__all__ = [
    "Fresh",
    "Resume",
    "publish_commit",
    "publish_manifest",
    "publish_pack",
    "read_manifest",
    "verify_start",
]


class Fresh(msgspec.Struct, frozen=True):
    """There is no state yet: the query begins."""


class Resume(msgspec.Struct, frozen=True):
    """The query goes on from this record. Spark runs its batch once more if it did not hear of the commit."""

    commit: CommitRecord


def publish_pack(storage: Storage, name: str, path: Path) -> None:
    """Step 1a. A name that is taken is a `Conflict`: write the pack under a new one."""
    if not isinstance(parse(name), PackName):
        raise InternalError(f"{name!r} is no name of a pack")
    storage.put_file(name, path)


def publish_manifest(storage: Storage, manifest: Manifest, *, owner_slot: int, attempt: int) -> str:
    """Step 1b, after all its packs. Returns its name. May be repeated with the same manifest."""
    name = manifest_name(owner_slot, manifest.batch_id, attempt)
    data = manifests.encode(manifest)
    try:
        storage.put(name, data)
    except Conflict:
        # The reply to an earlier attempt may have been lost.
        if storage.get(name) != data:
            raise
    return name


def publish_commit(
    lease: Lease,
    *,
    batch_id: int,
    offsets_digest: str,
    input_rows: int,
    watermark_us_before: int | None,
    watermark_us: int | None,
    manifest: str,
    committed_at_ms: int,
) -> CommitRecord:
    """Step 2, after the manifest and the sink. May be repeated. `Fenced` if a newer driver owns the query."""
    named = parse(manifest)
    if not isinstance(named, ManifestName) or (named.owner_slot, named.batch_id) != (lease.slot, batch_id):
        raise InternalError(
            f"{manifest!r} is no manifest of batch {batch_id} by the owner in slot {lease.slot}"
        )
    return lease.append(
        batch_id=batch_id,
        offsets_digest=offsets_digest,
        input_rows=input_rows,
        watermark_us_before=watermark_us_before,
        watermark_us=watermark_us,
        manifest=manifest,
        committed_at_ms=committed_at_ms,
    )


def read_manifest(storage: Storage, commit: CommitRecord) -> Manifest:
    where = f"{commit.manifest} in {storage.location}"
    manifest = manifests.decode(storage.get(commit.manifest), where)
    if manifest.batch_id != commit.batch_id:
        raise damaged(where, f"it is of batch {manifest.batch_id}, its commit record of {commit.batch_id}")
    return manifest


def verify_start(
    head: Head,
    *,
    spark_last_committed_batch: int | None,
    spark_query_id: str,
    checkpoint_is_new: bool,
    location: str,
) -> Fresh | Resume:
    """Compares what the state holds with what Spark's checkpoint says, and decides how the query starts.

    Call it with the head from before taking the log, so that the driver of another query is not fenced by
    mistake, and again with the head from after it, because the driver before may have committed in between.
    """
    spark_batch = -1 if spark_last_committed_batch is None else spark_last_committed_batch
    commit = head.newest
    other_id = _other_query_id(head, spark_query_id)
    if other_id is not None and checkpoint_is_new:
        raise InvalidQuery(
            f"the checkpoint is new, but the state directory {location} holds the state of query {other_id}"
            f"{_up_to(commit)}: start with the checkpoint that belongs to it, or set "
            '.option("stateLocation", DIR) to an empty directory'
        )
    if other_id is not None:
        raise InvalidQuery(
            f"the state directory {location} holds the state of query {other_id}{_up_to(commit)}, but the "
            f'checkpoint belongs to query {spark_query_id}: set .option("stateLocation", DIR) to the '
            "state of "
            "this query, or start with a new checkpoint and an empty state directory"
        )
    if commit is None:
        if spark_batch >= 0:
            raise CorruptState(
                f"the checkpoint has batches up to {spark_batch} but the state directory {location} is "
                "empty: "
                "restore it or start with a new checkpoint"
            )
        return Fresh()
    if commit.batch_id < spark_batch:
        raise CorruptState(
            f"the checkpoint has batches up to {spark_batch} but the state directory {location} only up to "
            f"{commit.batch_id}: restore the newer state that belongs to the checkpoint, or start with a new "
            "checkpoint and an empty state directory"
        )
    # One ahead is normal: a crash fell between the commit record and Spark's own commit.
    if commit.batch_id > spark_batch + 1:
        has = f"batches up to {spark_batch}" if spark_batch >= 0 else "no committed batch"
        raise CorruptState(
            f"the state directory {location} has batches up to {commit.batch_id} but the checkpoint has "
            f"{has}: "
            "restore the newer checkpoint that belongs to the state, or start with a new checkpoint and "
            "an empty "
            "state directory"
        )
    return Resume(commit)


def _other_query_id(head: Head, query_id: str) -> str | None:
    # State belongs to whoever committed it: a mistaken driver that only took the log must not lock its query out.
    whose = head.newest or head.owner
    return whose.query_id if whose is not None and whose.query_id != query_id else None


def _up_to(commit: CommitRecord | None) -> str:
    return f" up to batch {commit.batch_id}" if commit else ""
