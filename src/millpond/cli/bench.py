"""`millpond bench`: compares engines on a workload and writes the figures."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from millpond.bench.compare import Plan

__all__ = ["app"]

app = typer.Typer(help="Compare Millpond with Spark's own state stores.", no_args_is_help=True)


class Engine(StrEnum):
    """What can run a streaming workload."""

    MILLPOND = "millpond"
    SPARK_ROCKSDB = "spark-rocksdb"
    SPARK_MEMORY = "spark-memory"
    PASSTHROUGH = "passthrough"
    FLINK_ROCKSDB = "flink-rocksdb"
    FLINK_HASHMAP = "flink-hashmap"
    FLINK_FORST = "flink-forst"


INSTALLED = (Engine.MILLPOND, Engine.SPARK_ROCKSDB, Engine.SPARK_MEMORY, Engine.PASSTHROUGH)
"""What runs without fetching anything."""

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Repeat = Annotated[int, typer.Option(min=1, help="Runs of each engine, in turn.")]
Seed = Annotated[int, typer.Option(help="For the generated data.")]
TimeLimit = Annotated[float, typer.Option(min=1, help="Seconds for one run of one engine.")]


@app.command()
def keyed(
    rows: Annotated[int, typer.Option(min=1, help="Rows in all.")] = 6_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Keys, drawn uniformly.")] = 4_000_000,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows a batch.")] = 500_000,
    small: Annotated[
        bool,
        typer.Option("--small", help="80 batches of 4,500 rows, 10,000 keys, sliding window of 20 s by 5 s."),
    ] = False,
    engine: Annotated[
        list[Engine] | None, typer.Option(help="May be repeated; all but Flink's by default.")
    ] = None,
    repeat: Repeat = 1,
    warmup: Annotated[int, typer.Option(min=0, help="First batches of a run left out of the figures.")] = 2,
    rehearse: Annotated[
        int,
        typer.Option(min=0, help="First batches run once beforehand, so that the JVM has compiled its code."),
    ] = 8,
    time_limit: TimeLimit = 600,
    seed: Seed = 1,
    json: JsonFile = None,
) -> None:
    """Count and sum per key in update mode, from Parquet files."""
    from millpond.bench.compare import Plan
    from millpond.bench.keyed import Keyed, small_windows

    large = Keyed(rows=rows, keys=keys, batch_rows=batch_rows, seed=seed)
    workload = small_windows(seed) if small else large
    if warmup >= -(-workload.rows // workload.batch_rows):
        raise typer.BadParameter(
            "all batches are warm-up; fewer of them, or more rows", param_hint="--warmup"
        )
    plan = Plan(
        workload=workload,
        engines=tuple(dict.fromkeys(str(chosen) for chosen in engine or INSTALLED)),
        repeat=repeat,
        warmup_batches=warmup,
        rehearsal_batches=rehearse,
        time_limit_s=time_limit,
    )
    raise typer.Exit(_run(plan, json))


@app.command()
def kernel(
    repeat: Repeat = 1,
    time_limit: TimeLimit = 600,
    seed: Seed = 1,
    json: JsonFile = None,
) -> None:
    """Get, merge and put on one core: a million 8-byte keys, 16-byte values, batches of 65,536, beside RocksDB."""
    from millpond.bench.compare import Plan
    from millpond.bench.kernel import KERNEL_ENGINES, KernelMerge

    workload = KernelMerge(seed=seed)
    plan = Plan(
        workload=workload,
        engines=KERNEL_ENGINES,
        repeat=repeat,
        warmup_batches=workload.loading_batches,
        time_limit_s=time_limit,
    )
    raise typer.Exit(_run(plan, json))


@app.command()
def generator(
    events: Annotated[int, typer.Option(min=1, help="Events of a run.")] = 4_000_000,
    repeat: Repeat = 5,
    json: JsonFile = None,
) -> None:
    """Make NEXMark's events: in the kernel on one core, and as a Spark source beside Parquet with the same rows."""
    from millpond.bench import report
    from millpond.bench.generator import GeneratorBench, run

    console = Console()
    entry = run(GeneratorBench(events=events, repeat=repeat), console.print)
    for name, figures in entry["engines"].items():
        console.print(f"{name:8}{figures['rows_per_s']:>14,.0f} events/s on {figures['cores']} core(s)")
    console.print(f"source / parquet: {entry['source_to_parquet']}, same rows: {entry['results_equal']}")
    if json is not None:
        report.write(json, report.report(entry))
    raise typer.Exit(0 if entry["results_equal"] else 1)


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


def _run(plan: Plan, json: Path | None) -> int:
    """The exit code: 1 when an engine failed or results differ."""
    from millpond.bench import report
    from millpond.bench.compare import compare
    from millpond.bench.display import Display

    # The engines' processes are in sessions of their own and end with the block that watches them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    _prepare_flink(plan, console)
    with Display(console) as display:
        comparison = compare(plan, display)
    entry = report.run_entry(comparison)
    for name, value in comparison.settings.items():
        console.print(f"{name}={value}", style="dim", highlight=False)
    report.print_table(console, entry)
    if comparison.difference is not None:
        console.print(f"results differ; first rows, {comparison.difference}", markup=False)
    if json is not None:
        report.write(json, report.report(entry))
    failed = entry["results_equal"] is False or any("error" in each for each in entry["engines"].values())
    return 1 if failed else 0
