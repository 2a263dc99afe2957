"""What a page says about runs under live traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_live", "is_search", "live_words"]

Run = Mapping[str, Any]


def is_live(run: Run) -> bool:
    return bool(run["params"].get("live"))


def is_search(run: Run) -> bool:
    return bool(run["params"].get("find_rate"))


def live_words(run: Run) -> str:
    """A sentence or two for whoever was not there."""
    live = run["params"]["live"]
    traffic = "drawn from a normal distribution each second" if live["normal"] else "the same each second"
    if is_search(run):
        said = f"Each engine's highest rate without a growing backlog, from tries of {live['seconds']:g} s"
    else:
        said = f"{live['rate']:,} events a second, {traffic}, for {live['seconds']:g} s that count"
    said += f"; a batch every {live['trigger_seconds']:g} s."
    if live["warmup_seconds"]:
        said += f" Before them, {live['warmup_seconds']:g} s fill the windows."
    latency = run["params"].get("state_latency")
    if latency:
        said += f" Each request to checkpoint and state storage takes as long as one to {_PLACES[latency]}."
    return said


_PLACES = {"hdfs": "HDFS (1.5 ms)", "object-store": "an object store (23 ms)"}
