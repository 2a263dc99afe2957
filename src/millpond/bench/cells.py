"""The tables of a report as rows of text, headings first: the console and the page show the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.bench.failures import failure
from millpond.bench.repeats import spread
from millpond.bench.settings import BASELINES, FLOOR
from millpond.service.spent import PARTS

__all__ = ["engine_rows", "split_rows"]

Figures = Mapping[str, Any]
Column = tuple[str, Callable[[Figures], str]]
"""A heading, and the cell of an engine; a column without any text is left out."""
_DELAYS = ("p50", "p95", "p99", "p999")


def engine_rows(run: Mapping[str, Any]) -> list[list[str]]:
    """A row for each engine; one that failed has the kind of its failure alone."""
    engines = run["engines"]
    if run["params"].get("find_rate"):
        columns = _SEARCH
    elif run["params"].get("live"):
        columns = [*_LATENCY, *_USED]
    else:
        columns = [*_speed(engines), *_USED]
    finished = [figures for figures in engines.values() if "error" not in figures]
    shown = [(head, cell) for head, cell in columns if any(map(cell, finished))] or columns[:1]
    rows = [["engine", *(head for head, _ in shown)]]
    for name, figures in engines.items():
        if "error" in figures:
            rows.append([name, failure(figures["error"]), *[""] * (len(shown) - 1)])
        else:
            rows.append([name, *(cell(figures) for _, cell in shown)])
    return rows


def split_rows(engines: Mapping[str, Figures]) -> list[list[str]]:
    """Where time and CPU time went, for the engines that tell; none where nobody does."""
    kinds = (("time_split_ms", "time"), ("cpu_split_ms", "CPU"))
    rows = [
        [name, said, *(_number(figures[key].get(part), 1) for part in PARTS)]
        for name, figures in engines.items()
        for key, said in kinds
        if key in figures
    ]
    return [["ms a batch", "", *(part.replace("_", " ") for part in PARTS)], *rows] if rows else []


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _of(figure: str, part: str) -> Callable[[Figures], str]:
    return lambda each: _number((each.get(figure) or {}).get(part))


def _mebibytes(figure: str) -> Callable[[Figures], str]:
    return lambda each: _number(each[figure] / (1 << 20)) if figure in each else ""


def _speed(engines: Mapping[str, Figures]) -> list[Column]:
    baseline = next((engines[name] for name in BASELINES if "rows_per_s" in engines.get(name, {})), {})
    floor = engines.get(FLOOR, {})
    return [
        ("rows/s", lambda each: _number(each.get("rows_per_s"))),
        ("rows/s of runs", lambda each: spread(each, "rows_per_s")),
        ("× baseline", lambda each: _ratio(each, baseline)),
        ("× floor", lambda each: _ratio(each, floor)),
        *((f"{part} ms", _of("batch_ms", part)) for part in ("p50", "p95", "p99", "max")),
        *_ABOVE_FLOOR,
    ]


def _ratio(figures: Figures, other: Figures) -> str:
    return _number(figures["rows_per_s"] / other["rows_per_s"], 2) if "rows_per_s" in other else ""


_ABOVE_FLOOR: list[Column] = [(f"{part} above floor", _of("above_floor_ms", part)) for part in ("p50", "p95")]
_USED: list[Column] = [
    ("CPU s", lambda each: _number(each.get("cpu_s"), 1)),
    ("peak MiB", _mebibytes("peak_memory_bytes")),
    ("state rows", lambda each: _number(each.get("state_rows"))),
]
_LATENCY: list[Column] = [
    *((f"batch {part} ms", _of("batch_ms", part)) for part in _DELAYS),
    ("batch p95 of runs", lambda each: spread(each, "p95")),
    *_ABOVE_FLOOR,
    *((f"delay {part} ms", _of("delay_ms", part)) for part in _DELAYS),
    ("state wait p95 ms", _of("state_wait_ms", "p95")),
    ("reads from memory", lambda each: _share(each.get("read_hit_ratio"))),
]


def _highest(figures: Figures) -> str:
    return "none" if figures["max_rate"] is None else _number(figures["max_rate"])


def _delay_there(figures: Figures) -> str:
    found = [each["delay_p95_ms"] for each in figures["probes"] if each["rate"] == figures["max_rate"]]
    return _number(found[0]) if found else ""


def _tried(probes: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(probes, key=lambda each: each["rate"])
    return ", ".join(f"{each['rate']:,} {'✓' if each['sustained'] else '✗'}" for each in ordered)


_SEARCH: list[Column] = [
    ("highest rate, events/s", _highest),
    ("delay p95 there, ms", _delay_there),
    ("rates tried", lambda each: _tried(each["probes"])),
]
