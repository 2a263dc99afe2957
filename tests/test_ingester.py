"""Which way a batch's rows take to the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import millpond as mp
from millpond.spark.ingester import Ingester
from millpond.spark.jvm import scala_object
from millpond.spark.precombine import Precombiner
from tests.streams import read_stream, write_batches

ENDS = [5, 10, 15, 515, 520]
"""Where batches end: one is a hundred times as large as those around it, and the source does not say so."""


class Bursts(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bursts"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return BurstsReader()


class BurstsReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"end": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"end": next((end for end in ENDS if end > start["end"]), ENDS[-1])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["end"], end["end"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        first, end = partition.value
        return iter([(number,) for number in range(first, end)])


def test_a_burst_does_not_go_through_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went: list[bool] = []
    through_driver = Ingester._through_driver

    def noted(self: Ingester, *arguments: Any) -> Any:
        found = through_driver(self, *arguments)
        went.append(found is not None)
        return found

    monkeypatch.setattr(Ingester, "_through_driver", noted)
    spark.dataSource.register(Bursts)
    counts: list[int] = []
    query = (
        mp.stream(spark.readStream.format("bursts").load())
        .selectExpr("n % 1 AS k")
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .option("millpond.ingest.localRows", "20")
        .foreachBatch(lambda rows, _: counts.extend(row["count"] for row in rows.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
        while counts[-1] < ENDS[-1]:
            query.processAllAvailable()
    finally:
        query.stop()
    assert counts == ENDS
    # The first batch has none before it to be judged by; after the burst the next one takes the tasks' way.
    assert went == [True, True, False]


def test_spark_makes_no_new_code_for_later_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new is compiled, and interpreted until it has run for long: most of what a small batch takes."""
    combined: list[int] = []
    combine = Precombiner.combined

    def noted(self: Precombiner, frame: Any) -> Any:
        combined.append(len(compiled))
        return combine(self, frame)

    monkeypatch.setattr(Precombiner, "combined", noted)
    numbers = pa.table({"n": pa.array(range(25_000), pa.int64())})
    write_batches(tmp_path / "in", [numbers] * 5)
    metrics = scala_object(spark._jvm, "org.apache.spark.metrics.source.CodegenMetrics")
    compiled: list[int] = []

    def sink(rows: Any, _: int) -> None:
        assert {row["count"] for row in rows.collect()} == {1_000 * (len(compiled) + 1)}
        compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())

    query = (
        mp.stream(read_stream(spark, tmp_path / "in", "n long"))
        .selectExpr("n % 25 AS k")
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(sink)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert combined == [1, 2, 3, 4]
    assert compiled[2:] == [compiled[1]] * 3
