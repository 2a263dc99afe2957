"""Collection: deletes what no kept version reaches.

References go before what they point at (log record, manifest, packs), so a crash at any point leaves objects
that nothing reaches, never a kept record that points at nothing. Garbage is judged by name: only what this
owner or an older one wrote, never what a newer owner may be writing, and never a name that is not ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Set as AbstractSet

import msgspec

from millpond.storage.names import LOG, MANIFESTS, PACKS, LogName, ManifestName, PackName, log_name, parse
from millpond.storage.protocol import read_manifest
from millpond.storage.records import CommitRecord
from millpond.storage.slotlog import ANCHOR_EVERY, Head, Lease
from millpond.storage.store import Missing, Storage

__all__ = ["Collected", "collect"]

_MAX_LOG_DELETIONS = 64
"""Old log records become free by the hundred, with each anchor; they go a few at a time."""


class Collected(msgspec.Struct, frozen=True):
    """What was deleted."""

    log: tuple[str, ...]
    manifests: tuple[str, ...]
    packs: tuple[str, ...]
    leftovers: tuple[str, ...]


def collect(
    storage: Storage,
    lease: Lease,
    *,
    keep_versions: int = 2,
    protected: AbstractSet[str] = frozenset(),
    settled_batch: int | None = None,
) -> Collected:
    """Deletes what the newest `keep_versions` commit records do not reach. `Fenced` if the lease is lost.

    Batches go on while this runs. So what this owner wrote for batches after `settled_batch` is spared, and so is
    `protected`: older names that are in flight, such as merged runs that wait for the next manifest. Whoever
    gathers `protected` gives the newest batch that was committed at that moment as `settled_batch`; without it,
    it is the newest one at the call.
    """
    if settled_batch is None:
        settled_batch = lease.newest.batch_id if lease.newest else -1
    listed = {prefix: storage.list(prefix) for prefix in (LOG, MANIFESTS, PACKS)}
    lease.check()
    head = lease.log.head(max(keep_versions, 1))
    if head.newest is None:
        return Collected((), (), (), tuple(storage.remove_leftovers()))
    reached = _reached(storage, head.commits) | protected

    def is_garbage(name: str) -> bool:
        parsed = parse(name)
        return (
            isinstance(parsed, ManifestName | PackName)
            and name not in reached
            and parsed.owner_slot <= lease.slot
            and not (parsed.owner_slot == lease.slot and parsed.batch_id > settled_batch)
        )

    log = _deletable_log(head, listed[LOG])
    manifests = tuple(filter(is_garbage, listed[MANIFESTS]))
    packs = tuple(filter(is_garbage, listed[PACKS]))
    for name in (*log, *manifests, *packs):
        storage.delete(name)
    return Collected(log, manifests, packs, tuple(storage.remove_leftovers()))


def _reached(storage: Storage, commits: tuple[CommitRecord, ...]) -> frozenset[str]:
    reached: set[str] = set()
    for age, commit in enumerate(commits):
        try:
            packs = read_manifest(storage, commit).packs()
        except Missing:
            if age == 0:
                raise
            # Collected earlier, when fewer versions were kept; its log record only stays for the chain.
            continue
        reached |= packs | {commit.manifest}
    return frozenset(reached)


def _deletable_log(head: Head, listed: list[str]) -> tuple[str, ...]:
    """Records below the last anchor and the kept ones, oldest first. `slotlog` says why anchors stay."""
    last_anchor = (head.next_slot - 1) // ANCHOR_EVERY * ANCHOR_EVERY
    floor = min(last_anchor, head.commits[-1].slot)
    owner_slot = head.owner.slot if head.owner else None
    names = (parse(name) for name in sorted(listed))
    deletable = (
        log_name(name.slot)
        for name in names
        if isinstance(name, LogName)
        and name.slot < floor
        and name.slot != owner_slot
        and name.slot % ANCHOR_EVERY != 0
    )
    return tuple(itertools.islice(deletable, _MAX_LOG_DELETIONS))
