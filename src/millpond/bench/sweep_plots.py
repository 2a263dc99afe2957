"""Plots of sweeps: a figure of each engine over the values of one option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millpond.bench.failures import failure
from millpond.bench.plots import COLOURS, axes_of, write_word
from millpond.bench.sizes import size_bytes

__all__ = ["Measure", "curve", "growth", "measures", "places"]

LOGARITHMIC_FROM = 10
"""So many times the least value: the others would crowd at one end."""


WORD_POINTS = 10
"""Beside each other: several engines may have failed at one value."""


class Measure(NamedTuple):
    """A figure of an engine that a sweep draws."""

    name: str
    label: str
    of: Callable[[Mapping[str, Any]], float | None]


_SPEEDS = (
    Measure("max-rate", "thousand events a second sustained", lambda each: _thousands(each.get("max_rate"))),
    Measure("delay", "delay, p95, milliseconds", lambda each: each.get("delay_ms", {}).get("p95")),
    Measure("throughput", "thousand rows a second", lambda each: _thousands(each.get("rows_per_s"))),
)
"""What a run is about: the first of these that any engine tells."""
_STATE = Measure("state", "MiB of state, at most", lambda each: _mebibytes(each.get("largest_state_bytes")))
_FILES = Measure("files", "MiB of files, at most", lambda each: _mebibytes(each.get("largest_file_bytes")))
_HITS = Measure("hits", "share of reads from memory", lambda each: each.get("read_hit_ratio"))
_AHEAD = Measure(
    "hits", "share of reads from files served ahead", lambda each: each.get("read_ahead_hit_ratio")
)
_WAIT = Measure("wait", "state wait a batch, p95, ms", lambda each: each.get("state_wait_ms", {}).get("p95"))
_BESIDE = {
    "keys": (_STATE,),
    "window": (_STATE,),
    "memory": (_HITS,),
    "write-buffer": (_FILES,),
    "read-batch-ratio": (_AHEAD, _WAIT),
    "space-amplification": (_FILES,),
    "state-latency": (_WAIT,),
}
"""What else a sweep over an option is about."""


def measures(runs: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """What to draw of a sweep."""
    (option,) = runs[0]["params"]["varied"]
    engines = [figures for run in runs for figures in run["engines"].values()]

    def is_told(measure: Measure) -> bool:
        return any(measure.of(figures) is not None for figures in engines)

    speed = next(filter(is_told, _SPEEDS), _SPEEDS[-1])
    return [speed, *filter(is_told, _BESIDE.get(option, ()))]


def growth(runs: Sequence[Mapping[str, Any]], measure: Measure, path: Path) -> None:
    """A figure over the values of a varied option. Where an engine failed its curve has a gap, and the word there."""
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    axes, save = axes_of(path)
    (option,) = runs[0]["params"]["varied"]
    values = [run["params"]["varied"][option] for run in runs]
    at = places(values)
    _scale(axes, at)
    axes.set_xticks(at, values)
    axes.xaxis.set_minor_locator(NullLocator())
    engines = dict.fromkeys(name for run in runs for name in run["engines"])
    for number, engine in enumerate(engines):
        colour = COLOURS.get(engine)
        figures = [run["engines"].get(engine, {}) for run in runs]
        axes.plot(*curve(at, figures, measure), label=engine, color=colour, marker="o")
        for place, each in zip(at, figures, strict=True):
            if "error" in each:
                write_word(axes, place, failure(each["error"]), colour, number * WORD_POINTS)
    axes.set_xlabel(option)
    axes.set_ylabel(measure.label)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    save()


def places(values: Sequence[str]) -> list[float]:
    """Where values stand on the axis: as the numbers or sizes that they are; words, one after the other."""
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(values) else [float(place) for place in range(len(values))]


def _number(value: str) -> float | None:
    for read in (float, size_bytes):
        try:
            return float(read(value))
        except ValueError:
            continue
    return None


def _scale(axes: Any, at: Sequence[float]) -> None:
    above_zero = [place for place in at if place > 0]
    if not above_zero or max(at) < LOGARITHMIC_FROM * min(above_zero):
        return
    if len(above_zero) == len(at):
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=min(above_zero))


def curve(
    at: Sequence[float], figures: Sequence[Mapping[str, Any]], measure: Measure
) -> tuple[list[float], list[float]]:
    """Places and sizes from left to right; no number where there is no figure."""
    measured = [measure.of(each) for each in figures]
    points = sorted(zip(at, measured, strict=True), key=lambda point: point[0])
    return [place for place, _ in points], [math.nan if size is None else size for _, size in points]


def _thousands(rate: float | None) -> float | None:
    return rate / 1_000 if rate else None


def _mebibytes(size: int | None) -> float | None:
    return None if size is None else size / (1 << 20)
