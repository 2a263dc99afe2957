"""Which store fits the windows that were seen."""

from __future__ import annotations

import pytest

from millpond.policy.observing import Observation, fitting

MIB = 1 << 20


@pytest.mark.parametrize(
    ("windows", "ends", "size", "fits"),
    [
        (1_000, 10, MIB, "AAR"),
        (1_000, 1_000, MIB, "AUR"),
        (1_000, 300, MIB, "AUR"),
        (10, 10, MIB, "AAR"),
        (1, 1, 100, "AUR"),
    ],
    ids=["shared by all keys", "one by one", "shared by few", "few but large", "a single small one"],
)
def test_windows_that_end_together_or_are_large_are_read_at_once(
    windows: int, ends: int, size: int, fits: str
) -> None:
    seen = Observation(rows=10 * windows, bytes=size, windows=windows, ends=ends)
    assert fitting(seen).name == fits
