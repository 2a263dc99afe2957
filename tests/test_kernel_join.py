"""The kernel's join store against a model: random rows of both sides, batches that are aborted and tried again,
flushes in the middle of a batch, restarts, merges of runs, and memory for next to nothing."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond._kernel import BUCKETS, DamagedFile, JoinLayout, JoinSorter, JoinStore, PackWriter

INPUT = pa.schema(
    [
        ("k", pa.int64()),
        ("late", pa.int64()),
        ("expiry", pa.int64()),
        ("ok", pa.bool_()),
        ("payload", pa.string()),
    ]
)
Row = dict[str, Any]
NEVER = 2**63 - 1


def layout_of(
    outer: tuple[bool, bool],
    slice_us: int = 10,
    offsets: tuple[int, int] | None = None,
    *,
    once: bool = False,
) -> JoinLayout:
    """Rows with equal keys are partners when the left one's time is not after the right one's. `offsets`: each side's
    time without its expiry, where the layout is to know. `once`: a row of the left side comes out once, and alone."""
    left, right = (
        {
            "input": INPUT,
            "keys": [0],
            "matchable": 3,
            "late": 1,
            "expiry": 2,
            "comparands": [1],
            "times": [] if offsets is None else [0],
            "expires_after_us": 0 if offsets is None else -offsets[number],
            "kept": [] if once and number else [0, 4],
            "null_keys": False,
            "outer": side,
            "once": once and not number,
        }
        for number, side in enumerate(outer)
    )
    return JoinLayout(left, right, ["<="], slice_us)


class Model:
    """What Spark's symmetric hash join does, row by row."""

    def __init__(self, outer: tuple[bool, bool], *, once: bool = False) -> None:
        self.outer, self.once = outer, once
        self.kept: tuple[list[Row], list[Row]] = ([], [])

    def run(self, sides: tuple[list[Row], list[Row]], before: int) -> list[tuple[Any, ...]]:
        out: list[tuple[Any, ...]] = []
        for side in (0, 1):
            for given in sides[side]:
                row = dict(given, matched=False)
                if row["late"] is not None and row["late"] <= before:
                    continue
                if not row["ok"]:
                    if self.outer[side]:
                        out.append(_pair(row, None) if side == 0 else _pair(None, row))
                    continue
                for other in self.kept[1 - side]:
                    left, right = (row, other) if side == 0 else (other, row)
                    if None in (left["k"], right["k"], left["late"], right["late"]):
                        continue
                    if left["k"] == right["k"] and left["late"] <= right["late"]:
                        if not self.once:
                            out.append(_pair(left, right))
                        elif not left["matched"]:
                            out.append(_pair(left, None)[:2])
                        row["matched"] = other["matched"] = True
                self.kept[side].append(row)
        for side in (0, 1):
            due = [row for row in self.kept[side] if row["expiry"] is not None and row["expiry"] <= before]
            self.kept[side][:] = [row for row in self.kept[side] if row not in due]
            if self.outer[side]:
                alone = [row for row in due if not row["matched"]]
                out += [_pair(row, None) if side == 0 else _pair(None, row) for row in alone]
        return sorted(out, key=repr)


def _pair(left: Row | None, right: Row | None) -> tuple[Any, ...]:
    return tuple(None if row is None else row[name] for row in (left, right) for name in ("k", "payload"))


class Kernel:
    def __init__(
        self, layout: JoinLayout, directory: Path, memory_bytes: int, schema: pa.Schema = INPUT
    ) -> None:
        self.layout, self.directory, self.memory, self.schema = layout, directory, memory_bytes, schema
        self.store = self._new()
        self.runs: dict[int, list[tuple[str, int, int]]] = {}
        self.pending: dict[int, list[tuple[str, int, int]]] = {}
        self.packs = 0

    def _new(self) -> JoinStore:
        return JoinStore(self.layout, 0, BUCKETS, self.memory)

    def take(
        self, sides: tuple[list[Row], list[Row]], before: int, chance: random.Random
    ) -> list[tuple[Any, ...]]:
        batches = []
        for side, rows in enumerate(sides):
            sorter = JoinSorter(self.layout, side, [0], before)
            for i in range(0, len(rows), 7):
                sorter.push(pa.RecordBatch.from_pylist(rows[i : i + 7], schema=self.schema))
                batches += [encoded for _, encoded in sorter.drain()]
        for encoded in batches:
            self.store.apply(encoded)
            if chance.random() < 0.3:
                self.flush()
        self.store.begin_fire(before)
        out: list[tuple[Any, ...]] = []
        while (batch := self.store.next_output()) is not None:
            out += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return sorted(out, key=repr)

    def pack(self) -> str:
        self.packs += 1
        return str(self.directory / f"pack-{self.packs}")

    def flush(self) -> None:
        path = self.pack()
        writer = PackWriter(path)
        flushed = self.store.flush(writer)
        writer.finish()
        for part, offset, length, _ in flushed:
            self.store.add_pending(part, self.layout.open_run(path, offset, length))
            self.pending.setdefault(part, []).append((path, offset, length))

    def commit(self) -> None:
        self.flush()
        self.store.commit()
        for part, runs in self.pending.items():
            self.runs.setdefault(part, []).extend(runs)
        self.pending = {}
        kept = dict(self.store.parts())
        self.runs = {part: runs for part, runs in self.runs.items() if part in kept}

    def abort(self) -> None:
        self.store.abort()
        self.pending = {}

    def restart(self) -> None:
        rows, evicted = dict(self.store.parts()), self.store.evicted_us
        self.store = self._new()
        self.store.restore_evicted(evicted)
        for part, runs in self.runs.items():
            self.store.restore(part, rows[part], [self.layout.open_run(*run) for run in runs])

    def merge(self, part: int, first: int, count: int) -> None:
        path = self.pack()
        writer = PackWriter(path)
        runs = self.store.runs(part)[first : first + count]
        offset, length, _ = self.layout.merge_runs(
            part, runs, writer, (0, BUCKETS), first == 0, self.store.evicted_us
        )
        writer.finish()
        assert self.store.replace(part, first, count, self.layout.open_run(path, offset, length))
        self.runs[part][first : first + count] = [(path, offset, length)]


def random_rows(chance: random.Random, now: int, offset: int, numbers: list[int]) -> list[Row]:
    rows = []
    for _ in range(chance.randrange(0, 40)):
        numbers[0] += 1
        late = chance.choice([None, *[now + chance.randrange(-20, 40)] * 9])
        rows.append(
            {
                "k": chance.choice([None, 1, 1, 2, *range(12)]),
                "late": late,
                "expiry": None if late is None else late - offset,
                "ok": chance.random() < 0.9,
                "payload": chance.choice([None, f"row {numbers[0]}", f"row {numbers[0]}" * 20]),
            }
        )
    return rows


@pytest.mark.parametrize(
    ("outer", "memory_bytes", "once"),
    [
        ((False, False), 0, False),
        ((False, False), 1 << 30, False),
        ((False, False), 3_000, True),
        ((True, False), 3_000, False),
        ((True, False), 1 << 18, False),
        ((False, True), 1 << 30, False),
        ((True, True), 0, False),
        ((True, True), 1 << 30, False),
    ],
    ids=str,
)
def test_pairs_and_rows_alone_are_those_of_the_model(
    outer: tuple[bool, bool], memory_bytes: int, once: bool, tmp_path: Path
) -> None:
    chance = random.Random(f"{outer} {memory_bytes}")
    for offsets, known in itertools.product([(-15, -25), (0, -30), (12, -5)], [True, False]):
        directory = tmp_path / f"{offsets} {known}"
        directory.mkdir()
        layout = layout_of(outer, offsets=offsets if known else None, once=once)
        model, kernel = Model(outer, once=once), Kernel(layout, directory, memory_bytes)
        now, numbers = 0, [0]
        for _ in range(16):
            before = now - 5
            sides = (
                random_rows(chance, now, offsets[0], numbers),
                random_rows(chance, now, offsets[1], numbers),
            )
            if chance.random() < 0.3:
                kernel.take(sides, before, chance)
                if chance.random() < 0.5:
                    kernel.flush()
                kernel.abort()
            assert kernel.take(sides, before, chance) == model.run(sides, before)
            kernel.commit()
            if chance.random() < 0.3:
                kernel.restart()
            for part, runs in list(kernel.runs.items()):
                if len(runs) > 2 and chance.random() < 0.5:
                    first = chance.randrange(0, len(runs) - 1)
                    kernel.merge(part, first, len(runs) - first)
            if chance.random() < 0.5:
                kernel.store.read_ahead()
            now += chance.choice([0, 3, 17])
    assert kernel.store.stats()["memory_bytes"] < max(memory_bytes, 100_000)


def test_parts_whose_time_has_passed_are_gone_without_a_look_at_their_rows(tmp_path: Path) -> None:
    kernel = Kernel(layout_of((False, False)), tmp_path, 0)
    row = {"k": 1, "late": 5, "expiry": 5, "ok": True, "payload": "x"}
    kernel.take(([row], []), 0, random.Random(0))
    kernel.commit()
    assert len(kernel.store.parts()) == 1
    kernel.take(([], []), 10, random.Random(0))
    kernel.commit()
    assert kernel.store.parts() == []
    assert kernel.store.stats()["block_reads"] == 0


def test_a_part_that_the_watermark_cuts_is_read_once(tmp_path: Path) -> None:
    kernel = Kernel(layout_of((True, False), slice_us=100), tmp_path, 40_000)
    chance = random.Random(5)
    rows = [
        {"k": k, "late": 1 + k % 100, "expiry": 1 + k % 100, "ok": True, "payload": None} for k in range(40)
    ]
    kernel.take((rows, []), 0, chance)
    kernel.commit()
    alone, reads = [], []
    for before in range(5, 45, 5):
        late = {"k": 100 + before, "late": before + 2, "expiry": before + 2, "ok": True, "payload": None}
        alone += kernel.take(([late], []), before - 1, chance)
        kernel.commit()
        reads.append(kernel.store.stats()["read_requests"])
    # All of the first rows, and of the others those whose time has come.
    assert sorted(row[0] for row in alone) == [*range(39), *range(105, 140, 5)]
    assert reads[-1] == reads[0] > 0


def test_keys_never_seen_cost_no_read(tmp_path: Path) -> None:
    kernel = Kernel(layout_of((False, False)), tmp_path, 0)
    rows = [{"k": k, "late": 1, "expiry": None, "ok": True, "payload": "x"} for k in range(2_000)]
    kernel.take((rows, []), 0, random.Random(3))
    kernel.commit()
    others = [{"k": k, "late": 1, "expiry": None, "ok": True, "payload": "x"} for k in range(5_000, 7_000)]
    assert kernel.take(([], others), 0, random.Random(3)) == []
    stats = kernel.store.stats()
    assert stats["gets"] < 200
    assert stats["block_reads"] < 200


def test_look_ups_are_counted_where_they_were_answered(tmp_path: Path) -> None:
    """Each key has rows in three runs, which all fit into memory, or none of them does."""
    for memory, answered in ((1 << 20, "memory_hits"), (0, "disk_probes")):
        (tmp_path / answered).mkdir()
        kernel = Kernel(layout_of((False, False)), tmp_path / answered, memory)
        rows = [{"k": k, "late": 1, "expiry": None, "ok": True, "payload": "x"} for k in range(50)]
        for _ in range(3):
            kernel.take((rows, []), 0, random.Random(3))
            kernel.commit()
        assert len(kernel.take(([], rows), 0, random.Random(3))) == 150
        stats = kernel.store.stats()
        assert stats["gets"] == stats[answered] == stats["memory_hits"] + stats["disk_probes"] >= 150


def test_a_wrong_byte_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    kernel = Kernel(layout_of((False, False)), tmp_path, 0)
    row = {"k": 1, "late": 5, "expiry": None, "ok": True, "payload": "x" * 50}
    kernel.take(([row], []), 0, random.Random(0))
    kernel.commit()
    ((path, offset, _),) = next(iter(kernel.runs.values()))
    data = bytearray(Path(path).read_bytes())
    data[offset + 90] ^= 1
    Path(path).write_bytes(data)
    kernel.restart()
    with pytest.raises(DamagedFile, match="pack-"):
        kernel.take(([], [row]), 0, random.Random(0))


def outputs(kernel: Kernel, sides: tuple[list[Row], list[Row]], before: int) -> list[pa.RecordBatch]:
    for side, rows in enumerate(sides):
        sorter = JoinSorter(kernel.layout, side, [0], before)
        sorter.push(pa.RecordBatch.from_pylist(rows, schema=INPUT))
        for _, encoded in sorter.drain():
            kernel.store.apply(encoded)
    kernel.store.begin_fire(before)
    return list(iter(kernel.store.next_output, None))


def test_batches_of_large_rows_are_not_larger_for_it(tmp_path: Path) -> None:
    """A row beside each of its partners may be more than Arrow's offsets can count, and more than there is memory."""
    kernel = Kernel(layout_of((True, False), slice_us=100), tmp_path, 1 << 30)
    large = {"k": 1, "late": 5, "expiry": None, "ok": True, "payload": "x" * 1_000_000}
    partners = [{"k": 1, "late": 5, "expiry": None, "ok": True, "payload": f"{i}"} for i in range(100)]
    pairs = outputs(kernel, ([large], partners), 0)
    assert sorted(int(i) for batch in pairs for i in batch.column(3).to_pylist()) == list(range(100))
    assert max(batch.nbytes for batch in pairs) < 10_000_000
    kernel.commit()
    # Rows without a partner: of the batch itself, from files, and, where the part was read before, from memory.
    alone = [dict(large, k=10 + i, late=40 + i, expiry=40 + i) for i in range(30)]
    assert outputs(kernel, (alone, []), 2) == []
    kernel.commit()
    now = [dict(large, k=100 + i, late=50, expiry=5) for i in range(30)]
    for before, keys in ((40, range(10, 11)), (45, [*range(11, 16), *range(100, 130)]), (100, range(16, 40))):
        given = outputs(kernel, (now if before == 45 else [], []), before)
        assert sorted(k for batch in given for k in batch.column(0).to_pylist()) == list(keys)
        assert max(batch.nbytes for batch in given) < 10_000_000
        kernel.commit()


def test_of_many_kept_rows_as_many_are_in_memory_as_have_room(tmp_path: Path) -> None:
    memory_bytes, expiry = 4 << 20, 100
    kernel, chance = Kernel(layout_of((True, True)), tmp_path, memory_bytes), random.Random(8)

    def rows(name: str, late: int, counts: list[int]) -> list[Row]:
        row = {"late": late, "expiry": expiry, "ok": True}
        return [
            dict(row, k=k, payload=f"{name} {i} ".ljust(800))
            for k in range(1_000)
            for i in range(chance.choice(counts))
        ]

    def of_key(sides: list[list[Row]], k: int) -> list[list[Row]]:
        return [[row for row in side if row["k"] == k] for side in sides]

    old: list[list[Row]] = [[], []]
    for batch in range(3):
        # None has a partner yet.
        sides = (rows(f"left {batch}", 7, [0, 3, 10]), rows(f"right {batch}", 6, [0, 3, 10]))
        assert outputs(kernel, sides, 0) == []
        kernel.commit()
        old = [[*kept, *side] for kept, side in zip(old, sides, strict=True)]
    new = (rows("left", 1, [0, 0, 1]), rows("right", 9, [0, 0, 1]))
    most_bytes, pairs = 0, []
    for side in (0, 1):
        sorter = JoinSorter(kernel.layout, side, [0], 0)
        sorter.push(pa.RecordBatch.from_pylist(new[side], schema=INPUT))
        for _, encoded in sorter.drain():
            kernel.store.apply(encoded)
    kernel.store.begin_fire(0)
    while (given := kernel.store.next_output()) is not None:
        pairs += zip(*(column.to_pylist() for column in given.columns), strict=True)
        most_bytes = max(most_bytes, kernel.store.stats()["memory_bytes"])
    kernel.commit()
    expected, alone = [], []
    for k in range(1_000):
        (old_left, old_right), (left, right) = of_key(old, k), of_key(list(new), k)
        partners = [*itertools.product(left, old_right + right), *itertools.product(old_left, right)]
        expected += [_pair(*pair) for pair in partners]
        has_partner = [row for pair in partners for row in pair]
        alone += [_pair(row, None) for row in old_left + left if row not in has_partner]
        alone += [_pair(None, row) for row in old_right + right if row not in has_partner]
    assert sorted(pairs, key=repr) == sorted(expected, key=repr)
    assert most_bytes < 2 * memory_bytes
    last = (batch.columns for batch in outputs(kernel, ([], []), expiry))
    given_alone = [row for columns in last for row in zip(*(c.to_pylist() for c in columns), strict=True)]
    assert sorted(given_alone, key=repr) == sorted(alone, key=repr)
