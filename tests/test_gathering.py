"""Groups made of emitted rows: against plain Python, in one pass and in several."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.spark.gathering import Gathered, Gathering, gather

PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("p", PAIR), ("v", pa.int64()), ("s", pa.int64()), ("e", pa.int64())])
GROUPS = pa.schema(
    [
        *(("k", pa.string()), ("p", PAIR), ("list", pa.list_(pa.int64())), ("median", pa.float64())),
        *(("low", pa.float64()), ("s", pa.int64()), ("e", pa.int64())),
    ]
)
GATHERING = Gathering(
    keys=2,
    bounds=True,
    values=(Gathered("list", 2), Gathered("percentile", 2, 0.5), Gathered("percentile", 2, 0.1)),
    output_ipc=bytes(GROUPS.serialize()),
)

keys = st.sampled_from([None, "", "x", "a longer key"])
pairs = st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 2), "b": keys})
rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": keys,
            "p": pairs,
            "v": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            "s": st.sampled_from([0, 10]),
        }
    ),
    max_size=60,
)


def pair(value: dict[str, Any] | None) -> str:
    return "" if value is None else str((value["a"], value["b"]))


def percentile(values: list[int], fraction: float) -> float | None:
    if not values:
        return None
    ordered, place = sorted(values), (len(values) - 1) * fraction
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    if math.floor(place) == math.ceil(place) or low == high:
        return float(low)
    return float(low) + (float(high) - float(low)) * (place - math.floor(place))


def expected(given_rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in given_rows:
        found = groups[row["k"], pair(row["p"]), row["s"]]
        if row["v"] is not None:
            found.append(row["v"])
    return sorted(
        ((*key, values, percentile(values, 0.5), percentile(values, 0.1)) for key, values in groups.items()),
        key=str,
    )


def found(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    made = [row for batch in batches for row in batch.to_pylist()]
    assert all(row["e"] == row["s"] + 10 for row in made)
    return sorted(
        ((row["k"], pair(row["p"]), row["s"], row["list"], row["median"], row["low"]) for row in made),
        key=str,
    )


@settings(deadline=None)
@given(rows, st.integers(1, 20))
def test_groups_are_those_of_the_rows(given_rows: list[dict[str, Any]], rows_per_batch: int) -> None:
    complete = [row | {"e": row["s"] + 10} for row in given_rows]
    batches = [
        pa.RecordBatch.from_pylist(complete[at : at + rows_per_batch], schema=ROWS)
        for at in range(0, len(complete), rows_per_batch)
    ]
    wanted = expected(given_rows)
    assert found(gather(lambda: iter(batches), GATHERING)) == wanted
    assert found(gather(lambda: iter(batches), GATHERING, held_bytes=500)) == wanted


def test_several_passes_hold_only_a_part_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.spark import gathering as module

    held: list[int] = []
    groups = module._groups

    def noted(batches: Iterable[pa.RecordBatch], order: Gathering) -> Any:
        batches = list(batches)
        held.append(sum(batch.nbytes for batch in batches))
        return groups(batches, order)

    monkeypatch.setattr(module, "_groups", noted)
    complete = [{"k": str(i % 1000), "p": None, "v": i, "s": 0, "e": 10} for i in range(20_000)]
    batches = [
        pa.RecordBatch.from_pylist(complete[at : at + 1000], schema=ROWS) for at in range(0, 20_000, 1000)
    ]
    total = sum(batch.nbytes for batch in batches)
    made = [
        row for batch in gather(lambda: iter(batches), GATHERING, total // 4) for row in batch.to_pylist()
    ]
    assert len(held) == 4
    assert max(held) < total / 3
    assert len(made) == 1000
    assert made[0]["median"] == statistics.median(made[0]["list"])
