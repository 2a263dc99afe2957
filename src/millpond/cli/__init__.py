"""The command line. Each command's module is imported when it runs, so that `millpond --help` stays quick."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the `millpond` command."""
    from millpond.cli.app import app

    app(prog_name="millpond")
