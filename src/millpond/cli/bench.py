"""`millpond bench`: compares engines on a workload and writes the figures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["app"]

app = typer.Typer(help="Compare Millpond with Spark's own state stores.", no_args_is_help=True)


class Engine(StrEnum):
    MILLPOND = "millpond"
    SPARK_ROCKSDB = "spark-rocksdb"
    SPARK_MEMORY = "spark-memory"
    PASSTHROUGH = "passthrough"


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Seed = Annotated[int, typer.Option(help="For the generated data.")]


@app.command()
def keyed(  # noqa: PLR0917 (typer fills them in by name)
    rows: Annotated[int, typer.Option(min=1, help="Rows in all.")] = 6_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Keys, drawn uniformly.")] = 4_000_000,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows a batch.")] = 500_000,
    small: Annotated[
        bool,
        typer.Option("--small", help="80 batches of 4,500 rows, 10,000 keys, sliding window of 20 s by 5 s."),
    ] = False,
    engine: Annotated[list[Engine] | None, typer.Option(help="May be repeated; all by default.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each engine, in turn.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="First batches of a run left out of the figures.")] = 2,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds for one run of one engine.")] = 600,
    seed: Seed = 1,
    json: JsonFile = None,
) -> None:
    """Count and sum per key in update mode, from Parquet files."""
    from millpond.bench import report
    from millpond.bench.compare import Plan, compare
    from millpond.bench.display import Display
    from millpond.bench.keyed import Keyed

    if small:
        workload = Keyed(
            rows=80 * 4_500,
            keys=10_000,
            batch_rows=4_500,
            window_seconds=20,
            slide_seconds=5,
            watermark_seconds=4,
            seed=seed,
        )
    else:
        workload = Keyed(rows=rows, keys=keys, batch_rows=batch_rows, seed=seed)
    if warmup >= -(-workload.rows // workload.batch_rows):
        raise typer.BadParameter(
            "all batches are warm-up; fewer of them, or more rows", param_hint="--warmup"
        )
    plan = Plan(
        workload=workload,
        engines=tuple(dict.fromkeys(str(chosen) for chosen in engine or Engine)),
        repeat=repeat,
        warmup_batches=warmup,
        time_limit_s=time_limit,
    )
    console = _console()
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
    raise typer.Exit(1 if failed else 0)


def _console() -> Console:
    """Where lines do not wrap by themselves, the tables get the width that they need."""
    console = Console()
    return console if console.is_terminal else Console(width=120)
