"""Aligned windows and the panes they are made of, and the timers of sessions. Pure arithmetic on microseconds.

A pane is the stretch between two neighbouring borders of windows: no window cuts it, so its groups are kept
once and merged into every window that covers it. A pane is named by its start. Where the size is a multiple
of the slide there is one pane per slide, else two: from a window's start to the end of an older one, and from
there to the next start.
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.semantics.operator import Panes

__all__ = ["due_windows", "expired_slices", "pane_slices", "timer_interval_us", "windows_of_slice"]


def pane_slices(panes: Panes, window_start: int) -> list[int]:
    """The panes that make the window, in order."""
    end = window_start + panes.size_us
    starts = range(window_start, end, panes.slide_us)
    cut = panes.size_us % panes.slide_us
    if cut == 0:
        return list(starts)
    return [pane for start in starts for pane in (start, start + cut) if pane < end]


def windows_of_slice(panes: Panes, slice_start: int) -> list[int]:
    """The starts of the windows that cover the pane, in order."""
    starts = range(_last_window(panes, slice_start), slice_start - panes.size_us, -panes.slide_us)
    return list(reversed(starts))


def due_windows(panes: Panes, live_slices: Iterable[int], after_us: int, watermark_us: int) -> list[int]:
    """The starts of the windows that end after `after_us` and not after the watermark and have a live pane."""
    last_due, past = _last_window(panes, watermark_us - panes.size_us), after_us - panes.size_us
    # Of the windows over a pane only those that are due are looked at, however many wait.
    due = {
        start
        for slice_start in live_slices
        for start in range(
            min(last_due, _last_window(panes, slice_start)),
            max(past, slice_start - panes.size_us),
            -panes.slide_us,
        )
    }
    return sorted(due)


def expired_slices(panes: Panes, live_slices: Iterable[int], watermark_us: int) -> list[int]:
    """The panes that no window needs any more: the last one that covers them has ended."""
    return [s for s in live_slices if _last_window(panes, s) + panes.size_us <= watermark_us]


def _last_window(panes: Panes, time_us: int) -> int:
    """The start of the last window that holds the time."""
    return time_us - (time_us - panes.offset_us) % panes.slide_us


def timer_interval_us(gap_us: int | None) -> int:
    """How long an interval of session ends shares a table of timers.

    The watermark cuts one table, which is then read for the few timers in it that are due, so that an interval is
    a small part of the gap; and tables cost something each, so that it is at least a second.
    """
    return 10_000_000 if gap_us is None else max(1_000_000, gap_us // 128)
