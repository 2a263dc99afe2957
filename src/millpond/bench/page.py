"""A report for people: a page in Markdown with a table and plots of each measured run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from millpond.bench import plots, sweep_plots
from millpond.bench.cells import engine_rows, split_rows
from millpond.bench.failures import failure
from millpond.bench.kernel import KernelMerge
from millpond.bench.page_live import is_live, is_search, live_words
from millpond.bench.words import settings_words, state_words

__all__ = ["write_page"]

Run = Mapping[str, Any]
_READING = (
    "All engines of a run read the same files under the same settings, one after the other, in their own processes.",
    "Rows a second are those of a batch over its time; `passthrough` keeps no state and is the floor. A delay is",
    "the time from the moment when an event was due to arrive to the end of the batch that took it in and wrote.",
)


def write_page(files: Sequence[Path], out: Path) -> Path:
    """Reads what `millpond bench --json` wrote and puts `report.md` and its plots into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    contents = [msgspec.json.decode(file.read_bytes()) for file in files]
    lines = ["# Benchmark report", ""]
    for file, content in zip(files, contents, strict=True):
        lines += [f"- `{file.name}`: {_origin(content)}{_machine(content)}"]
    lines += ["", *_READING, ""]
    runs = [run for content in contents for run in content["runs"]]
    full_speed = [run for run in _finished(runs) if not is_live(run)]
    # A store alone is so much faster than a query that beside it no query would show.
    alone = [run for run in full_speed if run["workload"] == KernelMerge().name]
    queries = [run for run in full_speed if run not in alone]
    for picture, shown in (("throughput.png", queries), ("store-alone.png", alone)):
        if shown:
            lines += [_picture(out, picture, plots.throughput, shown), ""]
    searches = [run for run in runs if is_search(run)]
    if searches:
        lines += [_picture(out, "max-rates.png", plots.max_rates, searches), ""]
    for number, run in enumerate(runs, 1):
        lines += _section(run, number, out)
    for name, group in _sweeps(runs).items():
        workload, varied = name
        lines += [f"## {workload} over {varied}", ""]
        for measure in sweep_plots.measures(group):
            picture = f"sweep-{workload}-{varied}-{measure.name}.png"
            lines += [_picture(out, picture, partial(sweep_plots.growth, measure=measure), group), ""]
    page = out / "report.md"
    page.write_text("\n".join(lines))
    return page


def _origin(content: Mapping[str, Any]) -> str:
    return f"`{content['command']}`, {content['date']}, " if "command" in content else ""


def _machine(content: Mapping[str, Any]) -> str:
    parts = [_readable(name, value) for name, value in content["machine"].items()]
    parts += [_readable(name, value) for name, value in content["versions"].items() if value is not None]
    return ", ".join(parts)


def _readable(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"memory {value / (1 << 30):.0f} GiB"
    return f"{name.replace('git_', '')} {value}"


def _section(run: Run, number: int, out: Path) -> list[str]:
    params = run["params"]
    varied = "".join(f", {name} {value}" for name, value in params.get("varied", {}).items())
    lines = [f"## {run['workload']}{varied}", ""]
    said = {True: "yes", False: "**no**", None: "not compared"}[run["results_equal"]]
    lines += [f"Results equal: {said}.", ""]
    if is_live(run):
        lines += [live_words(run), ""]
    lines += [*_markdown(engine_rows(run)), ""]
    if "source_to_parquet" in run:
        ratio, plain = run["source_to_parquet"], run["source_to_plain_parquet"]
        lines += [f"The source has {ratio} × the speed of Parquet, {plain} × that of plain Parquet.", ""]
    notes = [f"- {line}" for line in state_words(run["engines"])]
    notes += [f"- {line}" for line in settings_words(params.get("engine_settings", {}))]
    failed = {name: each["error"] for name, each in run["engines"].items() if "error" in each}
    notes += [f"- {name} {failure(error)}: {_first_line(error)}" for name, error in failed.items()]
    lines += [*notes, ""] if notes else []
    engines = {name: each for name, each in run["engines"].items() if each.get("trace_ms")}
    if engines:
        stem = f"{number:02}-{run['workload']}"
        lines += [
            _picture(out, f"{stem}-batches.png", plots.traces, engines),
            _picture(out, f"{stem}-cdf.png", plots.distribution, engines),
            "",
        ]
        delayed = {name: each for name, each in engines.items() if "delay_cdf" in each}
        if delayed:
            lines += [_picture(out, f"{stem}-delay-cdf.png", plots.delays, delayed), ""]
    lines += _split_lines(run["engines"], out, f"{number:02}-{run['workload']}-split.png")
    lines += ["<details><summary>Parameters and settings</summary>", "", "```json"]
    lines += [msgspec.json.format(msgspec.json.encode(params), indent=2).decode(), "```", "</details>", ""]
    return lines


def _split_lines(engines: Mapping[str, Any], out: Path, picture: str) -> list[str]:
    """Where time and CPU time went, for the engines that tell."""
    rows = split_rows(engines)
    if not rows:
        return []
    told = {name: engines[name] for name, *_ in rows[1:]}
    return [*_markdown(rows), "", _picture(out, picture, plots.splits, told), ""]


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Headings first."""
    headings, *others = rows
    return [_row(headings), _row(["---", *["---:"] * (len(headings) - 1)]), *(_row(each) for each in others)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"


def _picture(out: Path, name: str, draw: Any, content: Any) -> str:
    draw(content, path=out / name)
    return f"![{name.removesuffix('.png')}]({name})"


def _finished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if any("rows_per_s" in each for each in run["engines"].values())]


def _sweeps(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs that differ in one option, by workload and option."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for name in run["params"].get("varied", {}):
            found.setdefault((run["workload"], name), []).append(run)
    return {key: group for key, group in found.items() if len(group) > 1}
