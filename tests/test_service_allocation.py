"""A service asks for large pages, and leaves alone what the user has set."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.service.allocation import with_large_pages
from millpond.service.process import ServiceProcess


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
    ],
)
def test_large_pages_are_asked_for_beside_what_is_set(given: dict[str, str], then: str) -> None:
    assert with_large_pages({"HOME": "/home", **given}) == {"HOME": "/home", "GLIBC_TUNABLES": then}


def test_the_service_runs_with_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    service = ServiceProcess()
    try:
        service.wait_ready().close()
        environment = Path(f"/proc/{service.pid}/environ").read_bytes().split(b"\0")
        assert b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in environment
    finally:
        service.stop()
