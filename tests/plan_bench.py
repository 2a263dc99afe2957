"""A small auction stream and its batch twin, and a cut plan run over them with the operators in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millpond.semantics.operator import OutputMode
from millpond.spark.plan import CutPlan, cut
from tests.reference_operator import emit

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


def rows_read(source: DataFrame) -> pa.Table:
    """What the carrier query reads in one batch."""
    gathered: list[pa.Table] = []
    query = (
        source.writeStream.foreachBatch(lambda batch, _: gathered.append(batch.toArrow()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return pa.concat_tables(gathered)


def run(plan: CutPlan) -> DataFrame:
    """The rows for the sink after all groups were emitted once."""
    rows = rows_read(plan.source)
    for i, spec in enumerate(plan.operators):
        assert rows.schema.types == spec.input_schema.types
        session = plan.source.sparkSession
        plain = [list(row.values()) for row in rows.to_pylist()]
        emitted = session.createDataFrame(emit(spec, plain), schema=plan.emitted_types[i])
        result = plan.above(i, emitted)
        rows = result.toArrow() if i + 1 < len(plan.operators) else rows
    return result


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
    assert ours == theirs


def _rounded(value: Any) -> Any:
    """Sums of floats depend on the order of the rows in their last digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, tuple | list):
        return tuple(map(_rounded, value))
    return value
