"""Names, records and manifests: what is written is read again, and what is wrong is never taken for right."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptState
from millpond.semantics.operator import Aggregate, AggregateSpec, Column, Panes
from millpond.storage import manifest as manifests
from millpond.storage import names, records
from millpond.storage.manifest import Manifest, RunRef, SliceState, StoreState
from millpond.storage.records import CommitRecord, OwnerRecord

NUMBERS = st.integers(0, 2**63)
OPERATOR = AggregateSpec(
    name="counts",
    keys=(Column("bidder", "bigint"),),
    aggregates=(Aggregate("count", (), text="count(1)"),),
    time=Panes(1, 10, 5, 0, Column("window", "struct")),
    input_ipc=b"\x00\xff input",
    output_ipc=b"output",
)
OWNER = OwnerRecord(
    slot=3,
    query_id="q",
    run_id="r",
    driver="host pid 1",
    operators=(OPERATOR,),
    shard_starts=(0, 2048),
    taken_at_ms=1,
)
COMMIT = CommitRecord(
    slot=4,
    owner_slot=3,
    query_id="q",
    batch_id=7,
    offsets_digest="ab",
    input_rows=5,
    watermark_us_before=None,
    watermark_us=-1,
    manifest=names.manifest_name(3, 7, 0),
    committed_at_ms=2,
)
MANIFEST = Manifest(
    7,
    (
        StoreState(0, 0, (SliceState(-10, 3, (RunRef("packs/a", 8, 100, 3), RunRef("packs/b", 8, 50, 1))),)),
        StoreState(0, 1, (SliceState(-10, 2, (RunRef("packs/a", 108, 60, 2),)), SliceState(0, 0, ()))),
    ),
)


@given(NUMBERS, NUMBERS, st.integers(0, 1000))
def test_names_come_back(slot, batch, attempt):
    assert names.parse(names.log_name(slot)) == names.LogName(slot)
    assert names.parse(names.manifest_name(slot, batch, attempt)) == names.ManifestName(slot, batch, attempt)
    assert names.parse(names.pack_name(slot, batch, attempt)) == names.PackName(slot, batch, str(attempt))
    assert names.parse(names.pack_name(slot, batch, f"{attempt}.1.c")) == names.PackName(
        slot, batch, f"{attempt}.1.c"
    )


def test_log_names_sort_like_their_slots():
    assert sorted(names.log_name(slot) for slot in (10, 9, 100)) == [names.log_name(s) for s in (9, 10, 100)]


@pytest.mark.parametrize(
    "name",
    [
        "log/7",
        "log/00000000000000000007.tmp",
        "log/0000000000000000000७",
        "xlog/00000000000000000007",
        "packs/readme",
        "packs/00000000000000000007-00000000000000000007-",
        "packs/00000000000000000007-00000000000000000007-A",
        "manifests/00000000000000000007-00000000000000000007-01",
        "manifests/00000000000000000007-00000000000000000007-1\n",
        "_metadata",
    ],
)
def test_foreign_names_are_not_ours(name):
    assert names.parse(name) is None


def test_pack_seq_must_fit_the_name():
    with pytest.raises(ValueError, match="a/b"):
        names.pack_name(1, 1, "a/b")


@pytest.mark.parametrize("record", [OWNER, COMMIT])
def test_records_come_back(record):
    assert records.decode(records.encode(record), "x") == record


@pytest.mark.parametrize("record", [OWNER, COMMIT])
def test_any_changed_byte_of_a_record_is_noticed(record):
    data = records.encode(record)
    for position in range(len(data)):
        for flip in (0x01, 0x20, 0x80):
            wrong = bytearray(data)
            wrong[position] ^= flip
            with pytest.raises(CorruptState, match="log/4"):
                records.decode(bytes(wrong), "log/4")


@pytest.mark.parametrize("record", [OWNER, COMMIT])
def test_any_cut_record_is_noticed(record):
    data = records.encode(record)
    for length in range(len(data)):
        with pytest.raises(CorruptState, match="log/4 is damaged"):
            records.decode(data[:length], "log/4")


def test_record_of_a_newer_millpond_asks_to_upgrade():
    newer = msgspec.json.encode({"millpond": 2, "seal": "another idea"})
    with pytest.raises(CorruptState, match=r"log/4 was written by a newer Millpond.*upgrade"):
        records.decode(newer, "log/4")


RUNS = st.builds(RunRef, st.sampled_from(["packs/a", "packs/b", "packs/c"]), NUMBERS, NUMBERS, NUMBERS)
SLICES = st.builds(
    SliceState, st.integers(-(2**63), 2**63 - 1), NUMBERS, st.lists(RUNS, max_size=4).map(tuple)
)
STORES = st.builds(StoreState, st.integers(0, 9), st.integers(0, 9), st.lists(SLICES, max_size=4).map(tuple))


@given(st.builds(Manifest, NUMBERS, st.lists(STORES, max_size=4).map(tuple)))
def test_manifests_come_back(manifest):
    assert manifests.decode(manifests.encode(manifest), "x") == manifest


def test_any_changed_or_cut_manifest_is_noticed():
    data = manifests.encode(MANIFEST)
    for position in range(len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 0x04
        with pytest.raises(CorruptState, match="manifests/9"):
            manifests.decode(bytes(wrong), "manifests/9")
        with pytest.raises(CorruptState, match="manifests/9 is damaged"):
            manifests.decode(data[:position], "manifests/9")


def test_manifest_of_a_newer_millpond_asks_to_upgrade():
    data = manifests.encode(MANIFEST)
    with pytest.raises(CorruptState, match=r"newer Millpond.*upgrade"):
        manifests.decode(data[:8] + (2).to_bytes(4, "little") + b"whatever follows", "manifests/9")


def test_manifest_knows_its_packs_and_their_live_bytes():
    assert MANIFEST.packs() == {"packs/a", "packs/b"}
    assert MANIFEST.live_bytes() == {"packs/a": 160, "packs/b": 50}


def test_a_range_that_two_shards_share_counts_once():
    run = RunRef("packs/a", 8, 100, 3)
    split = Manifest(1, tuple(StoreState(0, shard, (SliceState(0, 3, (run,)),)) for shard in (0, 1)))
    assert split.live_bytes() == {"packs/a": 100}
