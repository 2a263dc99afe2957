"""Rows of groups in a state service: what a batch gives out again, over tries, restarts, a kill and merges, with next
to no memory; and what that costs."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from millpond._kernel import PackWriter
from millpond.errors import CorruptState
from millpond.service.messages import BatchTry, OutputKey
from millpond.state.hashedrun import HashedRun, in_hash_order, merged_parts, read_block, write_run
from tests.service_kit import Driver, Group, disk_bytes, group_rows

Row = tuple[int, int, int]


def test_a_batch_gives_out_all_rows_of_the_groups_that_it_touched(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=group_rows()) as driver:
        assert driver.run([(1, 5, 0), (2, 6, 0)]) == [(1, 5), (2, 6)]
        assert driver.run([(1, 7, 0)]) == [(1, 5), (1, 7)]
        assert driver.run([]) == []
        assert driver.run([(3, 1, 0), (2, 8, 0)]) == [(2, 6), (2, 8), (3, 1)]


def test_complete_mode_gives_out_all_rows_with_every_batch(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=group_rows(), mode="complete") as driver:
        assert driver.run([(1, 5, 0), (2, 6, 0)]) == [(1, 5), (2, 6)]
        assert driver.run([(1, 7, 0)]) == [(1, 5), (1, 7), (2, 6)]
        assert driver.run([]) == [(1, 5), (1, 7), (2, 6)]


def test_windows_are_given_out_while_they_last_and_then_forgotten(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=group_rows(size_us=20, slide_us=10)) as driver:
        first = [(1, 5, -10, 10), (1, 5, 0, 20), (2, 9, 0, 20), (2, 9, 10, 30)]
        assert driver.run([(1, 5, 3), (2, 9, 12)], watermark_us=15) == first
        # The first window is over: of the row at 14 only the other two count, and the one at 4 is in time for one.
        assert driver.run([(1, 6, 14), (1, 7, 4)], watermark_us=30) == [
            (1, 5, 0, 20),
            (1, 6, 0, 20),
            (1, 6, 10, 30),
            (1, 7, 0, 20),
        ]
        assert driver.run([(1, 8, 9)], watermark_us=30) == []
        assert driver.run([(1, 8, 31)], watermark_us=99) == [(1, 8, 20, 40), (1, 8, 30, 50)]
        assert driver.commit(_sealed(driver)).stats[0].rows == 0


def _sealed(driver: Driver, *rows: Row) -> BatchTry:
    at = driver.begin()
    driver.seal(at, [driver.stage(at, rows)])
    return at


def test_rows_survive_tries_restarts_and_a_kill_and_do_without_memory(tmp_path: Path) -> None:
    dice = random.Random(3)
    kept: dict[int, list[int]] = defaultdict(list)
    for n in range(6):
        # Each has a service of its own.
        with Driver(
            tmp_path,
            spec=group_rows(),
            memory_bytes=1 if n % 2 else 1 << 20,
            write_buffer_bytes=2_000,
            max_runs=2,
        ) as driver:
            for _ in range(3):
                rows = [(dice.randrange(300), dice.randrange(10**6), 0) for _ in range(200)]
                at = driver.begin()
                driver.seal(at, [driver.stage(at, rows)])
                driver.client.abort(at)
                for key, value, _ in rows:
                    kept[key].append(value)
                touched = {key for key, _, _ in rows}
                wanted: list[Group] = sorted((key, value) for key in touched for value in kept[key])
                assert driver.run(rows) == wanted
            at = driver.begin()
            driver.seal(at, [driver.stage(at, [(1, 1, 0)])])
            driver.client.save(at)
            driver.service.kill()


def test_rows_of_a_group_keep_the_order_in_which_they_came(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=group_rows(), shards=1, max_runs=2, write_buffer_bytes=100) as driver:
        values = list(range(40))
        random.Random(5).shuffle(values)
        for value in values:
            at = driver.begin()
            driver.seal(at, [driver.stage(at, [(7, value, 0), (8, 0, 0)])])
            (batch,) = driver.client.outputs(OutputKey(at, 0, 0))
            given = [
                v for k, v in zip(*(column.to_pylist() for column in batch.columns), strict=True) if k == 7
            ]
            assert given == values[: values.index(value) + 1]
            driver.commit(at)


def test_figures_tell_what_was_read_from_files(tmp_path: Path) -> None:
    rows = [(key, value, 0) for key in range(2_000) for value in range(20)]
    with Driver(tmp_path, spec=group_rows(), shards=1, memory_bytes=1) as driver:
        driver.run(rows)
        stats = driver.commit(_sealed(driver, (17, 1, 0))).stats[0]
    assert stats.rows == len(rows) + 1
    # One key lies in one block, or in two.
    assert 1 <= stats.block_reads <= 2
    assert 20 * 24 * 0.8 < stats.taken_bytes < stats.read_bytes < stats.run_bytes / 2
    # All is live, and packs have little else.
    assert stats.live_bytes <= stats.run_bytes <= min(stats.live_bytes + 1_000, disk_bytes(tmp_path))


def test_a_damaged_byte_of_kept_rows_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with Driver(tmp_path, spec=group_rows(), shards=1) as driver:
        driver.run([(1, 5, 0)])
    (pack,) = (tmp_path / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[200] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    with Driver(tmp_path, spec=group_rows(), shards=1) as driver:
        at = driver.begin()
        with pytest.raises(CorruptState, match=pack.name):
            driver.seal(at, [driver.stage(at, [(1, 6, 0)])])


def test_runs_of_many_blocks_are_merged_stretch_by_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.state.hashedrun._BLOCK_BYTES", 200)
    monkeypatch.setattr("millpond.state.hashedrun._PART_BLOCKS", 3)
    schema = pa.schema([("v", pa.int64()), ("hash", pa.uint64())])
    dice = random.Random(1)
    pack = tmp_path / "pack"
    writer = PackWriter(str(pack))
    runs, all_rows = [], []
    for n in range(3):
        # Some keys have more rows than a block.
        rows = [(1_000 * n + i, dice.choice([0, 5, 2**64 - 1, dice.getrandbits(64)])) for i in range(300)]
        all_rows += rows
        columns = [pa.array([row[i] for row in rows], schema.types[i]) for i in range(2)]
        part = in_hash_order([pa.record_batch(columns, schema=schema)], schema)
        runs.append(write_run(writer, [part], held=True))
    merged = write_run(writer, merged_parts(runs_in(runs, pack), schema, 0), held=False)
    writer.finish()
    opened = HashedRun.open(str(pack), merged.offset, merged.length, 0)
    found = [
        row
        for block in opened.blocks
        for row in zip(*(c.to_pylist() for c in read_block(str(pack), block, schema, 0).columns), strict=True)
    ]
    assert found == sorted(all_rows, key=lambda row: row[1])
    assert opened.rows == len(all_rows)


def runs_in(runs: list[HashedRun], pack: Path) -> list[HashedRun]:
    """Of a pack that is still written; what was written is in memory too."""
    for run in runs:
        run.path = str(pack)
    return runs
