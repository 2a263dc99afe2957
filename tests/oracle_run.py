"""Runs one streaming query twice, in Millpond and in Spark's own state store, and compares batch by batch."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.frame import StreamFrame
from millpond.spark.plan import cut
from millpond.spark.precombine import PrecombineSwitch
from tests.oracle_data import Columns, Shape, schema_of, tables
from tests.sampling import FUZZ_SEED
from tests.streams import read_stream, write_batches

Rows = list[Any]
FEW_ROWS = {
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__shuffle__partitions": "1",
}
"""For so few rows, compiling a query costs more than running it, and so does a second partition."""
_numbers = itertools.count()
_runs = itertools.count()


def try_shapes(strategy: st.SearchStrategy[Shape], test: Callable[[Shape], None], name: str) -> None:
    """Calls the test with one random shape, always the same for the name; with MILLPOND_ORACLE_EXAMPLES=20 in the
    environment with twenty, which differ from run to run, unless MILLPOND_FUZZ_SEED says which."""
    wanted = int(os.environ.get("MILLPOND_ORACLE_EXAMPLES", "1"))
    # Shrinking a failure takes many runs, which is for whoever asked for many.
    phases = [Phase.generate] if wanted == 1 else [Phase.generate, Phase.shrink]
    failed = False

    @settings(
        max_examples=wanted,
        phases=phases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def attempt(shape: Shape) -> None:
        nonlocal failed
        # Hypothesis begins with the smallest shape, which shows little. It may return to it to shrink a failure.
        assume(failed or sum(shape.rows) >= 100)
        try:
            test(shape)
        except BaseException:
            failed = True
            raise

    is_fixed = wanted == 1 or FUZZ_SEED
    (seed(zlib.crc32(f"{name}{FUZZ_SEED}".encode()))(attempt) if is_fixed else attempt)()


@contextlib.contextmanager
def configured(spark: SparkSession, **values: str) -> Iterator[None]:
    """Session settings for a while; `__` in a name stands for a dot."""
    names = {name.replace("__", "."): value for name, value in values.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def own_directory(scratch: Path) -> Path:
    """For one of the shapes that a test is given: each has a checkpoint of its own."""
    directory = scratch / f"shape-{next(_numbers)}"
    directory.mkdir()
    return directory


def stream(spark: SparkSession, shape: Shape, columns: Columns, scratch: Path) -> DataFrame:
    """The rows that the shape stands for, one file a batch."""
    directory = scratch / f"rows-{next(_numbers)}"
    write_batches(directory, tables(shape, columns))
    return read_stream(spark, directory, schema_of(columns))


def named(functions: Iterable[str]) -> list[Column]:
    """SQL expressions as columns that are called as they are written."""
    return [F.expr(f"{function} as `{function}`") for function in functions]


class Outputs:
    """What a query gave to its sink, by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}
        self.schema: list[tuple[str, str]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.schema = [(field.name, field.dataType.simpleString()) for field in frame.schema]
        self.batches[batch_id] = sorted((_plain(tuple(row)) for row in frame.collect()), key=repr)

    def total(self) -> Rows:
        return sorted(itertools.chain(*self.batches.values()), key=repr)


def run_both(
    spark: SparkSession,
    frame: DataFrame,
    mode: OutputMode,
    scratch: Path,
    *,
    own: StreamFrame | None = None,
    **options: str,
) -> tuple[Outputs, Outputs]:
    """Millpond's outputs and Spark's; both read all there is, at the same time. `own`: what Millpond runs, where that
    is written in another way."""
    ours, theirs = Outputs(), Outputs()
    number = next(_numbers)
    if next(_runs) % 2:
        # So few rows would all go through the driver; here tasks bring and fetch them.
        options = {"millpond.ingest.localRows": "0", "millpond.emit.localRows": "0"} | options
    single = {"spark__sql__streaming__statefulOperator__allowMultiple": "false"}
    # Spark fires windows in the batch after the one that closed them, which may be one without rows.
    extra = {"spark__sql__streaming__noDataMicroBatches__enabled": str(mode == "append").lower()}
    with configured(spark, **extra, **FEW_ROWS, **({} if _operators(frame) > 1 else single)):
        oracle = (
            frame.writeStream.outputMode(mode)
            .foreachBatch(theirs)
            .option("checkpointLocation", str(scratch / f"spark-{number}"))
            .trigger(availableNow=True)
            .start()
        )
    try:
        # Batches reach the state in turn as rows and as what Spark combined of them.
        with mock.patch.object(PrecombineSwitch, "note", _in_turn):
            query = (
                mp.stream(frame if own is None else own)
                .writeStream.outputMode(mode)
                .foreachBatch(ours)
                .option("checkpointLocation", str(scratch / f"millpond-{number}"))
                .options(**options)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        oracle.awaitTermination()
    finally:
        oracle.stop()
    return ours, theirs


def _in_turn(switch: PrecombineSwitch, _input_rows: int, _staged_rows: int) -> None:
    switch.on = not switch.on


def check(
    spark: SparkSession,
    frame: DataFrame,
    mode: OutputMode,
    scratch: Path,
    *,
    own: StreamFrame | None = None,
    **options: str,
) -> Outputs:
    """Fails where the outputs differ; returns them."""
    ours, theirs = run_both(spark, frame, mode, scratch, own=own, **options)
    assert ours.schema == theirs.schema
    assert theirs.total(), "the query gives no rows, so the comparison shows nothing"
    expected = theirs.batches
    if mode == "append" and _operators(frame) == 1:
        if not cut(frame, mode).defers:
            # A window that batch N closes is in Spark's batch N + 1.
            expected = {batch - 1: rows for batch, rows in theirs.batches.items()}
    elif mode == "append":
        assert_same(ours.total(), theirs.total(), ours.schema, "all batches")
        return ours
    for batch in sorted({*ours.batches, *expected}):
        assert_same(ours.batches.get(batch, []), expected.get(batch, []), ours.schema, f"batch {batch}")
    return ours


def _operators(frame: DataFrame) -> int:
    plan = str(frame._jdf.queryExecution().analyzed())
    return plan.count("Aggregate [") + plan.count("Deduplicate")


def assert_refused(
    spark: SparkSession, scratch: Path, mode: str, message: str, query: Callable[[StreamFrame], Any]
) -> None:
    """The query, of a stream with the columns ts, g and v, does not start."""
    rows = spark.readStream.format("rate").load()
    frame = mp.stream(rows.selectExpr("timestamp as ts", "value % 3 as g", "value as v"))
    with pytest.raises(InvalidQuery, match=message):
        query(frame).writeStream.outputMode(mode).format("noop").option(
            "checkpointLocation", str(scratch / "c")
        ).start()


def assert_same(ours: Rows, theirs: Rows, schema: list[tuple[str, str]], place: str) -> None:
    if len(ours) == len(theirs) and not any(
        _differences(a, b, schema) for a, b in zip(ours, theirs, strict=True)
    ):
        return
    lines = [f"{place}: {len(ours)} rows, Spark has {len(theirs)}"]
    for mine, its in itertools.zip_longest(ours, theirs):
        found = _differences(mine, its, schema)
        if found and len(lines) < 30:
            lines += [*found, f"    in {mine if mine is not None else its}"[:600]]
    raise AssertionError("\n".join(lines))


def _differences(mine: Any, its: Any, schema: list[tuple[str, str]]) -> list[str]:
    if mine is None or its is None:
        return ["  Spark has one more row" if mine is None else "  Spark does not have this row"]
    return [
        f"  {name} {kind}: {a!r}, Spark has {b!r}"
        for (name, kind), a, b in zip(schema, mine, its, strict=True)
        if repr(a) != repr(b) and not (_INEXACT.match(name) and _close(a, b))
    ]


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


_INEXACT = re.compile(r"std|var")
"""Results that depend on the order of the rows in their last digits."""


def _plain(value: Any) -> Any:
    """Comparable by `repr`: rows, lists and maps as tuples."""
    match value:
        case tuple() | list():
            return tuple(map(_plain, value))
        case dict():
            return ("map", *sorted(((_plain(k), _plain(v)) for k, v in value.items()), key=repr))
        case bytearray():
            return bytes(value)
    return value
