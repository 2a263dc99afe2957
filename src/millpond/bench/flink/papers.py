"""The papers' queries in Flink's SQL, over tables that are called as the streams.

Input ends, and with it every window that is still open: files that only close windows are not read. Of rows
that are equal in what decides, the whole row decides, as in the other engines' forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millpond.bench.flink.query import EVENT_TIME
from millpond.workloads.linear_road import SEGMENT_FEET
from millpond.workloads.queries.query import Windows

__all__ = ["FLINK_FORMS", "FlinkForm"]

_BOUNDS = "CAST(`window_start` AS TIMESTAMP(6)) AS `window.start`, CAST(`window_end` AS TIMESTAMP(6)) AS `window.end`"


@dataclass(frozen=True)
class FlinkForm:
    """One query; what is not here is as for every query."""

    select: Callable[[Windows], str]
    event_time: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)


def _sliding(stream: str, windows: Windows, *, seconds: int, slide: int) -> str:
    size, slide = windows.seconds or seconds, windows.slide_seconds or slide
    times = f"TABLE `{stream}`, DESCRIPTOR(`{EVENT_TIME}`)"
    if size == slide:
        return f"TUMBLE({times}, INTERVAL '{size}' SECONDS)"
    return f"HOP({times}, INTERVAL '{slide}' SECONDS, INTERVAL '{size}' SECONDS)"


def _tumbling(stream: str, windows: Windows, *, seconds: int) -> str:
    return _sliding(stream, windows, seconds=seconds, slide=windows.seconds or seconds)


def _q5(windows: Windows) -> str:
    counts = (
        "SELECT `window_start`, `window_end`, `auction`, COUNT(*) AS `bids` "
        f"FROM {_sliding('bids', windows, seconds=10, slide=5)} GROUP BY `window_start`, `window_end`, `auction`"
    )
    places = (
        "ROW_NUMBER() OVER (PARTITION BY `window_start`, `window_end` ORDER BY `bids` DESC, `auction` DESC)"
    )
    return (
        f"SELECT {_BOUNDS}, `bids`, `auction` FROM (SELECT *, {places} AS `place` FROM ({counts})) "
        "WHERE `place` <= 1"
    )


def _q7(windows: Windows) -> str:
    return (
        f"SELECT {_BOUNDS}, `bidder`, ARRAY_MAX(ARRAY_AGG(`price`)) AS `price` "
        f"FROM {_tumbling('bids', windows, seconds=10)} GROUP BY `window_start`, `window_end`, `bidder`"
    )


def _q8(windows: Windows) -> str:
    bounds = _BOUNDS.replace("`window_", "p.`window_")
    persons, auctions = (_tumbling(stream, windows, seconds=10) for stream in ("persons", "auctions"))
    return (
        f"SELECT p.`id`, {bounds}, p.`name`, a.`id` AS `auction`, a.`reserve` "
        f"FROM (SELECT * FROM {persons}) AS p JOIN (SELECT * FROM {auctions}) AS a ON p.`id` = a.`seller` "
        "AND p.`window_start` = a.`window_start` AND p.`window_end` = a.`window_end`"
    )


def _q11(windows: Windows) -> str:
    sessions = (
        f"SESSION(TABLE `bids` PARTITION BY `bidder`, DESCRIPTOR(`{EVENT_TIME}`), "
        f"INTERVAL '{windows.seconds or 10}' SECONDS)"
    )
    return (
        f"SELECT {_BOUNDS}, `bidder`, COUNT(*) AS `bids` FROM {sessions} "
        "GROUP BY `window_start`, `window_end`, `bidder`"
    )


def _q12(_: Windows) -> str:
    return "SELECT `bidder`, COUNT(*) AS `bids` FROM `bids` GROUP BY `bidder`"


def _q18(_: Windows) -> str:
    newest = (
        "ROW_NUMBER() OVER (PARTITION BY `auction`, `bidder` ORDER BY `ts` DESC, `price` DESC, `extra` DESC)"
    )
    return (
        "SELECT `auction`, `bidder`, `ts`, `price`, `extra` "
        f"FROM (SELECT *, {newest} AS `place` FROM `bids`) WHERE `place` = 1"
    )


def _q19(_: Windows) -> str:
    highest = (
        "ROW_NUMBER() OVER (PARTITION BY `auction` "
        "ORDER BY `price` DESC, `ts` DESC, `bidder` DESC, `extra` DESC)"
    )
    return (
        "SELECT `auction`, `rank`, `price`, `ts`, `bidder`, `extra` "
        f"FROM (SELECT *, {highest} AS `rank` FROM `bids`) WHERE `rank` <= 10"
    )


def _q20(_: Windows) -> str:
    return (
        "SELECT b.`auction`, b.`bidder`, b.`price`, b.`ts`, b.`extra`, a.`name`, a.`description`, a.`initial`, "
        "a.`reserve`, a.`ts` AS `opened`, a.`expires`, a.`seller`, a.`category` "
        "FROM `bids` AS b JOIN `auctions` AS a ON b.`auction` = a.`id` WHERE a.`category` = 10"
    )


def _readwrite(_: Windows) -> str:
    return "SELECT `id`, COUNT(*) AS `count`, MAX(`padding`) AS `padding` FROM `records` GROUP BY `id`"


def _lr4(windows: Windows) -> str:
    reports = _sliding("positions", windows, seconds=20, slide=5)
    place = "`window_start`, `window_end`, `highway`, `direction`, `segment`"
    return (
        f"SELECT {_BOUNDS}, `highway`, `direction`, `segment`, COUNT(*) AS `vehicles` "
        f"FROM (SELECT *, CAST(`position` / {SEGMENT_FEET} AS BIGINT) AS `segment` FROM {reports}) "
        f"GROUP BY {place}"
    )


def _cm2(windows: Windows) -> str:
    return (
        f"SELECT {_BOUNDS}, `job`, AVG(`cpu`) AS `cpu` FROM {_sliding('tasks', windows, seconds=30, slide=1)} "
        "WHERE `event_type` = 1 GROUP BY `window_start`, `window_end`, `job`"
    )


FLINK_FORMS: Mapping[str, FlinkForm] = {
    "q5": FlinkForm(_q5, event_time="ts"),
    "q7": FlinkForm(_q7, event_time="ts"),
    "q8": FlinkForm(_q8, event_time="ts"),
    "q11": FlinkForm(_q11, event_time="ts"),
    "q12": FlinkForm(_q12),
    "q18": FlinkForm(_q18),
    # A cast in the query would hide from Flink that the rank belongs to the key, and it would keep all rows again.
    "q19": FlinkForm(_q19, types={"rank": "int32"}),
    "q20": FlinkForm(_q20),
    "readwrite": FlinkForm(_readwrite),
    "lr4": FlinkForm(_lr4, event_time="ts"),
    "cm2": FlinkForm(_cm2, event_time="ts"),
}
"""By the name of the query."""
