"""How fast NEXMark's events are made: by the kernel on one core, and as a Spark source beside Parquet files that hold
the same rows, once as Spark writes them and once without compression and dictionaries. Spark's runs take turns and
end in a sink that does nothing with the rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.bench.figures import percentiles, rows_per_s
from millpond.bench.settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GeneratorBench", "run"]

KERNEL, SOURCE = "kernel", "source"
PARQUET, PLAIN_PARQUET = "parquet", "plain-parquet"
_WRITTEN = {
    PARQUET: {"compression": "snappy", "parquet.enable.dictionary": "true"},
    PLAIN_PARQUET: {"compression": "uncompressed", "parquet.enable.dictionary": "false"},
}
"""Spark's defaults, and what is fastest to read."""
_EVENTS_A_CALL = 8_192
_WARM_UPS = 4
"""Until Spark's JVM has compiled what is hot, each run takes less time than the one before."""


class GeneratorBench(msgspec.Struct, frozen=True, kw_only=True):
    """Every measurement makes or reads all events, `repeat` times after some that warm up."""

    events: int = 4_000_000
    repeat: int = 5


def run(bench: GeneratorBench, say: Callable[[str], None]) -> dict[str, Any]:
    """The entry of a report. Engines: `kernel` on one core, the others in Spark on all of them."""
    say(f"kernel: {bench.events:,} events on one core, {bench.repeat} times")
    engines = {KERNEL: _figures(bench, _kernel_times(bench), cores=1)}
    cores = len(os.sched_getaffinity(0))
    settings = session_settings(cores)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as directory, _session(settings) as spark:
        say(f"Spark: {bench.events:,} events as a source and from Parquet, {bench.repeat} times in turn")
        times, equal = _spark_times(spark, bench, Path(directory), cores)
    for name, taken in times.items():
        engines[name] = _figures(bench, taken, cores=cores)
    return {
        "workload": "generator",
        "params": msgspec.to_builtins(bench) | {"settings": settings},
        "engines": engines,
        "results_equal": equal,
        "source_to_parquet": _ratio(engines, PARQUET),
        "source_to_plain_parquet": _ratio(engines, PLAIN_PARQUET),
    }


def _ratio(engines: dict[str, Any], other: str) -> float:
    ratio: float = engines[SOURCE]["rows_per_s"] / engines[other]["rows_per_s"]
    return round(ratio, 3)


def _figures(bench: GeneratorBench, times_s: list[float], *, cores: int) -> dict[str, Any]:
    """The rate is that of the middle run; the spread shows in the times."""
    times_ms = [taken * 1_000 for taken in times_s]
    return {
        "rows_per_s": rows_per_s(bench.events, statistics.median(times_ms)),
        "run_ms": percentiles(times_ms),
        "cores": cores,
    }


def _kernel_times(bench: GeneratorBench) -> list[float]:
    """Whole batches with all columns. This thread stays on one core while it makes them."""
    from millpond._kernel import Nexmark

    generator = Nexmark()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        return [_kernel_run(generator, bench.events) for _ in range(bench.repeat + 1)][1:]
    finally:
        os.sched_setaffinity(0, allowed)


def _kernel_run(generator: Any, events: int) -> float:
    started = time.perf_counter()
    for first in range(0, events, _EVENTS_A_CALL):
        generator.batch(first, min(_EVENTS_A_CALL, events - first))
    return time.perf_counter() - started


def _spark_times(
    spark: SparkSession, bench: GeneratorBench, directory: Path, cores: int
) -> tuple[dict[str, list[float]], bool]:
    """Times in seconds by engine, and whether all gave the same rows."""
    import millpond as mp

    mp.register(spark)
    source = (
        spark.read.format("nexmark").option("totalEvents", bench.events).option("partitions", cores).load()
    )
    frames = {SOURCE: source}
    for name, options in _WRITTEN.items():
        files = str(directory / name)
        source.write.options(**options).parquet(files)
        frames[name] = spark.read.parquet(files)
    equal = len({_digest(frame) for frame in frames.values()}) == 1
    times: dict[str, list[float]] = {name: [] for name in frames}
    for _ in range(_WARM_UPS + bench.repeat):
        for name, frame in frames.items():
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            times[name].append(time.perf_counter() - started)
    return {name: taken[_WARM_UPS:] for name, taken in times.items()}, equal


def _digest(frame: DataFrame) -> tuple[Any, ...]:
    from pyspark.sql import functions as F

    found = frame.agg(F.count("*"), F.bit_xor(F.xxhash64(*frame.columns))).first()
    return () if found is None else tuple(found)


@contextmanager
def _session(settings: dict[str, str]) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("millpond bench generator").config("spark.log.level", "ERROR")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
