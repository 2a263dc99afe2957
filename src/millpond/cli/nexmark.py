"""`millpond nexmark`: the events of the NEXMark generator, to look at or to compare."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="NEXMark's events, equal to Apache Beam's.", no_args_is_help=True)

_LINES_AT_A_TIME = 10_000


@app.callback()
def group() -> None:
    """Keeps `print` a command of its own name while it is the only one."""


@app.command("print")
def print_events(
    events: Annotated[int, typer.Option(min=0, help="How many events.")] = 1_000,
    first: Annotated[int, typer.Option(min=0, help="Number of the first event.")] = 0,
    rate: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Events per second of event time.")
    ] = 10_000,
) -> None:
    """Print events, one a line, fields between bars, times in milliseconds since the epoch."""
    from millpond._kernel import Nexmark

    generator = Nexmark(events_per_second=rate)
    end = first + events
    try:
        for start in range(first, end, _LINES_AT_A_TIME):
            sys.stdout.buffer.write(generator.text_lines(start, min(_LINES_AT_A_TIME, end - start)))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # `| head` has seen enough. What is still buffered has nowhere to go.
        sys.stderr.close()
