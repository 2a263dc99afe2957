"""A run's figures on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from millpond.bench.cells import engine_rows, split_rows
from millpond.bench.words import state_words

__all__ = ["print_run"]


def print_run(console: Console, entry: Mapping[str, Any]) -> None:
    engines: Mapping[str, Any] = entry["engines"]
    console.print(_table(engine_rows(entry), _title(entry)))
    splits = split_rows(engines)
    if splits:
        console.print(_table(splits, "where time went"))
    for line in state_words(engines):
        console.print(line, style="dim", highlight=False)
    for name, figures in engines.items():
        if "error" in figures:
            console.print(f"{name}: {figures['error']}", style="red", markup=False)


def _title(entry: Mapping[str, Any]) -> str:
    params = entry["params"]
    varied = "".join(f", {name} {value}" for name, value in params.get("varied", {}).items())
    live, pace = params.get("live"), ""
    if live:
        wanted = "highest rate" if params.get("find_rate") else f"{live['rate']:,} events/s"
        pace = f"{wanted}, trigger {live['trigger_seconds']:g} s; "
    equal = {True: "yes", False: "NO", None: "not compared"}[entry["results_equal"]]
    return f"{entry['workload']}{varied}: {pace}results equal: {equal}"


def _table(rows: Sequence[Sequence[str]], title: str) -> Table:
    headings, *others = rows
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        # Where a terminal is narrow, digits go on in the next line: none may be lost.
        table.add_column(heading, justify="right", overflow="fold")
    for row in others:
        table.add_row(*row)
    return table
