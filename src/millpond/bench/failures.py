"""What kind of failure an engine's error is, in the words that all tables and plots use."""

from __future__ import annotations

__all__ = ["NOT_SUPPORTED", "failure"]

FAILED, TIMED_OUT, NOT_SUPPORTED = "failed", "timed out", "not supported"


def failure(error: str) -> str:
    if error.startswith("not done after"):
        return TIMED_OUT
    return NOT_SUPPORTED if f"{NOT_SUPPORTED}:" in error else FAILED
