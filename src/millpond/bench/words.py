"""What is known about the size of state, reads of it and waiting for it, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["state_words"]


def state_words(engines: Mapping[str, Any]) -> list[str]:
    """A line for each engine that tells something."""
    found = {name: _said(figures) for name, figures in engines.items()}
    return [f"{name}: {'; '.join(said)}" for name, said in found.items() if said]


def _said(figures: Mapping[str, Any]) -> list[str]:
    said = []
    size, files = figures.get("largest_state_bytes"), figures.get("largest_file_bytes")
    if size:
        said.append(f"up to {size / (1 << 20):,.0f} MiB of state")
    ratio = figures.get("state_to_memory")
    if ratio is not None:
        said.append(
            f"{ratio:.1f} × the memory given"
            if ratio > 1
            else f"the state did not outgrow the memory given ({ratio:.2f} of it)"
        )
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
