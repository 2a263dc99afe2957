"""Every store keeps to what `millpond.testing` asks of stores."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond.semantics.operator import OperatorSpec
from millpond.testing import STATE_CHECKS, Batch, StateCase, StateCheck
from tests.service_kit import (
    counted,
    counted_rows,
    counts,
    counts_by_end,
    first_rows,
    group_rows,
    joined,
    observed_rows,
    session_rows,
    sessions,
    window_rows,
)

BATCHES, ROWS, KEYS = 12, 150, 60
WINDOWS = BATCHES * ROWS * 100
"""Bytes of a table of windows, one for each row."""
Row = tuple[int, ...]


def batches(spec: OperatorSpec, row: Callable[[int, int, int], Row]) -> list[Batch]:
    """Random rows, made of key, value and time, ten microseconds a batch, some of them late; the last two batches
    only bring the watermark forward."""
    dice = random.Random(3)
    made = []
    for number in range(BATCHES):
        sides = []
        for side in range(2 if hasattr(spec, "sides") else 1):
            rows = [
                row(dice.randrange(KEYS), dice.randrange(1_000), 10 * number + dice.randrange(-8, 14))
                for _ in range(ROWS)
            ]
            schema = spec.input_of(side)
            columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
            sides.append(pa.record_batch(columns, schema=schema))
        made.append(Batch(tuple(sides), max(0, 10 * number - 4)))
    empty = tuple(rows.slice(0, 0) for rows in made[0].inputs)
    return [*made, Batch(empty, 10 * BATCHES + 30), Batch(empty, 10 * BATCHES + 2_000)]


def plain(key: int, value: int, time: int) -> Row:
    return key, value, time


def with_end(key: int, value: int, time: int) -> Row:
    """A session of the row's own."""
    return key, value, time, time + 10


def aligned(key: int, value: int, time: int) -> Row:
    return key, value, (time // 20 + 2) * 20


def unaligned(key: int, value: int, time: int) -> Row:
    return key, value, time + 15 + 50 * (key % 7) + key


def by_end(key: int, value: int, time: int) -> Row:
    """Often at the watermark, which then takes the last rows of a slice that goes on after it."""
    return key, (time // 10 + 3) * 10 - 4, value


def with_range(key: int, value: int, time: int) -> Row:
    return key, value, time, time - 30, time - 20, time + 30


def case(spec: OperatorSpec, row: Callable[[int, int, int], Row], **others: object) -> StateCase:
    return StateCase(spec, batches(spec, row), **others)  # type: ignore[arg-type]


CASES = {
    "merged": lambda: case(counts(), plain, mode="update"),
    "merged, windows": lambda: case(counts(20), plain),
    "merged, by the end of windows": lambda: case(counts_by_end(4), by_end),
    "merged, all of it": lambda: case(counts(), plain, mode="complete"),
    "merged, sessions": lambda: case(sessions(), with_end),
    "merged, counted": lambda: case(counted(7), plain),
    "rows of windows": lambda: case(window_rows(20, 10), plain),
    "rows of groups": lambda: case(group_rows(20, 10), plain, mode="update"),
    "rows of sessions": lambda: case(session_rows(), with_end),
    "rows of sessions that say their end": lambda: case(session_rows(None), with_end),
    "rows, counted": lambda: case(counted_rows(7), plain),
    "keys": lambda: case(first_rows(), plain),
    "keys, forgotten": lambda: case(first_rows(forget_after_us=25), plain),
    "join": lambda: case(joined("left outer"), with_range),
    "observed": lambda: case(observed_rows(), unaligned, observed_bytes=1 << 20, table_bytes=WINDOWS),
    "observed, aligned": lambda: case(observed_rows(), aligned, observed_bytes=9_000),
    "observed, unaligned": lambda: case(
        observed_rows(), unaligned, observed_bytes=9_000, table_bytes=WINDOWS
    ),
}


@pytest.mark.parametrize("check", STATE_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", CASES)
def test_a_store_conforms(tmp_path: Path, name: str, check: StateCheck) -> None:
    check(CASES[name](), tmp_path)


def test_the_example_for_contributors_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    names: dict[str, Any] = {}
    exec(example, names)
    for check in STATE_CHECKS:
        names["test_a_store"](check, tmp_path / check.__name__)
