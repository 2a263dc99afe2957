"""Which of the query's watermarks an operator goes by in a batch: for late rows, and for what is due."""

from __future__ import annotations

from typing import NamedTuple

from millpond.semantics.operator import OperatorSpec

__all__ = ["OperatorTimes", "Watermarks", "operator_times"]


class Watermarks(NamedTuple):
    """In microseconds; 0 before the first."""

    earlier_us: int
    """Before the batch before."""
    before_us: int
    """Before the batch."""
    now_us: int
    """With the batch."""


class OperatorTimes(NamedTuple):
    late_before_us: int
    """Rows up to this time are late."""
    before_us: int
    """Up to this time everything has been given out, unless the operator lets what is due wait for a batch."""
    watermark_us: int
    """Up to this time everything is given out with the batch."""


def operator_times(spec: OperatorSpec, marks: Watermarks, *, lag_us: int, delayed: bool) -> OperatorTimes:
    """`lag_us`: how far the operator's rows may be behind the watermark. `delayed`: some of them are given out a
    batch after they were due, so that for this operator time is that of the batch before."""
    late, now = (marks.earlier_us, marks.before_us) if delayed else (marks.before_us, marks.now_us)
    before, due = (marks.before_us, marks.before_us) if spec.defers else (late, now)
    return OperatorTimes(late - lag_us, before - lag_us, due - lag_us)
