"""Runs what a `millpond bench` command planned: comparisons one after the other, shown and written as they end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from millpond.bench.compare import Plan

__all__ = ["failed", "pace_words", "run"]

PLAIN_WIDTH = 200
"""Without a terminal: what the widest table needs."""


def run(plans: Sequence[Plan], json: Path | None) -> int:
    """The exit code."""
    from millpond.bench import report
    from millpond.bench.compare import compare
    from millpond.bench.display import Display
    from millpond.bench.machine import invocation
    from millpond.bench.slow_storage import JdkMissing
    from millpond.bench.tables import print_run
    from millpond.bench.words import settings_words

    # The engines' processes are in sessions of their own and end with the block that watches them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    asked = invocation(sys.argv[1:], datetime.now(UTC))
    entries: list[dict[str, Any]] = []
    taken_s: list[float] = []
    said: list[str] = []
    for number, plan in enumerate(plans, 1):
        started = time.monotonic()
        if len(plans) > 1:
            console.rule(f"{number} of {len(plans)}: {plan.workload.name}", align="left")
        settings = settings_words({engine: plan.settings_of(engine) for engine in plan.engines})
        if settings != said:
            console.print(*settings, sep="\n", style="dim", markup=False, highlight=False, soft_wrap=True)
            said = settings
        _prepare_flink(plan, console)
        try:
            with Display(console) as display:
                comparison = compare(plan, display)
        except JdkMissing as error:
            console.print(str(error), style="red", markup=False)
            return 1
        entry = report.run_entry(comparison)
        entries.append(entry)
        if number == len(plans):
            for name, value in comparison.settings.items():
                console.print(f"{name}={value}", style="dim", highlight=False)
        print_run(console, entry)
        if comparison.difference is not None:
            console.print(f"results differ; first rows, {comparison.difference}", markup=False)
        if json is not None:
            # After each: a long run that is ended keeps what it has.
            report.write(json, report.report(*entries, invocation=asked))
        taken_s.append(time.monotonic() - started)
        if len(plans) > 1:
            console.print(pace_words(taken_s, len(plans)), highlight=False)
    return 1 if any(failed(entry) for entry in entries) else 0


def failed(entry: Mapping[str, Any]) -> bool:
    """When results differ, or when no engine finished although one should have. What an engine can't do is an error
    in the file and no failure of the benchmark."""
    from millpond.bench.failures import NOT_SUPPORTED, failure

    if entry["results_equal"] is False:
        return True
    errors = [figures.get("error") for figures in entry["engines"].values()]
    kinds = [failure(error) for error in errors if error is not None]
    return len(kinds) == len(errors) and any(kind != NOT_SUPPORTED for kind in kinds)


def pace_words(taken_s: Sequence[float], plans: int) -> str:
    """How long the last comparison took, and what is left if the others take as long as those before."""
    said = f"took {_minutes(taken_s[-1])}"
    left = plans - len(taken_s)
    return (
        f"{said}; about {_minutes(left * sum(taken_s) / len(taken_s))} left for {left} more" if left else said
    )


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _prepare_flink(plan: Plan, console: Console) -> None:
    """Before anything is measured. Where it fails, the engine's entry says so and the others still run."""
    from millpond.bench.flink.environment import FlinkUnavailable, ensure
    from millpond.bench.flink.settings import FLINK_ENGINES

    if not set(plan.engines) & set(FLINK_ENGINES):
        return
    try:
        ensure(lambda text: console.print(text, markup=False, highlight=False))
    except FlinkUnavailable as error:
        console.print(str(error), style="red", markup=False)
