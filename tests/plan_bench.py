"""A small auction stream and its batch twin, and a cut plan run over them through the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millpond._kernel import BUCKETS, Combiner, Store
from millpond.semantics.operator import OutputMode
from millpond.spark.plan import CutPlan, cut
from millpond.spark.reshaping import nested, reshaped
from millpond.state.firing import fire
from millpond.state.layout import layout_of

SCHEMA = (
    "auction bigint, bidder bigint, price bigint, ts timestamp, name string, score double, fee decimal(10,2), "
    "paid boolean, items int, blob binary"
)

ROWS = [
    f"({i % 4}L, {i % 5}L, {i * 7 % 23}L, timestamp'2024-01-01 00:00:00' + make_dt_interval(0,0,0,{i * 0.7:.1f}), "
    f"'{'abcdefg'[i % 7]}{i}', {(i * 13 % 17) / 4}D, {i * 3 % 11}.{i % 10}5BD, {str(i % 3 == 0).lower()}, "
    f"{i * 5 % 9}, cast('{i % 3}' as binary))"
    for i in range(60)
] + [
    # Nulls in every column, among them the time: such a row lies in no window.
    "(1L, 2L, null, timestamp'2024-01-01 00:00:05', null, null, null, null, null, null)",
    "(null, null, 5L, timestamp'2024-01-01 00:00:07', 'z', -0.0D, 1BD, true, 3, X'00')",
    "(null, 2L, 6L, null, 'y', double('NaN'), 1BD, false, 3, X'01')",
    "(9L, 9L, null, timestamp'2023-12-31 23:59:59', null, null, null, null, null, null)",
]


class Bids:
    """The same rows as a stream and as a table."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        values = f"values {', '.join(ROWS)} as t({', '.join(c.split()[0] for c in SCHEMA.split(', '))})"
        path = str(directory / "bids")
        names = [field.split(" ")[0] for field in SCHEMA.replace("(10,2)", "").split(", ")]
        spark.sql(f"select * from {values}").toDF(*names).coalesce(1).write.parquet(path)
        self.spark = spark
        self.table = spark.read.schema(SCHEMA).parquet(path)
        self.stream = spark.readStream.schema(SCHEMA).parquet(path)


def delivered(df: DataFrame) -> list[pa.RecordBatch]:
    """The batches that a task of `mapInArrow` gets."""

    def serialized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.record_batch({"ipc": [sink.getvalue().to_pybytes()]})

    streams = [bytes(row.ipc) for row in df.mapInArrow(serialized, "ipc binary").collect()]
    return [batch for stream in streams for batch in pa.ipc.open_stream(stream)]


def read(source: DataFrame) -> list[pa.RecordBatch]:
    """What the carrier query reads."""
    gathered: list[pa.RecordBatch] = []
    query = (
        source.writeStream.foreachBatch(lambda batch, _: gathered.extend(delivered(batch)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return gathered


def emitted_by(plan: CutPlan, i: int, batches: list[pa.RecordBatch]) -> pa.Table:
    """All groups and windows that the rows make in operator `i`, as Spark gets them."""
    spec = plan.operators[i]
    layout = layout_of(spec)
    combiner = Combiner(layout, [0])
    store = Store(layout, 0, BUCKETS, 1 << 24)
    if not spec.keys and spec.time is None:
        store.merge(layout.identity())
    for batch in batches:
        # Spark's optimiser may know that a field inside a value is never null; the operator's schema does not.
        combiner.push(nested(batch, plan.widths(i, 0), spec.input_schema).cast(spec.input_schema))
        for _, encoded in combiner.drain():
            store.merge(encoded)
    rows = reshaped(lambda: fire(store, spec, "append", -(2**62), 2**62), plan.reshapings[i])
    return pa.Table.from_batches(rows, schema=plan.emitted_schema(i))


def run(plan: CutPlan) -> DataFrame:
    """The rows for the sink after all groups were emitted once."""
    session = plan.carrier.source.sparkSession
    batches = read(plan.carrier.source)
    rows: dict[int, Any] = {}
    for i in range(len(plan.operators)):
        for _, frame in plan.inputs(i, rows, session):
            batches = delivered(frame)
        emitted = session.createDataFrame(emitted_by(plan, i, batches), schema=plan.emitted_types[i])
        rows[i] = plan.rows(i, emitted, spread=False)
    return plan.result(rows, session)


def check(bids: Bids, query: Callable[[DataFrame], DataFrame], output_mode: OutputMode = "append") -> CutPlan:
    """Runs the query as a cut stream and as Spark's batch, and compares names, types and rows."""
    plan = cut(query(bids.stream), output_mode)
    got, expected = run(plan), query(bids.table)
    assert [(f.name, f.dataType.simpleString()) for f in got.schema] == [
        (f.name, f.dataType.simpleString()) for f in expected.schema
    ]
    assert_same_rows(got, expected)
    return plan


def assert_same_rows(got: DataFrame, expected: DataFrame) -> None:
    ours, theirs = (sorted(map(_rounded, df.collect()), key=repr) for df in (got, expected))
    assert theirs, "the query gives no rows, so the comparison shows nothing"
    assert ours == theirs, "\n".join(str(row) for row in set(ours) ^ set(theirs))


def _rounded(value: Any) -> Any:
    """Sums of floats depend on the order of the rows in their last digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, tuple | list):
        return tuple(map(_rounded, value))
    return value
