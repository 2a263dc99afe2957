"""The commands and how they are grouped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli import bench, nexmark

__all__ = ["app"]

app = typer.Typer(
    help="Millpond: a state layer for stateful PySpark streaming.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(nexmark.app, name="nexmark")


@app.command()
def doctor() -> None:
    """Check Python, Java, Spark, the kernel, memory and disk, and say how to fix what is wrong."""
    from millpond.cli.doctor import report

    raise typer.Exit(report())


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=5, help="How long the stream runs.")] = 45,
    state: Annotated[
        Path | None, typer.Option(help="Directory for the state; default: in the checkpoint.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Directory for the checkpoint, kept for the next run; default: temporary."),
    ] = None,
) -> None:
    """Run a windowed query over a generated auction stream on Spark, and show how it goes."""
    from millpond.cli.demo import run

    run(seconds, state, checkpoint)
