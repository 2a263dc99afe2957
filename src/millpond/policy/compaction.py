"""When to merge the runs of a table, and when to rewrite packs that mostly hold garbage.

Two bounds: bytes on disk for each live byte, and runs that a read may have to look into. The first holds for
all packs together, whatever their garbage is: rows of runs that newer ones replaced or that were given out, and
runs that nobody needs any more in packs that others share. A table is merged as soon as it exceeds the bound by
itself. The second is there for reads: where a table says what its runs have cost them, it waits until that is
as much as the merge would cost, so that neither is paid much more than the other. Within both the least is
written: a table that only grows is merged by tiers of size (each byte about log2 times), one whose keys are
overwritten is merged whole when its garbage is due (each byte about `amplification / (amplification - 1)`
times).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = [
    "Limits",
    "Merge",
    "PackUse",
    "Rest",
    "SliceView",
    "decide",
    "decide_log",
    "decide_pieces",
    "decide_rewrite",
    "is_behind",
    "live_shares",
    "staggered",
]

_TIER_RATIO = 2
"""An older run joins a merge if it is at most so many times as large as all newer ones together."""
_MERGE_NS_PER_BYTE = 2
"""What it takes to write a byte of a run anew, beside the batches: reading, comparing, checksums, the page cache."""
_MOST_RUNS = 4
"""So many times the bound on runs is never exceeded: each is a file to open at a restart."""


class Limits(msgspec.Struct, frozen=True):
    """The bounds to keep."""

    max_space_amplification: float
    max_runs: int
    small_bytes: int = 64 << 10
    """Below this, garbage is not worth a rewrite, and a merge costs next to nothing."""


class SliceView(msgspec.Struct, frozen=True):
    """One table: the bytes of its runs, oldest first, and how many of them are live."""

    run_bytes: tuple[int, ...]
    live_bytes: int
    vain_ns: int | None = None
    """What look-ups spent in runs without their keys since the last merge; None: nobody knows."""


class Merge(msgspec.Struct, frozen=True):
    """Merge `count` runs from `first` on (0 is the oldest) into one; from 0 on, deleted keys can go."""

    first: int
    count: int


class Rest(msgspec.Struct, frozen=True):
    """Nothing to do."""


class PackUse(msgspec.Struct, frozen=True):
    """How many bytes of a pack, or of a run of a log, the state still points at, and how many it has."""

    live_bytes: int
    total_bytes: int


def decide(view: SliceView, limits: Limits) -> Merge | Rest:
    """Obeying once brings the table within the bound on bytes, as far as `live_bytes` is right, and within that on
    runs where these have cost enough."""
    runs = len(view.run_bytes)
    total_bytes = sum(view.run_bytes)
    # A single run holds no garbage of its own; rewriting it could go on for ever if `live_bytes` is too low.
    if runs < 2:
        return Rest()
    if total_bytes > limits.small_bytes and total_bytes > limits.max_space_amplification * view.live_bytes:
        return Merge(0, runs)
    if runs > limits.max_runs:
        count = max(_tier(view.run_bytes), runs - limits.max_runs + 1)
        if runs > _MOST_RUNS * limits.max_runs or _pays(view, count, limits):
            return Merge(runs - count, count)
    return Rest()


def _pays(view: SliceView, count: int, limits: Limits) -> bool:
    """Whether the runs have cost as much as it would take to merge so many of the newest; of small ones, a merge
    costs less than that there are many."""
    merged_bytes = sum(view.run_bytes[-count:])
    if view.vain_ns is None or merged_bytes <= limits.small_bytes:
        return True
    return view.vain_ns >= _MERGE_NS_PER_BYTE * merged_bytes


def decide_log(runs: tuple[PackUse, ...], limits: Limits) -> Merge | Rest:
    """What of a log to write anew: its oldest runs have lost the most, so as few of them as keep the bounds."""
    total_bytes = sum(use.total_bytes for use in runs)
    live_bytes = sum(use.live_bytes for use in runs)
    allowed_bytes = max(limits.max_space_amplification * live_bytes, limits.small_bytes)
    if total_bytes > allowed_bytes:
        for count, use in enumerate(runs, start=1):
            total_bytes -= use.total_bytes - use.live_bytes
            if total_bytes <= allowed_bytes:
                return Merge(0, count)
        return Merge(0, len(runs))
    return decide(SliceView(tuple(use.total_bytes for use in runs), total_bytes), limits)


def decide_pieces(runs: tuple[PackUse, ...], limits: Limits, piece_bytes: int) -> Merge | Rest:
    """What of a log to write anew whose runs may not become larger than a piece: neighbours that together are not."""
    total_bytes = sum(use.total_bytes for use in runs)
    live_bytes = sum(use.live_bytes for use in runs)
    is_large = total_bytes > max(limits.max_space_amplification * live_bytes, limits.small_bytes)
    # Runs of half a piece and more stay: else the newest one would be written anew with every batch.
    small_runs = sum(2 * use.live_bytes < piece_bytes for use in runs)
    if not is_large and small_runs <= limits.max_runs:
        return Rest()

    def gain(merge: Merge) -> int:
        """Bytes that are freed, or runs that become fewer."""
        if not is_large:
            return merge.count - 1
        inputs = runs[merge.first : merge.first + merge.count]
        return sum(use.total_bytes - use.live_bytes for use in inputs)

    best = max((_stretch(runs, first, piece_bytes) for first in range(len(runs))), key=gain)
    return best if gain(best) > 0 else Rest()


def _stretch(runs: tuple[PackUse, ...], first: int, piece_bytes: int) -> Merge:
    """The longest one from a run on whose live part is no larger than a piece; at least the run itself."""
    left_bytes, count = piece_bytes - runs[first].live_bytes, 1
    for use in runs[first + 1 :]:
        if use.live_bytes > left_bytes:
            break
        left_bytes -= use.live_bytes
        count += 1
    return Merge(first, count)


def decide_rewrite(packs: Mapping[str, PackUse], limits: Limits) -> tuple[str, ...]:
    """Packs whose live part is to be written anew, so that the rest can go; best yield first.

    A pack is deleted as a whole, so a little long-lived data can pin much that is dead. What is live of a pack is
    what is live in its runs.
    """
    total_bytes = sum(use.total_bytes for use in packs.values())
    allowed_bytes = _allowed_bytes(packs, limits)
    chosen: list[str] = []
    for name, use in sorted(packs.items(), key=lambda item: (-_dead_share(item[1]), item[0])):
        if total_bytes <= allowed_bytes or _dead_share(use) <= 0:
            break
        chosen.append(name)
        total_bytes -= use.total_bytes - use.live_bytes
    return tuple(chosen)


def is_behind(packs: Mapping[str, PackUse], limits: Limits) -> bool:
    """Whether batches have to wait for merges: garbage exceeds its bound by more than one pack, which it always may,
    because a pack that was just written can lose what it holds at once."""
    total_bytes = sum(use.total_bytes for use in packs.values())
    largest_bytes = max((use.total_bytes for use in packs.values()), default=0)
    return total_bytes > _allowed_bytes(packs, limits) + largest_bytes


def live_shares(run_bytes: tuple[int, ...], live_bytes: int) -> tuple[PackUse, ...]:
    """A table's runs, where of all together is known how much is live. A single one has no garbage of its own."""
    total_bytes = sum(run_bytes)
    if len(run_bytes) < 2 or live_bytes >= total_bytes:
        return tuple(PackUse(length, length) for length in run_bytes)
    return tuple(PackUse(length * live_bytes // total_bytes, length) for length in run_bytes)


def staggered(due: int) -> int:
    """How many of the merges that are due to start now. Shards get the same rows, so theirs are due together; where
    half of them wait for the next commit, they are not for long, and no batch has all of them beside it."""
    return (due + 1) // 2


def _allowed_bytes(packs: Mapping[str, PackUse], limits: Limits) -> float:
    live_bytes = sum(use.live_bytes for use in packs.values())
    return max(limits.max_space_amplification * live_bytes, limits.small_bytes)


def _tier(run_bytes: tuple[int, ...]) -> int:
    """How many of the newest runs can be merged without rewriting much old data."""
    newer_bytes = run_bytes[-1]
    count = 1
    for older_bytes in reversed(run_bytes[:-1]):
        if older_bytes > _TIER_RATIO * newer_bytes and count >= 2:
            break
        newer_bytes += older_bytes
        count += 1
    return count


def _dead_share(use: PackUse) -> float:
    return 1 - use.live_bytes / use.total_bytes if use.total_bytes else 0.0
