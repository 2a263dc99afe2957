"""`millpond bench trace`: records what queries do to their state, and replays it on stores alone."""

from __future__ import annotations

import os
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from millpond.bench.keyed import Keyed
    from millpond.bench.papers import Paper

__all__ = ["app"]

KEYED = "keyed"
KEYED_KEYS_PER_ROW = 2 / 3
"""As `millpond bench keyed` has by default."""
app = typer.Typer(
    help="Record the state accesses of a query, and replay them on Millpond's kernel, RocksDB and LMDB: no Spark, "
    "one core.",
    no_args_is_help=True,
)


class Store(StrEnum):
    """What can replay a trace."""

    MILLPOND = "millpond"
    ROCKSDB = "rocksdb"
    LMDB = "lmdb"


class State(StrEnum):
    """How large the state becomes."""

    SMALL = "small"
    LARGE = "large"


@app.command()
def record(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="`keyed`, or a query that `millpond bench list` shows.")
    ],
    out: Annotated[Path, typer.Option(help="The file for the trace; an older one is replaced.")],
    state: Annotated[State, typer.Option(help="NEXMark as it is, or millions of active keys.")] = State.LARGE,
    events: Annotated[int, typer.Option(min=1, help="Events in all.")] = 3_000_000,
    batch_events: Annotated[int, typer.Option(min=1, help="Events a batch.")] = 250_000,
    keys: Annotated[
        int,
        typer.Option(
            min=0,
            help="Active keys; 0: as --state says. With large state, q12 and readwrite begin with a row for each of "
            "them, and a replay is planned with all of them in memory.",
        ),
    ] = 0,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for the run.")] = 600,
    seed: Annotated[int, typer.Option(help="For the generated data.")] = 1,
) -> None:
    """Run a query with Millpond and write what its operators merge into their state and remove from it.

    What can be recorded are aggregates that are kept merged, without a window or in windows of a fixed length: keyed,
    q5, q12, q17, q18, q19, lr4, cm1, cm2, ysb and readwrite. Sessions, joins, deduplication and lists of rows can't.
    """
    from millpond.bench.recording import record_trace

    chosen = _workload(workload, state, events, batch_events, keys, seed)
    with (
        tempfile.TemporaryDirectory(prefix="millpond-trace-") as scratch,
        Console(stderr=True).status("recording"),
    ):
        found = record_trace(chosen, out, Path(scratch), time_limit, cores=len(os.sched_getaffinity(0)))
    if found.error is not None:
        Console(stderr=True).print(found.error, style="red", markup=False)
        raise typer.Exit(1)
    size = out.stat().st_size / (1 << 20)
    Console().print(
        f"{found.rows:,} merged rows in {found.batches} batches, {size:,.1f} MiB: {out}", highlight=False
    )


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `record` wrote.", exists=True, dir_okay=False)
    ],
    engine: Annotated[list[Store] | None, typer.Option(help="May be repeated; all by default.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each engine, in turn.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="First batches left out of the figures.")] = 2,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for one run of one engine.")] = 600,
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Read, merge, write and remove what the trace says, on each store alone."""
    from millpond.bench.compare import Plan
    from millpond.bench.trace import TraceReplay
    from millpond.cli.bench_run import run
    from millpond.errors import MillpondError

    try:
        workload = TraceReplay.of(file)
    except MillpondError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from None
    counted = workload.batches - workload.filling_batches
    if warmup >= counted:
        raise typer.BadParameter(
            f"the trace has {counted} batches, those that fill the state left out", param_hint="--warmup"
        )
    plan = Plan(
        workload=workload,
        engines=tuple(dict.fromkeys(str(chosen) for chosen in engine or Store)),
        repeat=repeat,
        warmup_batches=warmup,
        time_limit_s=time_limit,
    )
    raise typer.Exit(run([plan], json))


def _workload(name: str, state: State, events: int, batch_events: int, keys: int, seed: int) -> Keyed | Paper:
    from millpond.bench.keyed import Keyed
    from millpond.bench.papers import Paper
    from millpond.workloads.queries.catalog import QUERIES
    from millpond.workloads.scales import Shape, check_shape

    if name == KEYED:
        sized = max(1, round(events * KEYED_KEYS_PER_ROW)) if state is State.LARGE else 1_000
        return Keyed(rows=events, keys=keys or sized, batch_rows=batch_events, seed=seed)
    if name not in QUERIES:
        raise typer.BadParameter(
            f"no workload {name}; there are {KEYED} and what `millpond bench list` shows",
            param_hint="WORKLOAD",
        )
    try:
        check_shape(QUERIES[name].streams, Shape(keys=keys))
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint="--keys") from None
    return Paper(
        query_name=name, size=state.value, events=events, batch_events=batch_events, keys=keys, seed=seed
    )
