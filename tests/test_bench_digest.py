"""The digest of an output depends on the last row of each key and on nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.bench.digest import differences, digest, last_rows


def write(
    output: Path, *batches: list[dict[str, Any]], files: int = 1, schema: pa.Schema | None = None
) -> Path:
    """One directory per batch; its rows dealt out to `files` files."""
    for number, rows in enumerate(batches):
        directory = output / f"batch={number}"
        directory.mkdir(parents=True)
        for part in range(files):
            if rows[part::files]:
                table = pa.Table.from_pylist(rows[part::files], schema)
                pq.write_table(table, directory / f"part-{part}.parquet")
    return output


def of(output: Path, *keys: str) -> str:
    return digest(last_rows(output, keys))


def row(key: int | None, n: int | None) -> dict[str, Any]:
    return {"key": key, "n": n}


def test_order_of_rows_and_number_of_files_do_not_count(tmp_path: Path) -> None:
    rows = [row(key, key * 7) for key in range(50)]
    one = write(tmp_path / "one", rows)
    other = write(tmp_path / "other", rows[::-1], files=3)
    assert of(one, "key") == of(other, "key")


def test_a_later_batch_replaces_a_row(tmp_path: Path) -> None:
    twice = write(tmp_path / "twice", [row(1, 10), row(2, 5)], [row(1, 11)])
    once = write(tmp_path / "once", [row(2, 5)], [row(1, 11)])
    wrong_way = write(tmp_path / "wrong", [row(1, 11), row(2, 5)], [row(1, 10)])
    assert of(twice, "key") == of(once, "key")
    assert of(twice, "key") != of(wrong_way, "key")


def test_batches_count_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    eleven = write(tmp_path / "eleven", *[[row(1, number)] for number in range(11)])
    assert last_rows(eleven, ["key"]).to_pylist() == [row(1, 10)]


def test_a_null_is_a_key_and_replaces_a_value(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    output = write(tmp_path / "nulls", [row(None, 1), row(1, 1)], [row(None, 2), row(1, None)], schema=schema)
    assert sorted(last_rows(output, ["key"]).to_pylist(), key=str) == [row(1, None), row(None, 2)]
    zero = write(tmp_path / "zero", [row(None, 2), row(1, 0)], schema=schema)
    assert of(output, "key") != of(zero, "key")


def test_a_different_value_or_type_or_a_missing_row_changes_the_digest(tmp_path: Path) -> None:
    digests = [
        of(write(tmp_path / "base", [row(1, 1), row(2, 2)]), "key"),
        of(write(tmp_path / "value", [row(1, 1), row(2, 3)]), "key"),
        of(write(tmp_path / "missing", [row(1, 1)]), "key"),
        of(write(tmp_path / "text", [{"key": 1, "n": "1"}, {"key": 2, "n": "2"}]), "key"),
    ]
    assert len(set(digests)) == len(digests)


def test_windows_are_part_of_the_key(tmp_path: Path) -> None:
    def windowed(start: int, n: int) -> dict[str, Any]:
        return {"key": 1, "window": {"start": start, "end": start + 10}, "n": n}

    output = write(tmp_path / "windows", [windowed(0, 1), windowed(5, 1)], [windowed(5, 2)])
    found = last_rows(output, ["key", "window.start", "window.end"])
    assert found.to_pylist() == [
        {"key": 1, "n": 1, "window.end": 10, "window.start": 0},
        {"key": 1, "n": 2, "window.end": 15, "window.start": 5},
    ]


def test_windows_that_have_not_ended_do_not_count(tmp_path: Path) -> None:
    ends = [
        datetime(2034, 12, 31, tzinfo=UTC),
        datetime(2035, 1, 1, tzinfo=UTC),
        datetime(2035, 1, 2, tzinfo=UTC),
    ]
    write(tmp_path, [{"window": {"end": end}, "n": n} for n, end in enumerate([*ends, None])])
    assert sorted(last_rows(tmp_path, [], ended_by=ends[1])["n"].to_pylist()) == [0, 1, 3]
    assert sorted(last_rows(tmp_path, [])["n"].to_pylist()) == [0, 1, 2, 3]


def test_differences_show_changed_and_missing_rows(tmp_path: Path) -> None:
    left = last_rows(write(tmp_path / "left", [row(1, 1), row(2, 2), row(3, 3)]), ["key"])
    right = last_rows(write(tmp_path / "right", [row(1, 1), row(2, 20), row(4, 4)]), ["key"])
    assert differences(left, right, ["key"]).to_pylist() == [
        {"key": 2, "n left": 2, "n right": 20},
        {"key": 3, "n left": 3, "n right": None},
        {"key": 4, "n left": None, "n right": 4},
    ]


def test_nothing_differs_between_equal_results(tmp_path: Path) -> None:
    rows = last_rows(write(tmp_path / "same", [row(1, 1), row(2, None)]), ["key"])
    assert differences(rows, rows, ["key"]).num_rows == 0


def test_an_output_without_rows_differs_from_one_with_rows(tmp_path: Path) -> None:
    full = last_rows(write(tmp_path / "full", [row(1, 1)]), ["key"])
    empty = full.slice(0, 0)
    assert digest(full) != digest(empty)
    assert differences(full, empty, ["key"]).num_rows == 1
