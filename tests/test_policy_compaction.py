"""Compaction keeps its bounds and does not write more than it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.compaction import (
    Limits,
    Merge,
    PackUse,
    Rest,
    SliceView,
    decide,
    decide_pieces,
    decide_rewrite,
    is_behind,
    live_shares,
    staggered,
)

LIMITS = Limits(max_space_amplification=1.5, max_runs=8)
MIB = 1 << 20


def obey(view, decision):
    """The table after the merge: the worst case, in which a partial merge finds nothing to leave out."""
    if isinstance(decision, Rest):
        return view
    first, end = decision.first, decision.first + decision.count
    merged = view.live_bytes if decision.count == len(view.run_bytes) else sum(view.run_bytes[first:end])
    return SliceView((*view.run_bytes[:first], merged, *view.run_bytes[end:]), view.live_bytes)


@st.composite
def views(draw):
    runs = draw(st.lists(st.integers(1, 1 << 40), max_size=40))
    # The live bytes are at least the largest share that no newer run can have overwritten.
    return SliceView(tuple(runs), draw(st.integers(0, sum(runs))))


@given(views())
def test_obeying_once_keeps_both_bounds(view):
    after = obey(view, decide(view, LIMITS))
    assert len(after.run_bytes) <= LIMITS.max_runs
    total = sum(after.run_bytes)
    assert len(after.run_bytes) <= 1 or total <= max(1.5 * view.live_bytes, LIMITS.small_bytes)


@given(views())
def test_after_obeying_there_is_nothing_more_to_do(view):
    after = obey(view, decide(view, LIMITS))
    assert decide(after, LIMITS) == Rest()


@given(views())
def test_a_merge_is_of_two_or_more_of_the_newest_runs(view):
    decision = decide(view, LIMITS)
    if isinstance(decision, Merge):
        assert decision.count >= 2
        assert decision.first + decision.count == len(view.run_bytes)


@pytest.mark.parametrize("runs", [(), (10 * MIB,), (10 * MIB, MIB), (1000, 1000, 1000)])
def test_rest_within_the_bounds(runs):
    assert decide(SliceView(runs, sum(runs)), LIMITS) == Rest()


def test_too_much_garbage_merges_everything():
    view = SliceView((10 * MIB, 3 * MIB, 3 * MIB), 10 * MIB)
    assert decide(view, LIMITS) == Merge(0, 3)
    assert decide(SliceView((10 * MIB, 3 * MIB, 2 * MIB), 10 * MIB), LIMITS) == Rest()


def test_garbage_of_a_tiny_table_is_left_but_its_runs_are_bounded():
    assert decide(SliceView((1000,) * 8, 1000), LIMITS) == Rest()
    assert decide(SliceView((1000,) * 9, 1000), LIMITS) == Merge(0, 9)


def test_a_large_old_run_is_not_rewritten_for_the_sake_of_small_ones():
    view = SliceView((1000 * MIB, 100 * MIB, *(MIB,) * 7), 1107 * MIB)
    assert decide(view, LIMITS) == Merge(2, 7)


def test_many_runs_come_down_to_the_bound_at_once():
    view = SliceView(tuple(4**size for size in range(20, 0, -1)), sum(4**size for size in range(1, 21)))
    assert decide(view, LIMITS) == Merge(7, 13)


def test_runs_wait_until_they_have_cost_look_ups_as_much_as_their_merge():
    runs = (100 * MIB, *(MIB,) * 8)
    spared_ns = 2 * sum(runs[1:])
    assert decide(SliceView(runs, sum(runs), vain_ns=spared_ns - 1), LIMITS) == Rest()
    assert decide(SliceView(runs, sum(runs), vain_ns=spared_ns), LIMITS) == Merge(1, 8)
    # Up to the bound they are left alone, whatever they cost.
    assert decide(SliceView(runs[:8], sum(runs[:8]), vain_ns=1 << 60), LIMITS) == Rest()


def test_runs_that_nobody_asks_do_not_become_ever_more():
    runs = (MIB,) * 32
    assert decide(SliceView(runs, sum(runs), vain_ns=0), LIMITS) == Rest()
    assert decide(SliceView((*runs, MIB), 33 * MIB, vain_ns=0), LIMITS) == Merge(0, 33)


def test_small_runs_are_not_waited_for():
    assert decide(SliceView((7_000,) * 9, 63_000, vain_ns=0), LIMITS) == Merge(0, 9)


def test_garbage_is_merged_whatever_look_ups_cost():
    view = SliceView((10 * MIB, 3 * MIB, 3 * MIB), 10 * MIB, vain_ns=0)
    assert decide(view, LIMITS) == Merge(0, 3)


@pytest.mark.parametrize("asked_ns", [0, 1_000, 100_000, 10_000_000])
def test_look_ups_and_merges_together_cost_no_more_than_with_merges_at_once(asked_ns):
    """Each batch looks for new keys, which takes `asked_ns` in each run."""

    def cost(waits):
        runs, vain_ns, total_ns = (), 0, 0
        for batch in range(1, 401):
            runs = (*runs, MIB)
            vain_ns += asked_ns * (len(runs) - 1)
            total_ns += asked_ns * (len(runs) - 1)
            view = SliceView(runs, batch * MIB, vain_ns=vain_ns if waits else None)
            decision = decide(view, LIMITS)
            if isinstance(decision, Merge):
                after = obey(view, decision)
                total_ns += 2 * after.run_bytes[-1]
                runs, vain_ns = after.run_bytes, 0
        return total_ns

    assert cost(waits=True) <= 1.1 * cost(waits=False)


def simulate(batches, live_after):
    """Write amplification of a table that gets a run of 1 MiB with each batch."""
    runs: tuple[int, ...] = ()
    written = 0
    for batch in range(1, batches + 1):
        runs = (*runs, MIB)
        written += MIB
        view = SliceView(runs, live_after(batch))
        decision = decide(view, LIMITS)
        if isinstance(decision, Merge):
            after = obey(view, decision)
            written += after.run_bytes[-1]
            runs = after.run_bytes
        assert len(runs) <= LIMITS.max_runs
        assert sum(runs) <= max(1.5 * live_after(batch), LIMITS.small_bytes) or len(runs) == 1
    return written / (batches * MIB)


def test_write_amplification_of_a_growing_table():
    # With 8 runs allowed, no schedule gets 4,000 batches below about 6 (3,003 = 14 over 8).
    assert simulate(4000, lambda batch: batch * MIB) < 7


def test_write_amplification_of_an_overwritten_table():
    # A merge of everything (100 MiB) is due with every 50 MiB of garbage: 1 + 100/50, and the tiers in between.
    assert simulate(4000, lambda batch: min(batch, 100) * MIB) < 5


PACKS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4),
    st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)).map(lambda use: PackUse(use[0], sum(use))),
    max_size=20,
)


@given(PACKS)
def test_rewriting_packs_keeps_the_bound(packs):
    chosen = decide_rewrite(packs, LIMITS)
    live = sum(use.live_bytes for use in packs.values())
    total = sum(use.live_bytes if name in chosen else use.total_bytes for name, use in packs.items())
    assert total <= max(1.5 * live, LIMITS.small_bytes)


@given(PACKS)
def test_no_pack_is_rewritten_without_need(packs):
    chosen = decide_rewrite(packs, LIMITS)
    live = sum(use.live_bytes for use in packs.values())
    without_last = sum(
        use.live_bytes if name in chosen[:-1] else use.total_bytes for name, use in packs.items()
    )
    assert not chosen or without_last > max(1.5 * live, LIMITS.small_bytes)


def test_the_pack_that_frees_most_for_least_goes_first():
    packs = {
        "full": PackUse(100 * MIB, 100 * MIB),
        "half": PackUse(50 * MIB, 100 * MIB),
        "pinned": PackUse(MIB, 100 * MIB),
    }
    assert decide_rewrite(packs, LIMITS) == ("pinned",)
    assert decide_rewrite({"full": packs["full"]}, LIMITS) == ()


@st.composite
def logs(draw):
    lengths = draw(st.lists(st.integers(1, 1 << 20), max_size=40))
    return tuple(PackUse(draw(st.integers(0, length)), length) for length in lengths)


@given(logs(), st.integers(1, 1 << 21))
def test_pieces_are_merged_until_few_small_ones_and_little_garbage_are_left(runs, piece):
    while isinstance(decision := decide_pieces(runs, LIMITS, piece), Merge):
        first, end = decision.first, decision.first + decision.count
        live = sum(use.live_bytes for use in runs[first:end])
        assert decision.count == 1 or live <= piece
        before = runs
        runs = (*runs[:first], PackUse(live, live), *runs[end:])
        assert len(runs) < len(before) or sum(u.total_bytes for u in runs) < sum(
            u.total_bytes for u in before
        )
    total, live = (sum(getattr(use, name) for use in runs) for name in ("total_bytes", "live_bytes"))
    assert total <= max(1.5 * live, LIMITS.small_bytes)
    assert len(runs) <= max(2 * live // piece + 2, LIMITS.max_runs + live // (piece / 2))


def test_a_run_of_half_a_piece_is_not_written_anew_for_each_small_one():
    runs = tuple(PackUse(length, length) for length in [100] * 20 + [60] + [1] * 8)
    assert decide_pieces(runs, LIMITS, 100) == Rest()
    assert decide_pieces((*runs, PackUse(1, 1)), LIMITS, 100) == Merge(20, 10)


@st.composite
def shared_packs(draw):
    """Tables (runs, and the bytes that are live of all together) and logs (runs, each with its own), in packs that
    they share, and what else lies in those packs."""
    runs = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1 << 30)), min_size=1, max_size=4)
    tables = [
        (table, draw(st.integers(1, sum(length for _, length in table))) if len(table) > 1 else table[0][1])
        for table in draw(st.lists(runs, max_size=4))
    ]
    logs = [
        [(pack, PackUse(draw(st.integers(0, length)), length)) for pack, length in log]
        for log in draw(st.lists(runs, max_size=4))
    ]
    unneeded = draw(st.lists(st.integers(0, 1 << 30), min_size=6, max_size=6))
    return tables, logs, dict(enumerate(unneeded))


def uses_of(tables, logs, pack_bytes):
    live: dict[int, int] = {}
    runs = [run for log in logs for run in log]
    for table, table_live in tables:
        uses = live_shares(tuple(length for _, length in table), table_live)
        runs += [(pack, use) for (pack, _), use in zip(table, uses, strict=True)]
    for pack, use in runs:
        live[pack] = live.get(pack, 0) + use.live_bytes
    return {pack: PackUse(bytes_, pack_bytes[pack]) for pack, bytes_ in live.items()}


@given(shared_packs())
def test_rewrites_of_shared_packs_end_within_one_bound_for_all_garbage(state):
    tables, logs, pack_bytes = state
    for table, _ in tables:
        for pack, length in table:
            pack_bytes[pack] += length
    for log in logs:
        for pack, use in log:
            pack_bytes[pack] += use.total_bytes

    def written(bytes_):
        pack = len(pack_bytes)
        pack_bytes[pack] = bytes_
        return pack

    while chosen := set(decide_rewrite(uses_of(tables, logs, pack_bytes), LIMITS)):
        for number, (table, live) in enumerate(tables):
            if chosen & {pack for pack, _ in table}:
                tables[number] = ([(written(live), live)], live)
        for log in logs:
            for number, (pack, use) in enumerate(log):
                if pack in chosen:
                    log[number] = (written(use.live_bytes), PackUse(use.live_bytes, use.live_bytes))
        assert len(pack_bytes) < 100, "it does not come to an end"
    uses = uses_of(tables, logs, pack_bytes)
    live = sum(live for _, live in tables) + sum(use.live_bytes for log in logs for _, use in log)
    assert sum(use.total_bytes for use in uses.values()) <= max(1.5 * live, LIMITS.small_bytes)
    assert not is_behind(uses, LIMITS)


def test_batches_wait_where_garbage_exceeds_its_bound_by_more_than_a_pack():
    garbage = {str(number): PackUse(MIB, 2 * MIB) for number in range(4)}
    assert not is_behind(garbage, LIMITS)
    assert is_behind(garbage | {"5": PackUse(0, MIB)}, LIMITS)
    assert not is_behind({"one": PackUse(1, 1 << 40)}, LIMITS)
    assert not is_behind({}, LIMITS)


def test_rows_that_newer_runs_replaced_count_as_garbage_of_a_pack():
    # Each table is within the bound, and so are packs by the runs they hold; all together are not.
    runs = (2 * MIB, MIB)
    tables = [live_shares(runs, 2 * MIB) for _ in range(4)]
    packs = {
        str(number): PackUse(sum(use.live_bytes for use in uses), sum(runs) + MIB)
        for number, uses in enumerate(tables)
    }
    assert all(decide(SliceView(runs, 2 * MIB), LIMITS) == Rest() for _ in tables)
    assert decide_rewrite(packs, LIMITS) != ()


def test_merges_that_are_due_together_do_not_start_together():
    assert [staggered(due) for due in range(6)] == [0, 1, 1, 2, 2, 3]
