"""Which files of live traffic each batch took in, from Spark's own logs.

A source of files keeps a log of its own in the checkpoint: a number for each set of files that it handed out. The
progress of a batch says with which number each source began and ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

__all__ = ["TickReads", "batch_end_s", "batch_start_s", "ticks_of_batches", "took_files"]

_NUMBER = re.compile(r"batch-(\d+)\.parquet$")


class TickReads(NamedTuple):
    """The files of one stream that a batch read, by their numbers."""

    stream: str
    ticks: tuple[int, ...]


class _LogEntry(msgspec.Struct):
    path: str
    batchId: int  # noqa: N815, Spark's name


def ticks_of_batches(
    checkpoint: Path, progress: Sequence[Any], streams: Sequence[str]
) -> list[list[TickReads]]:
    """For each batch what each source read. A stream that the query reads by two sources counts once."""
    logs: dict[int, dict[int, list[int]]] = {}
    found = []
    for report in progress:
        reads: dict[str, TickReads] = {}
        for place, source in enumerate(report.sources):
            stream = next(name for name in streams if source.description.rstrip("]").endswith(f"/{name}"))
            log = logs.setdefault(place, _files_by_number(checkpoint / "sources" / str(place)))
            first, end = _log_offset(source.startOffset), _log_offset(source.endOffset)
            ticks = [tick for number in range(first + 1, end + 1) for tick in log.get(number, ())]
            reads.setdefault(stream, TickReads(stream, tuple(sorted(ticks))))
        found.append(list(reads.values()))
    return found


def took_files(report: Any) -> bool:
    """Whether this is a batch, be its files empty, and not a report that nothing happened."""
    return any(_log_offset(each.startOffset) < _log_offset(each.endOffset) for each in report.sources)


def _files_by_number(log: Path) -> dict[int, list[int]]:
    found: dict[int, dict[str, int]] = {}
    for path in log.iterdir():
        if path.name.startswith("."):
            continue
        for line in path.read_text().splitlines()[1:]:
            entry = msgspec.json.decode(line, type=_LogEntry)
            if match := _NUMBER.search(entry.path):
                # A compacted log says again what the logs before it said.
                found.setdefault(entry.batchId, {})[entry.path] = int(match[1])
    return {number: list(files.values()) for number, files in found.items()}


def _log_offset(offset: Any) -> int:
    """-1 before the first."""
    content: Mapping[str, int] | None = msgspec.json.decode(offset) if isinstance(offset, str) else offset
    return -1 if content is None else int(content["logOffset"])


def batch_start_s(report: Any) -> float:
    return datetime.fromisoformat(report.timestamp.replace("Z", "+00:00")).timestamp()


def batch_end_s(report: Any) -> float:
    """When the sink had written and Spark had noted it."""
    return batch_start_s(report) + float(report.durationMs["triggerExecution"]) / 1_000
