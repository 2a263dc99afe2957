"""Which of the papers' queries Millpond takes, found by letting it cut their plans."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millpond.errors import InvalidQuery
from millpond.workloads.queries.query import PaperQuery, Windows
from millpond.workloads.scales import stream_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["refusal"]


def refusal(queries: Mapping[str, PaperQuery]) -> dict[str, str | None]:
    """Why Millpond refuses each query; None where it takes it."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").appName("millpond bench list")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        return {name: _refusal(spark, query) for name, query in queries.items()}
    finally:
        spark.stop()


def _refusal(spark: SparkSession, query: PaperQuery) -> str | None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from millpond.spark.frame import stream
    from millpond.spark.plan import cut

    frames = {}
    for name in query.streams:
        schema = from_arrow_schema(stream_schema(name))
        rows = spark.readStream.format("rate").load()
        columns = [f"cast(null as {field.dataType.simpleString()}) as `{field.name}`" for field in schema]
        frames[name] = stream(rows.selectExpr(*columns))
    tables = {name: spark.createDataFrame(make(1)) for name, make in query.tables.items()}
    form = query.own or query.plain
    try:
        cut(form({**frames, **tables}, Windows()).unwrapped, query.mode)
    except InvalidQuery as error:
        return str(error)
    return None
