"""What `millpond bench QUERY... --rate` means: the traffic of a run, from the options and what a sweep changes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from millpond.bench.live import Live
    from millpond.workloads.queries.query import PaperQuery

__all__ = ["SEARCH_FROM", "StateLatencyName", "TrafficKind", "live_of", "refuse_without_rate"]

SEARCH_FROM = 8_000
"""Where the search for the highest rate begins."""
SECONDS, SEARCH_SECONDS = 60.0, 20.0
TRIGGER_SECONDS = 1.0
WATERMARK_SECONDS = 4
"""How late the queries let an event be: a window closes so much later."""


class TrafficKind(StrEnum):
    """How many events each second brings."""

    FIXED = "fixed"
    NORMAL = "normal"


class StateLatencyName(StrEnum):
    """What checkpoint and state storage is as far away as."""

    HDFS = "hdfs"
    OBJECT_STORE = "object-store"


def live_of(
    query: PaperQuery,
    varied: Mapping[str, str],
    *,
    rate: str | None,
    trigger: float | None,
    traffic: TrafficKind | None,
    seconds: float | None,
    window: int,
    seed: int,
) -> tuple[Live | None, bool]:
    """The traffic, None at full speed, and whether its rate is only where a search begins."""
    from millpond.bench.live import Live

    wanted = varied.get("rate", rate)
    if wanted is None:
        return None, False
    searching = wanted == "max"
    if not searching and (not wanted.isdigit() or int(wanted) == 0):
        raise typer.BadParameter(f"{wanted!r} is no rate: events a second, or max", param_hint="--rate")
    has_windows = query.window_seconds > 0
    length = (window or query.window_seconds) + WATERMARK_SECONDS if has_windows else 0
    live = Live(
        rate=SEARCH_FROM if searching else int(wanted),
        seconds=seconds or (SEARCH_SECONDS if searching else SECONDS),
        warmup_seconds=float(length),
        trigger_seconds=float(varied.get("trigger", trigger or TRIGGER_SECONDS)),
        normal=traffic is TrafficKind.NORMAL,
        seed=seed,
    )
    return live, searching


def refuse_without_rate(varied: Mapping[str, str], given: Mapping[str, object]) -> None:
    """Options that only live traffic has would do nothing at full speed."""
    useless = [f"--{name}" for name, value in given.items() if value is not None]
    useless += [f"--sweep {name}" for name in varied if name == "trigger"]
    if useless:
        raise typer.BadParameter(f"{', '.join(useless)} is about live traffic: give its --rate as well")
