"""What a table has no column for: an engine's state and how it was read, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["settings_words", "state_words"]


def state_words(engines: Mapping[str, Any]) -> list[str]:
    """The size of state, reads of it and waiting for it: a line for each engine that tells something."""
    found = {name: _said(figures) for name, figures in engines.items()}
    return [f"{name}: {'; '.join(said)}" for name, said in found.items() if said]


def settings_words(settings: Mapping[str, Mapping[str, str]]) -> list[str]:
    """By engine: a line for each that has settings of its own."""
    return [
        f"{engine} with {', '.join(f'{name}={value}' for name, value in own.items())}"
        for engine, own in settings.items()
        if own
    ]


def _said(figures: Mapping[str, Any]) -> list[str]:
    said = []
    size, files = figures.get("largest_state_bytes"), figures.get("largest_file_bytes")
    if size:
        said.append(f"up to {size / (1 << 20):,.0f} MiB of state")
    if "state_to_memory" in figures:
        said.append(_to_memory_words(figures["state_to_memory"]))
    if files and files != size:
        said.append(f"{files / (1 << 20):,.0f} MiB of files")
    waits, hits = figures.get("state_wait_ms"), figures.get("read_hit_ratio")
    if waits:
        said.append(
            f"waited {waits['p50']:,.0f} ms a batch for storage (p95 {waits['p95']:,.0f}), all threads"
        )
    if hits is not None:
        said.append(f"{hits:.1%} of reads from memory")
    if "read_ahead_hit_ratio" in figures:
        said.append(f"{figures['read_ahead_hit_ratio']:.1%} of what was in files read ahead")
    return said


def _to_memory_words(ratio: float | None) -> str:
    if ratio is None:
        return "does not tell whether the state outgrew the memory given"
    if ratio <= 1:
        return f"the state did not outgrow the memory given ({ratio:.2f} of it)"
    return f"{ratio:.1f} × the memory given"
