"""How a process gets its memory, and what becomes of what it has freed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache

__all__ = ["keep_freed_memory", "with_large_pages"]

# Of the C library's `mallopt`.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_KEPT_BYTES = 256 << 20
_MAPPED_FROM_BYTES = 32 << 20
"""Larger blocks grow without being copied, which the buffers of a batch need less than to be there again."""

_TUNABLES = "GLIBC_TUNABLES"
_LARGE_PAGES = "glibc.malloc.hugetlb"


def with_large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that looks for groups all over its memory: with pages of 4 kB, each of them costs
    a walk through the page tables, which the processor's cache holds less of the larger the state is. What the user
    set stays. Other C libraries, and systems without large pages, do as they always do."""
    given = environment.get(_TUNABLES, "")
    if _LARGE_PAGES in given:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (given, f"{_LARGE_PAGES}=1")))}


@cache
def keep_freed_memory() -> None:
    """For processes that do the same for one batch after another. The C library gives large blocks back to the system
    when they are freed, so that every batch pays for each page of its buffers anew; on virtual machines that takes
    longer than what is done with the page. Other C libraries are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
