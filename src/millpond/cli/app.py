"""The commands and how they are grouped."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(
    help="Millpond: a state layer for stateful PySpark streaming.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def commands() -> None:
    """Keeps `doctor` a command of its own while there are few."""


@app.command()
def doctor() -> None:
    """Check Python, Java, Spark, the kernel, memory and disk, and say how to fix what is wrong."""
    from millpond.cli.doctor import report

    raise typer.Exit(report())
