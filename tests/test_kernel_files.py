"""Packs on disk: finished or not there, checked when read, refused when damaged or from the future."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from millpond import _kernel as kernel

LAYOUT = kernel.Layout(
    pa.schema([("k", pa.int64()), ("v", pa.int64())]), 1, [("count", [], None), ("sum_int", [1], None)]
)
Extent = tuple[int, int, int]


def write_pack(path: Path, keys: range) -> Extent:
    combiner = kernel.Combiner(LAYOUT, [0])
    combiner.push(pa.record_batch([pa.array(keys), pa.array(keys)], names=["k", "v"]))
    store = kernel.Store(LAYOUT, 0, kernel.BUCKETS, 1 << 26)
    for _, batch in combiner.drain():
        store.merge(batch)
    writer = kernel.PackWriter(str(path))
    [(_, offset, length, rows)] = store.flush(writer)
    assert writer.finish() == path.stat().st_size
    return offset, length, rows


def read_pack(path: Path, extent: Extent) -> dict[int, int]:
    offset, length, rows = extent
    store = kernel.Store(LAYOUT, 0, kernel.BUCKETS, 1 << 26)
    store.restore(0, rows, [kernel.Run.open(LAYOUT, str(path), offset, length)])
    batches = pa.Table.from_batches(store.scan([0]), LAYOUT.output_schema)
    return dict(zip(batches.column(0).to_pylist(), batches.column(2).to_pylist(), strict=True))


def test_a_pack_gives_back_what_was_written(tmp_path: Path) -> None:
    extent = write_pack(tmp_path / "pack", range(1000))
    assert read_pack(tmp_path / "pack", extent) == {key: key for key in range(1000)}


@pytest.mark.parametrize("at", [0.0, 0.01, 0.3, 0.6, 0.95, 0.999])
def test_a_wrong_byte_names_the_file(tmp_path: Path, at: float) -> None:
    path = tmp_path / "pack"
    extent = write_pack(path, range(1000))
    damaged = bytearray(path.read_bytes())
    damaged[int(at * len(damaged))] ^= 0x10
    path.write_bytes(damaged)
    with pytest.raises(kernel.DamagedFile, match=str(path)):
        read_pack(path, extent)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_a_truncated_pack_names_the_file(tmp_path: Path, share: float) -> None:
    path = tmp_path / "pack"
    extent = write_pack(path, range(1000))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(kernel.DamagedFile, match=str(path)):
        read_pack(path, extent)


def test_a_pack_from_the_future_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    extent = write_pack(path, range(10))
    future = bytearray(path.read_bytes())
    future[8:12] = (kernel.FORMAT_VERSION + 1).to_bytes(4, "little")
    path.write_bytes(future)
    with pytest.raises(kernel.NewerFormat, match=f"version {kernel.FORMAT_VERSION + 1}"):
        read_pack(path, extent)


def test_a_missing_pack_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(kernel.KernelError, match="nowhere"):
        kernel.Run.open(LAYOUT, str(tmp_path / "nowhere"), 12, 200)


def test_a_run_is_not_found_where_none_is(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    offset, length, _ = write_pack(path, range(1000))
    for wrong in [(offset + 1, length), (offset, length - 1), (offset, 10), (2**63, length), (offset, 2**63)]:
        with pytest.raises(kernel.DamagedFile, match=str(path)):
            kernel.Run.open(LAYOUT, str(path), *wrong)


def test_a_run_of_other_aggregates_is_refused(tmp_path: Path) -> None:
    offset, length, _ = write_pack(tmp_path / "pack", range(10))
    other = kernel.Layout(pa.schema([("k", pa.int64())]), 1, [("count", [], None)])
    with pytest.raises(kernel.DamagedFile, match="other keys, aggregates or types"):
        kernel.Run.open(other, str(tmp_path / "pack"), offset, length)


def test_an_empty_pack_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    writer = kernel.PackWriter(str(path))
    assert writer.finish() == 0
    assert not path.exists()
    with pytest.raises(ValueError, match="finished"):
        writer.finish()


def test_a_discarded_pack_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    writer = kernel.PackWriter(str(path))
    writer.discard()
    assert not path.exists()
    with pytest.raises(ValueError, match="discarded"):
        writer.finish()


def test_an_open_run_outlives_a_rewritten_pack(tmp_path: Path) -> None:
    path = tmp_path / "pack"
    offset, length, rows = write_pack(path, range(500))
    run = kernel.Run.open(LAYOUT, str(path), offset, length)
    write_pack(path, range(500, 600))
    store = kernel.Store(LAYOUT, 0, kernel.BUCKETS, 1 << 26)
    store.restore(0, rows, [run])
    assert sum(batch.num_rows for batch in store.scan([0])) == 500
    assert read_pack(path, write_pack(path, range(5))) == {key: key for key in range(5)}
