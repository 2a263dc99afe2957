"""NEXMark's events: equal to Beam's, and the same however they are cut, chosen or written."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millpond._kernel import Nexmark

BEAM = Path(__file__).parent / "data" / "nexmark-first-1000.txt"


def printed(*arguments: str) -> bytes:
    command = [str(Path(sys.executable).with_name("millpond")), "nexmark", "print", *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


def test_the_first_thousand_events_are_beams() -> None:
    assert printed("--events", "1000") == BEAM.read_bytes()


def test_first_and_events_give_a_part_of_the_same_lines() -> None:
    lines = BEAM.read_bytes().splitlines(keepends=True)
    assert printed("--first", "333", "--events", "100") == b"".join(lines[333:433])


def test_rate_moves_event_times_and_nothing_that_is_drawn_before_them() -> None:
    slow = printed("--events", "60", "--rate", "100").splitlines()
    last_bid = slow[-1].split(b"|")
    assert int(last_bid[4]) == 1436918400000 + 59 * 10
    assert last_bid[1:4] == BEAM.read_bytes().splitlines()[59].split(b"|")[1:4]


def line(row: dict) -> str:
    """The row of a batch as Beam's events are written."""

    def text(value: object) -> str:
        return str(value) if isinstance(value, int | str) else str(round(value.timestamp() * 1000))

    kind = ("person", "auction", "bid")[row["event_type"]]
    return "|".join([kind[0].upper(), *(text(value) for value in row[kind].values())])


def test_batches_hold_what_the_lines_say() -> None:
    batch = Nexmark().batch(0, 1000)
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert [line(row) for row in rows] == BEAM.read_text().splitlines()
    for row in rows:
        kind = ("person", "auction", "bid")[row["event_type"]]
        assert row["ts"] == row[kind]["ts"]
        assert [name for name in ("person", "auction", "bid") if row[name] is not None] == [kind]


@pytest.mark.parametrize("group", [1, 7, 1000])
def test_ranges_are_the_same_however_cut(group: int) -> None:
    generator = Nexmark(out_of_order_group=group, active_people=50)
    whole = pa.Table.from_batches([generator.batch(123, 2_000)])
    cuts = [123, 124, 130, 777, 1_500, 2_123]
    pieces = [generator.batch(start, end - start) for start, end in itertools.pairwise(cuts)]
    assert pa.Table.from_batches(pieces).equals(whole)


def test_out_of_order_groups_are_permutations() -> None:
    ordered = Nexmark().text_lines(0, 3_000).splitlines()
    mixed = Nexmark(out_of_order_group=100).text_lines(0, 3_000).splitlines()
    assert mixed != ordered
    for start in range(0, 3_000, 100):
        assert mixed[start + 1] == ordered[start + 953 % 100]
        assert sorted(mixed[start : start + 100]) == sorted(ordered[start : start + 100])


def test_kinds_and_columns_are_a_choice_of_the_whole() -> None:
    generator = Nexmark(out_of_order_group=70)
    whole = pa.Table.from_batches([generator.batch(10, 500)])
    chosen = generator.batch(10, 500, kinds=["bid", "person"], columns=["bid", "ts"])
    kept = whole.filter(pc.is_in(whole["event_type"], pa.array([0, 2], pa.int32()))).select(["bid", "ts"])
    assert pa.Table.from_batches([chosen]).to_pylist() == kept.to_pylist()


def test_json_lines_hold_what_the_batch_holds() -> None:
    generator = Nexmark()
    rows = generator.batch(0, 200).to_pylist()
    for text, row in zip(generator.json_lines(0, 200)["value"].to_pylist(), rows, strict=True):
        said = json.loads(text)
        kind = ("person", "auction", "bid")[row["event_type"]]
        assert said.pop("event_type") == row["event_type"]
        assert said.pop("ts") == iso(row["ts"])
        held = {
            name: value if isinstance(value, int | str) else iso(value) for name, value in row[kind].items()
        }
        assert said == {kind: held}


def iso(time) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03}Z"


def test_wide_settings_keep_millions_active_and_move_the_hot_ones_every_second() -> None:
    """Two hours of people and auctions at 10,000 events/s; 200 people and 600 auctions come in a second."""
    wide = Nexmark(
        active_people=1_440_000,
        in_flight_auctions=4_320_000,
        hot_auction_interval=600,
        hot_bidder_interval=200,
        hot_seller_interval=200,
    )
    first = 80_000_000
    bids = wide.batch(first, 100_000, kinds=["bid"])["bid"]
    auctions = pc.struct_field(bids, "auction")
    spread = pc.max(auctions).as_py() - pc.min(auctions).as_py()
    assert 4_300_000 < spread <= 4_320_000 + 600 * 10 + 10
    counts = {row["values"]: row["counts"] for row in pc.value_counts(auctions).to_pylist()}
    hot = sorted(auction for auction, count in counts.items() if count > 1_000)
    # Ten seconds of events touch ten hot auctions, eleven when they start within a second.
    assert len(hot) in (10, 11)
    assert {later - earlier for earlier, later in itertools.pairwise(hot)} == {600}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"events_per_second": 0}, "events_per_second must be from 1 to 1000000"),
        ({"hot_bidder_ratio": 0}, "hot_bidder_ratio must be from 1"),
        ({"active_people": 0}, "active_people must be from 1"),
        ({"out_of_order_group": 1906}, "multiple of 953"),
        ({"bid_bytes": 1 << 30}, "bid_bytes must be from 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Nexmark(**settings)


def test_unknown_columns_and_far_ranges_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"no column \"bids\"; there are event_type, person, auction, bid, ts"
    ):
        Nexmark().batch(0, 1, columns=["bids"])
    with pytest.raises(ValueError, match="reach beyond"):
        Nexmark().batch((1 << 48) - 1, 2)
