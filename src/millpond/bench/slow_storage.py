"""Checkpoint and state storage that is further away than the disk it lies on: a delay for each request.

Spark and everything else that goes through Hadoop's file systems pays in one of the benchmark's own, a few lines of
Java that are compiled when they are wanted. Millpond pays in its storage interface and for blocks that its kernel
reads. What an engine keeps on local disk by design, such as the files of Spark's RocksDB, costs nothing extra.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millpond.bench.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LATENCIES_MS", "SCHEME", "JdkMissing", "StateLatency", "Waits", "compiled", "slow_settings"]

StateLatency = Literal["hdfs", "object-store"]
LATENCIES_MS: dict[StateLatency, float] = {"hdfs": 1.5, "object-store": 23.0}
"""A read from HDFS in the same rack, and one from an object store in the same region."""
SCHEME = "delayed"
JAVA_SOURCES = Path(__file__).parent / "java"
ERROR_LINES = 8


class JdkMissing(Exception):
    """The file system can't be compiled here. The message says what to do."""


def compiled(directory: Path) -> Path:
    """A class path with the delaying file system on it. Raises JdkMissing."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "javac")) if home else "javac"
    javac = shutil.which(found)
    if javac is None:
        raise JdkMissing(
            f"storage with latency needs a file system that is compiled with javac, and there is no {found}: "
            "install a JDK, version 17 or newer, or leave out --state-latency"
        )
    jars = os.pathsep.join(
        str(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    )
    sources = [str(path) for path in sorted(JAVA_SOURCES.rglob("*.java"))]
    done = subprocess.run(
        [javac, "-nowarn", "-d", str(directory), "-cp", jars, *sources],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-ERROR_LINES:])
        raise JdkMissing(
            f"the file system for --state-latency does not compile; javac should be 17 or newer:\n{tail}"
        )
    return directory


def slow_settings(latency_ms: float, classes: Path) -> dict[str, str]:
    """Settings of a session whose `delayed:` paths wait; the same for all engines of Spark's and for Millpond."""
    return {
        "spark.driver.extraClassPath": str(classes),
        f"spark.hadoop.fs.{SCHEME}.impl": "millpond.bench.DelayedFileSystem",
        f"spark.hadoop.fs.AbstractFileSystem.{SCHEME}.impl": "millpond.bench.DelayedFiles",
        f"spark.hadoop.fs.{SCHEME}.latency.micros": str(round(latency_ms * 1_000)),
        "spark.millpond.storage.latencyMs": str(latency_ms),
    }


class Waits:
    """What the JVM's threads waited for requests to `delayed:` paths, noted after each batch's sink. What a batch
    waits for afterwards, to be committed, counts with the next one."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._spark = spark
        self._slow = job.state_latency_ms > 0
        self._before_ns = self._waited_ns() if self._slow else 0
        self._after_ns: dict[int, int] = {}

    def _waited_ns(self) -> int:
        return int(self._spark._jvm.millpond.bench.DelayedFileSystem.waitedNanos())

    def note(self, batch_id: int) -> None:
        if self._slow:
            self._after_ns[batch_id] = self._waited_ns() - self._before_ns

    def of(self, progress: Sequence[Any]) -> list[int | None]:
        """Nanoseconds since the first batch began, for each batch; None where storage is not slow."""
        return [self._after_ns[report.batchId] if self._slow else None for report in progress]
