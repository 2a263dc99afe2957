"""What a running query keeps, how and why: for each operator its access pattern, its store and what that costs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from millpond.semantics.operator import CountWindows, ObservedRowsSpec, OperatorSpec, Panes, Sessions
from millpond.semantics.patterns import AccessPattern, Seen, choice
from millpond.service.messages import StatsReply
from millpond.state.opening import store_of

__all__ = ["as_text", "explained"]

_WIDTH = 110
_INDENT = 12


def explained(spec: OperatorSpec, stats: StatsReply) -> dict[str, Any]:
    """One operator. Ratios are None where there is nothing yet to be divided by."""
    chosen = choice(spec, _seen(stats))
    store = store_of(_settled(spec, chosen.pattern))
    by_bytes = chosen.pattern in (AccessPattern.AAR, AccessPattern.AUR, AccessPattern.UNKNOWN)
    return {
        "operator": spec.name,
        "keys": [key.name for key in spec.keys] + _window(spec),
        "pattern": chosen.pattern.name,
        "why": chosen.why,
        "store": store.store_text,
        "unmovedRows": stats.unmoved_rows,
        "rows": stats.rows,
        "memoryBytes": stats.memory_bytes,
        "fileBytes": stats.run_bytes,
        "liveBytes": stats.live_bytes,
        "runs": stats.runs,
        "lookups": stats.gets,
        "memoryHitRatio": _ratio(stats.memory_hits, stats.gets),
        "readAhead": store.reads_ahead,
        "readAheadHitRatio": _ratio(stats.read_ahead_hits, stats.read_ahead_hits + stats.disk_probes),
        "readAmplification": (
            _ratio(stats.read_bytes, stats.taken_bytes) if by_bytes else _ratio(stats.block_reads, stats.gets)
        ),
        "readAmplificationUnit": "bytes read per byte given out" if by_bytes else "blocks read per look-up",
        "spaceAmplification": _ratio(stats.run_bytes, stats.live_bytes),
    }


def _seen(stats: StatsReply) -> Seen:
    return Seen(
        observing_shards=stats.observing_shards,
        aligned_shards=stats.aligned_shards,
        unaligned_shards=stats.unaligned_shards,
        windows=stats.seen_windows,
        ends=stats.seen_ends,
    )


def _settled(spec: OperatorSpec, pattern: AccessPattern) -> OperatorSpec:
    """What an operator is after a choice by what was seen; most are what they are from the beginning."""
    match spec, pattern:
        case ObservedRowsSpec(), AccessPattern.AAR:
            return spec.aligned
        case ObservedRowsSpec(), AccessPattern.AUR:
            return spec.unaligned
    return spec


def _window(spec: OperatorSpec) -> list[str]:
    return [spec.time.window.name] if isinstance(spec.time, Panes | Sessions | CountWindows) else []


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def as_text(name: str, batch_id: int | None, operators: Sequence[dict[str, Any]]) -> str:
    """For a person to read."""
    when = "before the first batch" if batch_id is None else f"after batch {batch_id}"
    return "\n".join([f"{name}: the state {when}", *(_operator_text(operator) for operator in operators)])


def _operator_text(operator: dict[str, Any]) -> str:
    pattern = AccessPattern[operator["pattern"]]
    lines = {
        "pattern": f"{pattern.name}: {pattern.value}",
        "why": operator["why"],
        "store": _store(operator),
        "size": f"{operator['rows']:,} rows, {_bytes(operator['memoryBytes'])} in memory, "
        f"{_bytes(operator['fileBytes'])} on disk in {operator['runs']:,} runs",
        "reads": _reads(operator),
        "space": f"amplification {_number(operator['spaceAmplification'])}: {_bytes(operator['fileBytes'])} on disk "
        f"for {_bytes(operator['liveBytes'])} of live state",
    }
    by = f" by {', '.join(operator['keys'])}" if operator["keys"] else ""
    return "\n".join(
        ["", f"{operator['operator']}{by}", *(_line(label, text) for label, text in lines.items())]
    )


def _store(operator: dict[str, Any]) -> str:
    unmoved = operator["unmovedRows"]
    moving = f"; {unmoved:,} rows are still to be moved there from memory" if unmoved else ""
    return f"{operator['store']}{moving}"


def _reads(operator: dict[str, Any]) -> str:
    parts = [
        f"amplification {_number(operator['readAmplification'])} ({operator['readAmplificationUnit']})",
        f"{_number(operator['memoryHitRatio'])} of {operator['lookups']:,} look-ups in memory",
    ]
    if operator["readAhead"]:
        parts.append(f"{_number(operator['readAheadHitRatio'])} of the others read ahead")
    return "; ".join(parts)


def _line(label: str, text: str) -> str:
    head = f"  {label}".ljust(_INDENT)
    return textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bytes(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
