"""Plots of measured runs, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["distribution", "growth", "splits", "throughput", "traces"]

_COLOURS = {
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


def _axes(path: Path) -> Any:
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
    """On a logarithmic axis: 200, 500, 1,000 in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def throughput(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of rows a second, by workload and engine."""
    axes, save = _axes(path)
    engines = list(dict.fromkeys(name for run in runs for name in run["engines"]))
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        at = [number + (place - (len(engines) - 1) / 2) * width for number in range(len(runs))]
        rates = [run["engines"].get(engine, {}).get("rows_per_s", 0) / 1_000 for run in runs]
        axes.bar(at, rates, width * 0.92, label=engine, color=_COLOURS.get(engine))
    labels = [_label(run) for run in runs]
    crowded = max(len(label) for label in labels) * len(labels) > 70
    axes.set_xticks(
        range(len(runs)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center"
    )
    axes.set_ylabel("thousand rows a second")
    axes.legend(frameon=False, fontsize="small", ncols=2)
    save()


def _label(run: Mapping[str, Any]) -> str:
    varied = run["params"].get("varied", {})
    return " ".join([run["workload"], *(f"{name}={value}" for name, value in varied.items())])


def traces(engines: Mapping[str, Any], path: Path) -> None:
    """The time of each batch, in order."""
    axes, save = _axes(path)
    for name, figures in engines.items():
        times = figures["trace_ms"]
        axes.plot(range(len(times)), times, label=name, color=_COLOURS.get(name), marker="o", markersize=3)
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.set_xlabel("batch")
    axes.set_ylabel("milliseconds")
    axes.legend(frameon=False, fontsize="small")
    save()


def distribution(engines: Mapping[str, Any], path: Path) -> None:
    """The share of batches that took no longer than a time."""
    axes, save = _axes(path)
    for name, figures in engines.items():
        times = sorted(figures["trace_ms"])
        shares = [(number + 1) / len(times) for number in range(len(times))]
        axes.step([times[0], *times], [0, *shares], where="post", label=name, color=_COLOURS.get(name))
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.set_xlabel("milliseconds a batch")
    axes.set_ylabel("share of batches")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize="small")
    save()


def growth(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows a second over the values of a varied option."""
    axes, save = _axes(path)
    (option,) = runs[0]["params"]["varied"]
    values = [run["params"]["varied"][option] for run in runs]
    for engine in dict.fromkeys(name for run in runs for name in run["engines"]):
        measured = [run["engines"].get(engine, {}).get("rows_per_s") for run in runs]
        points = [(value, rate / 1_000) for value, rate in zip(values, measured, strict=True) if rate]
        if points:
            axes.plot(*zip(*points, strict=True), label=engine, color=_COLOURS.get(engine), marker="o")
    axes.set_xlabel(option)
    axes.set_ylabel("thousand rows a second")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    save()


def splits(engines: Mapping[str, Any], path: Path) -> None:
    """For each engine a bar of its time and one of its CPU time, made up of their parts."""
    axes, save = _axes(path)
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
