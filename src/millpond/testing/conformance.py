"""What every store has to keep to, whatever it is for: checks that are run with one store and something for it to do.

```python
case = StateCase(spec, batches, open=lambda place, spec: MyShard(place, spec))

@pytest.mark.parametrize("check", STATE_CHECKS)
def test_my_store(check, tmp_path):
    check(case, tmp_path)
```

What is right is what the store itself gives when nothing happens to it: one shard, much memory, each batch committed
at the first try. The checks ask that it gives the same, batch by batch, whatever happens. That this is what the
operator should give is for tests of the store to show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond._kernel import DamagedFile, NewerFormat
from millpond.errors import CorruptState
from millpond.policy.compaction import Limits
from millpond.testing.state import Row, StateCase, StateRun

__all__ = ["STATE_CHECKS", "StateCheck", "check_state_conformance", "undisturbed"]

StateCheck = Callable[[StateCase, Path], None]

_TIGHT = Limits(max_space_amplification=1.05, max_runs=2, small_bytes=0)

_LITTLE_BYTES = 48 << 10


def check_state_conformance(case: StateCase, directory: Path) -> None:
    """All checks, each in a directory of its own; an AssertionError says which one failed."""
    for check in STATE_CHECKS:
        check(case, directory / check.__name__)


def undisturbed(case: StateCase, directory: Path) -> list[list[Row]]:
    """The outputs of each batch when nothing happens."""
    run = StateRun(case, directory / "undisturbed")
    outputs = [run.run(batch) for batch in case.batches]
    assert any(outputs), "the batches give nothing out, so that they show nothing"
    return outputs


def check_reopens_with_what_was_committed(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run")
    for batch, outputs in zip(case.batches, expected, strict=True):
        assert run.run(batch) == outputs
        rows = run.figures()["rows"]
        run.kill()
        assert run.figures()["rows"] == rows, "not all rows came back"


def check_abort_leaves_the_state_as_it_was(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run")
    for number, (batch, outputs) in enumerate(zip(case.batches, expected, strict=True)):
        before = [store.version() for store in run.stores]
        for stage in ("sealed", "flushed", "saved")[: 1 + number % 3]:
            assert run.seal(batch) == outputs, "a batch that is tried again has to give the same"
            if stage == "flushed":
                run.flush()
            elif stage == "saved":
                run.save()
            run.abort()
            assert [store.version() for store in run.stores] == before
        assert run.run(batch) == outputs


def check_a_kill_before_the_commit_undoes_the_batch(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run")
    for number, (batch, outputs) in enumerate(zip(case.batches, expected, strict=True)):
        assert run.seal(batch, flush_after_bytes=0 if number % 2 else None) == outputs
        if number % 3:
            run.save()
        run.kill()
        assert run.run(batch) == outputs


def check_files_that_are_not_named_may_go(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run")
    for number, (batch, outputs) in enumerate(zip(case.batches, expected, strict=True)):
        assert run.seal(batch, flush_after_bytes=0) == outputs
        run.save()
        run.commit()
        run.collect()
        if number % 2:
            run.kill()


def check_merging_runs_changes_nothing(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run")
    for number, (batch, outputs) in enumerate(zip(case.batches, expected, strict=True)):
        assert run.run(batch) == outputs
        run.collect()
        run.compact(_TIGHT)
        run.read_ahead()
        if number % 3 == 2:
            run.kill()


def check_little_memory_is_kept_to(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run", memory_bytes=_LITTLE_BYTES)
    allowed = 2 * _LITTLE_BYTES + case.table_bytes
    for batch, outputs in zip(case.batches, expected, strict=True):
        assert run.seal(batch, flush_after_bytes=_LITTLE_BYTES // 4) == outputs
        run.save()
        assert run.most_bytes <= allowed, f"{run.most_bytes} bytes in memory after a flush, not {allowed}"
        run.commit()
        run.read_ahead()
        used = run.figures()["memory_bytes"]
        assert used <= allowed, f"{used} bytes in memory in place of {allowed}"


def check_a_damaged_file_is_named(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    half = len(case.batches) // 2
    named = 0
    for part in range(1, 8):
        run = StateRun(case, directory / f"run-{part}", memory_bytes=_LITTLE_BYTES)
        for batch in case.batches[:half]:
            run.run(batch)
        files = run.files()
        for file in files:
            data = bytearray(file.read_bytes())
            data[len(data) * part // 8] ^= 0x55
            file.write_bytes(data)
        try:
            run.kill()
            for batch, outputs in zip(case.batches[half:], expected[half:], strict=True):
                assert run.run(batch) == outputs, "damage that nobody noticed changed the result"
        except (CorruptState, DamagedFile, NewerFormat) as error:
            assert any(file.name in str(error) for file in files), f"no file is named: {error}"
            named += 1
    assert named, "no damage was noticed"


def check_shards_share_the_keys(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run", shards=3)
    for batch, outputs in zip(case.batches, expected, strict=True):
        assert run.run(batch) == outputs
    used = [store for store in run.stores if store.stats()["rows"] or store.committed_runs()]
    assert len(used) != 1 or not case.spec.keys, "all keys went to one shard"


def check_outputs_do_not_depend_on_when_it_is_flushed(case: StateCase, directory: Path) -> None:
    expected = undisturbed(case, directory)
    run = StateRun(case, directory / "run", shards=2)
    for batch, outputs in zip(case.batches, expected, strict=True):
        assert run.seal(batch, flush_after_bytes=0) == outputs
        run.flush()
        run.save()
        run.commit()


STATE_CHECKS: tuple[StateCheck, ...] = (
    check_reopens_with_what_was_committed,
    check_abort_leaves_the_state_as_it_was,
    check_a_kill_before_the_commit_undoes_the_batch,
    check_files_that_are_not_named_may_go,
    check_merging_runs_changes_nothing,
    check_little_memory_is_kept_to,
    check_a_damaged_file_is_named,
    check_shards_share_the_keys,
    check_outputs_do_not_depend_on_when_it_is_flushed,
)
