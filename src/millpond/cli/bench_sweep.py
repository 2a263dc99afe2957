"""`--sweep NAME=V1,V2,...`: one run for each value of one option."""

from __future__ import annotations

import typer

__all__ = ["SWEEPABLE", "variations_of"]

ALIASES = {"skew": "hot-ratio", "cache": "memory"}
SWEEPABLE = (
    *("events", "batch-events", "rate", "trigger", "window", "slide", "keys", "hot-ratio", "state", "memory"),
    *("write-buffer", "partitions", "shards", "space-amplification", "read-batch-ratio", "state-latency"),
    *ALIASES,
)


def variations_of(sweep: str | None, ctx: typer.Context) -> list[dict[str, str]]:
    """`window=10,60` as one change after the other; no sweep is one run without changes. A value has to be one that
    the command's own option of that name takes."""
    if sweep is None:
        return [{}]
    given, _, listed = sweep.partition("=")
    values = [value.strip() for value in listed.split(",") if value.strip()]
    if given not in SWEEPABLE or not values:
        raise typer.BadParameter(
            f"{sweep!r}: write NAME=VALUE,VALUE,... with one of the names {', '.join(SWEEPABLE)}",
            param_hint="--sweep",
        )
    name = ALIASES.get(given, given)
    option = next(each for each in ctx.command.params if each.name == name.replace("-", "_"))
    for value in values:
        try:
            option.process_value(ctx, value)
        except typer.BadParameter as error:
            raise typer.BadParameter(f"{name}={value}: {error.message}", param_hint="--sweep") from None
    return [{name: value} for value in values]
