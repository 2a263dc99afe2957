"""Streams as JSON lines that the query parses: results as from columns, and said where there is no such form."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millpond.bench.child import _run_flink
from millpond.bench.digest import last_rows
from millpond.bench.engines import running
from millpond.bench.job import Job
from millpond.bench.papers import Paper
from millpond.workloads.lines import Form
from tests.oracle_run import configured

SHUFFLED = "spark.sql.shuffle.partitions"


def paper(name: str, form: Form) -> Paper:
    # Event time is slow enough for several windows; with large state there are rows that fill it.
    sized = {"q12": "large", "ysb": "small"}[name]
    return Paper(
        query_name=name,
        size=sized,  # type: ignore[arg-type]
        events=4_000,
        batch_events=2_000,
        events_per_second=100,
        keys=500 if name == "q12" else 0,
        input=form,
    )


def result(spark: SparkSession, workload: Paper, engine: str, directory: Path) -> pa.Table:
    workload.prepare(directory / "data")
    job = Job(workload, engine, str(directory / "data"), str(directory / "run"), {SHUFFLED: "2"})
    with running(spark, job, workload) as query:
        query.awaitTermination()
    return last_rows(job.output, workload.key_columns)


@pytest.mark.parametrize(("name", "engine"), [("q12", "millpond"), ("ysb", "spark-memory")])
def test_lines_give_what_columns_give(spark: SparkSession, tmp_path: Path, name: str, engine: str) -> None:
    with configured(spark, spark__sql__shuffle__partitions="2"):
        from_columns, from_lines = (
            result(spark, paper(name, form), engine, tmp_path / form) for form in ("columns", "json")
        )
    assert from_columns.num_rows > 0
    assert from_lines.equals(from_columns)


def test_the_files_hold_one_column_of_lines() -> None:
    workload = paper("q12", "json")
    batches = [*workload.filling(), *workload.inputs(), *paper("ysb", "json").inputs()]
    assert {tuple(rows.column_names) for tables in batches for rows in tables.values()} == {("value",)}
    assert workload.params()["input"] == "json"


def test_flink_reads_no_lines() -> None:
    workload = paper("q12", "json")
    outcome = _run_flink(Job(workload, "flink-rocksdb", "", "", {}), workload)
    assert outcome.error == "not supported: Flink reads columns here, not JSON lines"
