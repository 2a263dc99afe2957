"""A Flink job's time, laid out over the input files as if each were a batch.

Flink has no batches. A file's time is the time in which the sources handed on as many rows as it holds, from
samples of their counters; rows that have left a source may still be on their way. The first one begins with the
job, the last one ends with it, so that the times add up to the job's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from millpond.bench.job import BatchTime

__all__ = ["batch_times", "read_samples"]


def read_samples(path: Path) -> list[tuple[float, int]]:
    """Epoch milliseconds and rows, in the order of time."""
    lines = (line.split() for line in path.read_text().splitlines())
    return [(float(at_ms), int(rows)) for at_ms, rows in lines]


def batch_times(
    files: Sequence[int], samples: Sequence[tuple[float, int]], started_ms: float, ended_ms: float
) -> tuple[BatchTime, ...]:
    """One entry for each of `files`, which says its rows.

    What the sources handed on is taken as a share of all of it: a query may read the files more than once.
    """
    total_rows = sum(files)
    seen = max((rows for _, rows in samples), default=0)
    if seen == 0:
        raise ValueError("Flink's sources handed on no row")
    points = [(started_ms, 0.0)]
    points += [(at_ms, rows / seen) for at_ms, rows in samples if started_ms < at_ms < ended_ms]
    points.append((ended_ms, 1.0))
    boundaries = [started_ms]
    done = 0
    for rows in files[:-1]:
        done += rows
        boundaries.append(_reached(points, done / total_rows))
    boundaries.append(ended_ms)
    spans = pairwise(boundaries)
    return tuple(
        BatchTime(rows=rows, ms=end - begin, phases_ms={})
        for rows, (begin, end) in zip(files, spans, strict=True)
    )


def _reached(points: Sequence[tuple[float, float]], share: float) -> float:
    """When a share had been handed on, between two samples in proportion."""
    after = bisect_left(points, share, key=lambda point: point[1])
    if after == 0:
        return points[0][0]
    (begin_ms, low), (end_ms, high) = points[after - 1], points[after]
    return begin_ms + (end_ms - begin_ms) * (share - low) / (high - low)
