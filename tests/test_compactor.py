"""Work beside the batches: merges are handed over one by one, and reading ahead does not wait for them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from millpond._kernel import PackWriter
from millpond.service.compactor import Compacted, Compaction, Compactor
from millpond.storage.manifest import RunRef

PATIENCE_S = 30


def merge_when(event: threading.Event) -> Callable[[PackWriter], tuple[int, int, int]]:
    def merge(writer: PackWriter) -> tuple[int, int, int]:
        assert event.wait(PATIENCE_S)
        return (*writer.append(b"rows"), 1)

    return merge


def compaction(pack: str, merge: Callable[[PackWriter], tuple[int, int, int]]) -> Compaction:
    return Compaction(Mock(), 0, (RunRef(pack, 0, 10, 1),), merge, 0)


@pytest.fixture
def compactor(tmp_path: Path) -> Compactor:
    numbers = itertools.count()
    return Compactor(lambda: tmp_path / str(next(numbers)), lambda path: (path.name, str(path)))


def collected(compactor: Compactor) -> list[Compacted]:
    """The next that are done."""
    turn = threading.Event()
    for _ in range(100 * PATIENCE_S):
        if done := compactor.collect():
            return done
        turn.wait(0.01)
    raise AssertionError("no merge was done")


def test_a_merge_is_handed_over_while_the_next_one_runs(compactor: Compactor) -> None:
    now, later = threading.Event(), threading.Event()
    first, second = compaction("a", merge_when(now)), compaction("b", merge_when(later))
    compactor.start([first, second])
    now.set()
    assert [done.spec for done in collected(compactor)] == [first]
    assert compactor.inputs == frozenset(second.inputs)
    later.set()
    compactor.wait()
    assert [done.spec for done in compactor.collect()] == [second]
    assert compactor.inputs == frozenset()


def test_reading_ahead_does_not_wait_for_a_merge(compactor: Compactor) -> None:
    end, read = threading.Event(), threading.Event()
    compactor.start([compaction("a", merge_when(end))])
    compactor.read_ahead([read.set])
    assert read.wait(PATIENCE_S)
    assert compactor.collect() == []
    end.set()
    compactor.stop()


def test_what_the_last_batch_made_readable_is_read_before_what_earlier_ones_did(compactor: Compactor) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    read: list[str] = []

    def first() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    compactor.read_ahead([first, lambda: read.append("old")])
    assert begun.wait(PATIENCE_S)
    compactor.read_ahead([lambda: read.append("new"), done.set])
    go_on.set()
    assert done.wait(PATIENCE_S)
    assert read == ["new"]


def test_a_merge_that_fails_is_told_once_and_others_go_on(compactor: Compactor) -> None:
    def fail(_: PackWriter) -> tuple[int, int, int]:
        raise OSError("no space left")

    compactor.start([compaction("a", fail)])
    compactor.wait()
    with pytest.raises(OSError, match="no space"):
        compactor.collect()
    assert compactor.inputs == frozenset()
    ready = threading.Event()
    ready.set()
    compactor.start([compaction("b", merge_when(ready))])
    compactor.wait()
    assert len(compactor.collect()) == 1
