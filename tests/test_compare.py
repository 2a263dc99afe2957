"""A changed query is told what changed; an equal one is not disturbed."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millpond.semantics.compare import differences
from millpond.semantics.operator import (
    Aggregate,
    AggregateSpec,
    Column,
    CountWindows,
    DedupSpec,
    Forgetting,
    JoinTime,
    KeyedTime,
    Panes,
    Sessions,
)

WINDOW = Column("window", "struct<start:timestamp,end:timestamp>")


def _schema(*types: pa.DataType) -> bytes:
    return bytes(pa.schema([(f"c{i}", kind) for i, kind in enumerate(types)]).serialize())


SPEC = AggregateSpec(
    name="aggregate-0",
    keys=(Column("bidder", "bigint"), Column("city", "string")),
    aggregates=(Aggregate("count", (), None, "count(1)"), Aggregate("max", (2,), None, "max(at) timestamp")),
    time=Panes(3, 10_000_000, 5_000_000, 0, WINDOW),
    input_ipc=_schema(pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.int64()),
    output_ipc=_schema(pa.int64()),
)


def _changed(**changes: Any) -> AggregateSpec:
    return msgspec.structs.replace(SPEC, **changes)


def test_an_equal_query_in_another_time_zone_can_use_the_state() -> None:
    other = _changed(input_ipc=_schema(pa.int64(), pa.string(), pa.timestamp("us", "Asia/Tokyo"), pa.int64()))
    assert differences([SPEC], [other]) == []


CHANGES = {
    "operator aggregate-0: key 'bidder' was bigint, is string": {
        "keys": (Column("bidder", "string"), SPEC.keys[1])
    },
    "operator aggregate-0: key 'city' string is now 'town' string": {
        "keys": (SPEC.keys[0], Column("town", "string"))
    },
    "operator aggregate-0: key 'city' string is gone": {"keys": SPEC.keys[:1]},
    "operator aggregate-0: key 'day' date is new": {"keys": (*SPEC.keys, Column("day", "date"))},
    "operator aggregate-0: aggregate 1 was count(1), is count(price)": {
        "aggregates": (Aggregate("count", (2,), None, "count(price)"), SPEC.aggregates[1])
    },
    "operator aggregate-0: aggregate 2, max(at) timestamp, is gone": {"aggregates": SPEC.aggregates[:1]},
    "operator aggregate-0: aggregate 3, count(1), is new": {
        "aggregates": (*SPEC.aggregates, SPEC.aggregates[0])
    },
    "operator aggregate-0: aggregate 2, max(at) timestamp, was kept as max, is now kept as min": {
        "aggregates": (SPEC.aggregates[0], Aggregate("min", (2,), None, "max(at) timestamp"))
    },
    "operator aggregate-0: aggregate 2, max(at) timestamp, was over timestamp[us], is over date32[day]": {
        "input_ipc": _schema(pa.int64(), pa.string(), pa.date32(), pa.int64())
    },
    "operator aggregate-0: windows 'window' were 10 seconds long, every 5 seconds, "
    "windows 'window' are 1 minute long, every 5 seconds from 1 second": {
        "time": Panes(3, 60_000_000, 5_000_000, 1_000_000, WINDOW)
    },
    "operator aggregate-0: windows 'window' were 10 seconds long, every 5 seconds, groups never expire": {
        "time": None
    },
    "operator aggregate-0: windows 'window' were 10 seconds long, every 5 seconds, "
    "groups are expiring by 'ts' timestamp": {"time": KeyedTime(3, 1_000_000, Column("ts", "timestamp"))},
    "operator aggregate-0: windows 'window' were 10 seconds long, every 5 seconds, "
    "sessions 'window' are over after 10 seconds without a row": {
        "time": Sessions(2, 3, 10_000_000, 1_000_000, WINDOW)
    },
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_a_change_is_named(sentence: str) -> None:
    assert differences([SPEC], [_changed(**CHANGES[sentence])]) == [sentence]


def test_another_number_of_operators() -> None:
    assert differences([SPEC], [SPEC, SPEC]) == ["the query had 1 stateful operator, has 2"]


def test_where_the_columns_are_read_from_does_not_matter() -> None:
    moved = _changed(
        aggregates=(SPEC.aggregates[0], Aggregate("max", (3,), None, "max(at) timestamp")),
        time=Panes(2, 10_000_000, 5_000_000, 0, WINDOW),
        input_ipc=_schema(pa.int64(), pa.string(), pa.int64(), pa.timestamp("us", "UTC")),
    )
    assert differences([SPEC], [moved]) == []


def test_the_rows_of_a_count_window_are_part_of_its_state() -> None:
    three, one = (_changed(time=CountWindows(rows, WINDOW)) for rows in (3, 1))
    was = "operator aggregate-0: windows 'window' were full with 3 rows, "
    assert differences([three], [one]) == [was + "windows 'window' are full with 1 row"]
    assert differences([three], [three]) == []


def test_the_gap_of_sessions_is_part_of_their_state() -> None:
    ten, gone, own, hours = (
        _changed(time=Sessions(2, 3, gap, timer, WINDOW))
        for gap, timer in ((10_000_000, 1_000_000), (10_000_000, 0), (None, 10_000_000), (86_400_000_000, 1))
    )
    day = _changed(time=Sessions(2, 3, 86_400_000_000, 1, WINDOW, by_calendar=True))
    was = "operator aggregate-0: sessions 'window' were over after 10 seconds without a row, "
    assert differences([ten], [gone]) == [was + "sessions 'window' are never over"]
    assert differences([ten], [own]) == [was + "sessions 'window' are over after a time that each row gives"]
    assert differences([own], [own]) == []
    was = "operator aggregate-0: sessions 'window' were over after 1 day without a row, "
    assert differences([hours], [day]) == [
        was + "sessions 'window' are over after 1 day of the calendar without a row"
    ]


def test_rows_of_a_join_are_found_by_slices_that_follow_the_watermark() -> None:
    second, minute, longer = (
        _changed(time=JoinTime(offsets_us, slice_us))
        for offsets_us, slice_us in (
            ((0, None), 1_000_000),
            ((0, None), 60_000_000),
            ((-1, None), 60_000_000),
        )
    )
    assert differences([second], [second]) == []
    (change,) = differences([second], [minute])
    assert change == (
        "operator aggregate-0: the delay of a watermark has changed, so that rows of the join were kept in slices of "
        "1 second, are kept in slices of 1 minute"
    )
    (change,) = differences([second], [longer])
    assert "rows are kept left until the watermark is 1 microsecond past their time" in change


DEDUP = DedupSpec(
    name="deduplicate-0",
    keys=(Column("bidder", "bigint"),),
    time=None,
    input_ipc=_schema(pa.int64(), pa.int64()),
    output_ipc=_schema(pa.int64()),
    key_columns=(0,),
    emitted_columns=(0,),
    late_column=1,
    forgetting=Forgetting(1, 60_000_000, 1_000_000),
)


def test_rows_of_which_nothing_is_kept_may_have_other_columns() -> None:
    wider = msgspec.structs.replace(
        DEDUP, emitted_columns=(0, 1), output_ipc=_schema(pa.int64(), pa.int64()), late_column=None
    )
    assert differences([DEDUP], [wider]) == []


def test_keys_that_are_forgotten_at_another_time() -> None:
    slower = msgspec.structs.replace(DEDUP, forgetting=Forgetting(1, 3_600_000_000, 56_250_000))
    assert differences([DEDUP], [slower]) == [
        "operator deduplicate-0: keys were forgotten 1 minute after their row, are forgotten 1 hour after their row"
    ]
    (change,) = differences([DEDUP], [msgspec.structs.replace(DEDUP, forgetting=None)])
    assert change.endswith("1 minute after their row, are forgotten by their own time or never")


def test_an_aggregate_in_the_place_of_keys() -> None:
    aggregate = _changed(keys=DEDUP.keys, time=None)
    (change,) = differences([DEDUP], [aggregate])
    assert change == "operator aggregate-0: its state was the keys that were seen, is merged aggregates"
