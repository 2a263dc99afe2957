"""A join's shard as the service uses it: what a manifest says of it brings it back, with what has been let go."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millpond._kernel import BUCKETS, PackWriter
from millpond.semantics.compare import differences
from millpond.semantics.operator import Column, JoinSide, JoinSpec, JoinTime
from millpond.state.joined import JoinShard
from millpond.state.opening import open_shard, sorter_of
from millpond.state.shard import Place

_INPUT = pa.schema([("k", pa.int64()), ("time", pa.int64()), ("expiry", pa.int64())])
_OUTPUT = pa.schema([("lk", pa.int64()), ("lt", pa.int64()), ("rk", pa.int64()), ("rt", pa.int64())])
Rows = list[tuple[int, int]]


def spec(condition: str = "lk = rk") -> JoinSpec:
    """A left outer join whose rows are forgotten ten microseconds after the watermark has reached them."""
    left, right = (
        JoinSide(
            input_ipc=_INPUT.serialize().to_pybytes(),
            key_columns=(0,),
            matchable=None,
            late=1,
            expiry=2,
            comparands=(),
            times=(),
            expires_after_us=0,
            kept_columns=(0, 1),
            kept=(Column("k", "bigint"), Column("time", "bigint")),
            outer=outer,
            once=False,
            null_keys=False,
        )
        for outer in (True, False)
    )
    return JoinSpec(
        name="join-0",
        keys=(Column("k", "bigint"),),
        time=JoinTime((-10, -10), 100),
        input_ipc=left.input_ipc,
        output_ipc=_OUTPUT.serialize().to_pybytes(),
        join="left outer",
        sides=(left, right),
        comparisons=(),
        condition=condition,
    )


def shard() -> JoinShard:
    opened = open_shard(Place(0, 0, 0, BUCKETS, 1 << 20), spec())
    assert isinstance(opened, JoinShard)
    return opened


def take(store: JoinShard, left: Rows, right: Rows, before: int) -> list[tuple[int | None, ...]]:
    for side, rows in enumerate((left, right)):
        sorter, _ = sorter_of(spec(), side, (0,), before, None)
        columns = [[k for k, _ in rows], [t for _, t in rows], [t + 10 for _, t in rows]]
        arrays = [pa.array(column, pa.int64()) for column in columns]
        sorter.push(pa.RecordBatch.from_arrays(arrays, schema=_INPUT))
        for _, encoded in sorter.drain():
            store.apply(encoded)
    out: list[tuple[int | None, ...]] = []
    for batch in store.fire("append", before, before):
        out += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(out, key=repr)


def save(store: JoinShard, path: Path) -> None:
    writer = PackWriter(str(path))
    flushed = store.flush(writer)
    writer.finish()
    store.add_pending(flushed, path.name, str(path))


def test_a_shard_comes_back_from_its_manifest_without_rows_that_were_let_go(tmp_path: Path) -> None:
    first = shard()
    assert take(first, [(1, 5), (2, 6), (3, 30)], [(2, 7)], 0) == [(2, 6, 2, 7)]
    save(first, tmp_path / "p0")
    first.commit()
    # The watermark cuts the one part of the left side: row 1 is let go, row 3 stays.
    assert take(first, [], [], 20) == [(1, 5, None, None)]
    state = first.version()
    second = shard()
    second.restore(state, {"p0": str(tmp_path / "p0")})
    assert take(second, [], [(1, 25), (3, 26)], 22) == [(3, 30, 3, 26)]
    save(second, tmp_path / "p1")
    second.commit()
    assert take(second, [], [], 50) == []


def test_another_condition_or_kind_of_join_is_named() -> None:
    assert differences([spec()], [spec("lk = rk AND lv < rv")]) == [
        "operator join-0: the join's condition was lk = rk, is lk = rk AND lv < rv"
    ]
