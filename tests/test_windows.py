"""Panes against windows counted one microsecond at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.semantics.operator import Column, Panes
from millpond.semantics.windows import due_windows, expired_slices, pane_slices, windows_of_slice


@st.composite
def _panes(draw: st.DrawFn) -> Panes:
    slide = draw(st.integers(1, 12))
    size = draw(st.integers(slide, 40))
    return Panes(0, size, slide, draw(st.integers(-12, 24)), Column("window", "struct"))


def _windows_at(panes: Panes, time: int) -> list[int]:
    """The starts of all windows that hold the time, by trying every start."""
    return [
        start
        for start in range(time - panes.size_us + 1, time + 1)
        if (start - panes.offset_us) % panes.slide_us == 0
    ]


def _pane_at(panes: Panes, time: int) -> int:
    """The pane that holds the time: back to the nearest border of any window."""
    while True:
        starts = (time - panes.offset_us) % panes.slide_us == 0
        ends = (time - panes.size_us - panes.offset_us) % panes.slide_us == 0
        if starts or ends:
            return time
        time -= 1


_times = st.integers(-100, 100)


@given(_panes(), _times)
def test_the_windows_of_a_pane_are_those_of_every_moment_in_it(panes: Panes, time: int) -> None:
    assert windows_of_slice(panes, _pane_at(panes, time)) == _windows_at(panes, time)


@given(_panes(), _times)
def test_a_window_is_made_of_the_panes_of_its_moments(panes: Panes, time: int) -> None:
    start = _windows_at(panes, time)[0]
    moments = range(start, start + panes.size_us)
    assert pane_slices(panes, start) == sorted({_pane_at(panes, moment) for moment in moments})


@given(_panes(), st.sets(_times), _times, _times)
def test_due_windows_are_those_with_rows_that_end_between(
    panes: Panes, times: set[int], after: int, watermark: int
) -> None:
    live = sorted({_pane_at(panes, time) for time in times})
    expected = {
        start
        for time in times
        for start in _windows_at(panes, time)
        if after < start + panes.size_us <= watermark
    }
    assert due_windows(panes, live, after, watermark) == sorted(expected)


@given(_panes(), st.sets(_times), _times)
def test_a_pane_expires_with_the_last_window_that_holds_it(
    panes: Panes, times: set[int], watermark: int
) -> None:
    live = sorted({_pane_at(panes, time) for time in times})
    expected = {
        _pane_at(panes, time) for time in times if max(_windows_at(panes, time)) + panes.size_us <= watermark
    }
    assert expired_slices(panes, live, watermark) == sorted(expected)


def test_windows_are_looked_at_only_where_rows_are_and_only_if_they_are_due() -> None:
    a_day, a_year = 86_400_000_000, 365 * 86_400_000_000
    panes = Panes(0, a_day, 1_000_000, 0, Column("window", "struct"))
    # A year in which nothing happened, and a day of panes of which nothing is due: each would take minutes.
    assert len(due_windows(panes, [0, 50 * a_year], 0, 25 * a_year)) == 86_400
    assert due_windows(panes, range(0, a_day, 1_000_000), 0, 1) == []
