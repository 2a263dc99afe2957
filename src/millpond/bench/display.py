"""How far a comparison is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from millpond.bench.compare import EngineRun
from millpond.bench.failures import failure
from millpond.bench.workload import Prepared

__all__ = ["Display"]

LONG_RUN_S = 10


class Display:
    """A `Watcher` that shows batches done out of all batches of all runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("preparing", total=None)
        self._runs = self._batches = self._filling = self._finished = 0
        self._began: tuple[float, int] | None = None
        self._said_quarters = 0
        self._what = "batches"

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def preparing(self) -> None:
        self._console.print("preparing the data")

    def prepared(self, runs: int, prepared: Prepared) -> None:
        self._runs, self._batches, self._filling = runs, len(prepared.batches), prepared.filling_batches
        rows = sum(batch.rows for batch in prepared.batches)
        self._what = "files of live traffic" if prepared.live else "batches"
        first = f", the first {self._filling} of which fill the state" if self._filling else ""
        self._console.print(f"{rows:,} rows in {self._batches} {self._what}{first}")
        self._progress.update(self._task, total=runs * self._batches)

    def started(self, engine: str) -> None:
        self._progress.update(self._task, description=engine)
        if not self._console.is_terminal:
            self._console.print(
                f"run {self._finished + 1} of {self._runs}: {engine}, {self._batches} {self._what}"
            )
        self._began = None
        self._said_quarters = 0

    def batches_done(self, batches: int) -> None:
        self._progress.update(self._task, completed=self._finished * self._batches + batches)
        if not self._console.is_terminal:
            self._say_quarter(min(batches, self._batches))

    def _say_quarter(self, batches: int) -> None:
        """Where there is no bar, a line now and then for runs that take long."""
        if self._began is None or batches < self._began[1]:
            # Starting an engine takes a while that says nothing about its batches.
            self._began = (time.monotonic(), batches) if batches else None
            self._said_quarters = 0
            return
        spent_s, done = time.monotonic() - self._began[0], batches - self._began[1]
        quarter = batches * 4 // max(self._batches, 1)
        if done and self._said_quarters < quarter < 4:
            self._said_quarters = quarter
            left_s = spent_s * (self._batches - batches) / done
            if spent_s + left_s > LONG_RUN_S:
                self._console.print(f"  {batches} of {self._batches}, about {left_s:.0f} s left")

    def noted(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False, highlight=False)

    def ended(self, run: EngineRun) -> None:
        self._finished += 1
        self._progress.update(self._task, completed=self._finished * self._batches)
        outcome = run.measured.outcome
        if outcome.error is not None:
            kind, reason = failure(outcome.error), outcome.error.splitlines()[0]
            self._console.print(f"  {run.engine} {kind}: {reason}", markup=False)
            return
        if outcome.probes:
            self._console.print(f"  {run.engine}: {len(outcome.probes)} rates tried")
            return
        times = sorted(batch.ms for batch in outcome.batches[self._filling :])
        middle = times[len(times) // 2]
        used = f"CPU {run.measured.cpu_s:.0f} s, peak {run.measured.peak_memory_bytes / (1 << 20):,.0f} MiB"
        self._console.print(f"  {run.engine}: {middle:,.1f} ms a batch, {used}")
