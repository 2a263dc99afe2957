"""What becomes of memory that a process has freed."""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["keep_freed_memory"]

# Of the C library's `mallopt`.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEPT_BYTES = 256 << 20
_MAPPED_FROM_BYTES = 32 << 20
"""Larger blocks grow without being copied, which the buffers of a batch need less than to be there again."""


@cache
def keep_freed_memory() -> None:
    """For processes that do the same for one batch after another. The C library gives large blocks back to the system
    when they are freed, so that every batch pays for each page of its buffers anew; on virtual machines that takes
    longer than what is done with the page. Other C libraries are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
