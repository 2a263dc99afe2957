"""What the tests share: a Spark session per module, small and quiet."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sampling import covering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark starts its workers with this Python, not with whatever python3 is on the path.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

LONGEST_FIRST = (
    "test_kill",
    "test_bench_live",
    "test_bench_runner",
    "test_bench_tws",
    "test_bench_generator",
)
"""Files with long tests; at the end of a run they would leave one worker waiting for the other."""


FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's default for local files starts a process, `readlink`, several times for each file of a checkpoint."""

ALL_CASES = os.environ.get("MILLPOND_TESTS") == "all"
"""Whether every case runs of tests that are marked with `sample`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    if not ALL_CASES and all("[" not in argument for argument in config.args):
        left_out = [item for cases in _by_function(items).values() for item in _beyond_sample(cases)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _by_function(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return functions


def _beyond_sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Of a test marked with `sample(n)`, all cases but n, or a few more where n do not show every kind there is."""
    marker = cases[0].get_closest_marker("sample")
    if marker is None:
        return []
    (size,) = marker.args
    values = [_values(case) for case in cases]
    kept = covering(values, size, seed=zlib.crc32(cases[0].nodeid.partition("[")[0].encode()))
    return [case for place, case in enumerate(cases) if place not in kept]


def _values(case: pytest.Item) -> set[tuple[str, str]]:
    callspec: Any = getattr(case, "callspec", None)
    return {(name, repr(value)) for name, value in callspec.params.items()} if callspec else set()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, two shuffle partitions, no UI. The session ends with its module; the JVM serves them all."""
    from pyspark.sql import SparkSession

    scratch: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("millpond-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
