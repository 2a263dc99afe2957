"""Sizes as people write them."""

from __future__ import annotations

__all__ = ["size_bytes"]

UNITS = {"k": 10, "m": 20, "g": 30}


def size_bytes(text: str) -> int:
    """`256m` as bytes."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in UNITS else (text, "")
    if not number.isdigit() or int(number) == 0:
        raise ValueError(f"{text!r} is no size; write bytes, or a number with k, m or g")
    return int(number) << UNITS.get(unit, 0)
