"""Plots of measured runs, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millpond.bench.failures import failure

__all__ = [
    "COLOURS",
    "axes_of",
    "delays",
    "distribution",
    "max_rates",
    "splits",
    "throughput",
    "traces",
    "write_word",
]

COLOURS = {
    "millpond": "#0b6e4f",
    "spark-rocksdb": "#d1495b",
    "spark-rocksdb-default": "#e39aa4",
    "spark-memory": "#edae49",
    "spark-tws": "#a05195",
    "rocksdb": "#d1495b",
    "lmdb": "#edae49",
    "passthrough": "#8d99ae",
    "flink-rocksdb": "#30638e",
    "flink-hashmap": "#6c9bd2",
    "flink-forst": "#003d5b",
}
_SIZE = (7.0, 3.6)
_PART_COLOURS = {
    "query": "#d9dee7",
    "encoding": "#edae49",
    "state_write": "#0b6e4f",
    "state_read": "#30638e",
    "removal": "#a05195",
    "compaction": "#d1495b",
    "io_wait": "#5c6672",
}


def axes_of(path: Path) -> Any:
    """A figure's axes, and how to save it; matplotlib is imported when a plot is asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)

    def save() -> None:
        figure.savefig(path, dpi=130)

    return axes, save


def _plain_numbers(axis: Any) -> None:
    """On a logarithmic axis whose limits are set: 200, 500, 1,000 in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    near = high / low < 8
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if near else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def throughput(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of rows a second, by workload and engine."""
    _bars(runs, path, "rows_per_s", "thousand rows a second")


def max_rates(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of the highest rate that an engine keeps up with, by workload and engine."""
    _bars(runs, path, "max_rate", "thousand events a second sustained")


def _bars(runs: Sequence[Mapping[str, Any]], path: Path, figure: str, label: str) -> None:
    axes, save = axes_of(path)
    engines = list(dict.fromkeys(name for run in runs for name in run["engines"]))
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        at = [number + (place - (len(engines) - 1) / 2) * width for number in range(len(runs))]
        figures = [run["engines"].get(engine, {}) for run in runs]
        rates = [(each.get(figure) or 0) / 1_000 for each in figures]
        axes.bar(at, rates, width * 0.92, label=engine, color=COLOURS.get(engine))
        for middle, each in zip(at, figures, strict=True):
            write_word(axes, middle, _why_none(each, figure), COLOURS.get(engine))
    labels = [_label(run) for run in runs]
    if len(set(labels)) < len(labels):
        labels = [
            f"{label} {run['params'].get('size', '')}".strip()
            for label, run in zip(labels, runs, strict=True)
        ]
    crowded = max(len(label) for label in labels) * len(labels) > 70
    axes.set_xticks(
        range(len(runs)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center"
    )
    axes.set_ylabel(label)
    # Above the bars, which leave no room of their own.
    axes.legend(frameon=False, fontsize="small", ncols=4, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    save()


def _why_none(figures: Mapping[str, Any], figure: str) -> str:
    if "error" in figures:
        return failure(figures["error"])
    return "none" if figure in figures and not figures[figure] else ""


def write_word(axes: Any, at: float, word: str, colour: str | None, shift_points: float = 0) -> None:
    """In place of an engine's bar or point: why there is none."""
    axes.annotate(
        word,
        (at, 0),
        xytext=(shift_points, 3),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize="small",
        color=colour,
    )


def _label(run: Mapping[str, Any]) -> str:
    varied = run["params"].get("varied", {})
    return " ".join([run["workload"], *(f"{name}={value}" for name, value in varied.items())])


def traces(engines: Mapping[str, Any], path: Path) -> None:
    """The time of each batch, in order or, under live traffic, when it began."""
    axes, save = axes_of(path)
    for name, figures in engines.items():
        times = figures["trace_ms"]
        at = figures.get("trace_s") or range(len(times))
        axes.plot(at, times, label=name, color=COLOURS.get(name), marker="o", markersize=3)
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    live = any("trace_s" in figures for figures in engines.values())
    axes.set_xlabel("seconds since the traffic began" if live else "batch")
    axes.set_ylabel("milliseconds")
    axes.legend(frameon=False, fontsize="small")
    save()


def distribution(engines: Mapping[str, Any], path: Path) -> None:
    """The share of batches that took no longer than a time."""
    curves = {}
    for name, figures in engines.items():
        times = sorted(figures.get("counted_ms") or figures["trace_ms"])
        curves[name] = times, [(number + 1) / len(times) for number in range(len(times))]
    _shares(curves, path, "milliseconds a batch", "share of batches")


def delays(engines: Mapping[str, Any], path: Path) -> None:
    """The share of events that waited no longer than a time, from when they were due to the end of their batch."""
    curves = {
        name: (figures["delay_cdf"]["ms"], figures["delay_cdf"]["share"]) for name, figures in engines.items()
    }
    _shares(curves, path, "milliseconds from due to done", "share of events")


def _shares(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path, across: str, up: str
) -> None:
    axes, save = axes_of(path)
    for name, (times, shares) in curves.items():
        axes.step([times[0], *times], [0, *shares], where="post", label=name, color=COLOURS.get(name))
    every = [time for times, _ in curves.values() for time in times]
    axes.set_xscale("log")
    axes.set_xlim(max(min(every), 1.0) / 1.2, max(every) * 1.2)
    _plain_numbers(axes.xaxis)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize="small")
    save()


def splits(engines: Mapping[str, Any], path: Path) -> None:
    """For each engine a bar of its time and one of its CPU time, made up of their parts."""
    axes, save = axes_of(path)
    kinds = (("time_split_ms", "time"), ("cpu_split_ms", "CPU"))
    bars = [
        (f"{name}, {said}", figures[key])
        for name, figures in engines.items()
        for key, said in kinds
        if key in figures
    ]
    for part, colour in _PART_COLOURS.items():
        widths = [split.get(part, 0.0) for _, split in bars]
        if any(widths):
            before = [_before(split, part) for _, split in bars]
            axes.barh(range(len(bars)), widths, left=before, color=colour, label=part.replace("_", " "))
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("milliseconds a batch")
    axes.legend(frameon=False, fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    save()


def _before(split: Mapping[str, float], part: str) -> float:
    """Where a part begins: after those that are drawn before it."""
    earlier = list(_PART_COLOURS)[: list(_PART_COLOURS).index(part)]
    return sum(split.get(each, 0.0) for each in earlier)
