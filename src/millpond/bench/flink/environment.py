"""Flink's own Python environment: made on first use in the user's cache, once per version of Flink.

It is built in a directory beside its place and renamed, under a lock, so that it is there as a whole or not at
all. The Java classes that the benchmark adds to Flink are compiled into it, once per content of their sources.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

__all__ = ["FLINK_VERSION", "Environment", "FlinkUnavailable", "ensure"]

FLINK_VERSION = "2.3.0"
PARQUET_JAR = f"org.apache.flink:flink-sql-parquet:{FLINK_VERSION}"
HADOOP_JARS = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar")
"""Flink's Parquet format needs Hadoop's classes; PySpark brings them."""
JAVA_SOURCES = Path(__file__).parent / "java"
SERVICES = {
    "org.apache.flink.table.factories.Factory": (
        "millpond.OrderedFilesFactory",
        "millpond.ChangelogParquetFactory",
    ),
    "org.apache.flink.metrics.reporter.MetricReporterFactory": ("millpond.SourceProgress$Factory",),
}
ERROR_LINES = 8


class FlinkUnavailable(Exception):
    """Flink's environment can't be made here. The message says what is missing and what to do."""


class Environment(msgspec.Struct, frozen=True):
    """Where Flink is."""

    python: Path
    classpath: tuple[Path, ...]
    """What Flink needs beside its distribution."""


def ensure(say: Callable[[str], None], cache: Path | None = None) -> Environment:
    """The environment, made now if it is not there; `say` hears what is being done. Raises FlinkUnavailable."""
    cache = cache or _cache()
    home = cache / f"flink-{FLINK_VERSION}"
    with _locked(cache / f"flink-{FLINK_VERSION}.lock"):
        if not home.exists():
            _build(home, say)
        classes = home / f"classes-{_sources_hash()}"
        if not classes.exists():
            _compile(home, classes, say)
    return Environment(python=_python(home), classpath=(*sorted((home / "jars").glob("*.jar")), classes))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "millpond"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two benchmarks that start at once make one environment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise FlinkUnavailable(
            f"Flink's environment has no place: {error}. Set XDG_CACHE_HOME to a directory that can be written."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _appearing(place: Path) -> Iterator[Path]:
    """A directory that gets its name when the block is done, and goes away when it fails."""
    partial = Path(tempfile.mkdtemp(prefix=f"{place.name}.partial-", dir=place.parent))
    try:
        yield partial
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(home: Path, say: Callable[[str], None]) -> None:
    # What is quick to miss is looked for before what is slow to fetch.
    maven = _program("mvn", "Maven, which fetches Flink's Parquet format")
    _program("javac", "a JDK, version 17 or newer, which compiles the benchmark's source and sink for Flink")
    hadoop = _hadoop_jars()
    with _appearing(home) as partial:
        say(f"Flink {FLINK_VERSION}: installing apache-flink from PyPI into {home} (about 850 MB, once)")
        _run(
            [sys.executable, "-m", "venv", str(partial / "python")], "a virtual environment could not be made"
        )
        _run(
            [str(_python(partial)), "-m", "pip", "install", "--quiet", f"apache-flink=={FLINK_VERSION}"],
            f"apache-flink {FLINK_VERSION} could not be installed from PyPI. "
            "It needs the network, or a mirror that PIP_INDEX_URL names, and Python 3.9 to 3.12",
        )
        jars = partial / "jars"
        jars.mkdir()
        say(f"Flink {FLINK_VERSION}: fetching {PARQUET_JAR} with Maven")
        _run(
            [maven, "-q", "-B", "dependency:copy", f"-Dartifact={PARQUET_JAR}", f"-DoutputDirectory={jars}"],
            f"{PARQUET_JAR} could not be fetched from Maven Central. "
            "It needs the network, or a mirror in Maven's settings.xml",
        )
        for jar in hadoop:
            shutil.copy(jar, jars)


def _compile(home: Path, classes: Path, say: Callable[[str], None]) -> None:
    javac = _program("javac", "a JDK, version 17 or newer")
    distribution = sorted(home.glob("python/lib/python*/site-packages/pyflink/lib/*.jar"))
    jars = [str(jar) for jar in (*distribution, *sorted((home / "jars").glob("*.jar")))]
    say(f"Flink {FLINK_VERSION}: compiling the benchmark's source and sink for it")
    with _appearing(classes) as partial:
        sources = [str(path) for path in _sources()]
        _run(
            [javac, "-d", str(partial), "-cp", os.pathsep.join(jars), *sources],
            f"the benchmark's classes for Flink {FLINK_VERSION} do not compile; javac should be 17 or newer",
        )
        services = partial / "META-INF" / "services"
        services.mkdir(parents=True)
        for service, providers in SERVICES.items():
            (services / service).write_text("\n".join(providers) + "\n")


def _python(home: Path) -> Path:
    return home / "python" / "bin" / "python"


def _sources() -> list[Path]:
    return sorted(JAVA_SOURCES.rglob("*.java"))


def _sources_hash() -> str:
    content = hashlib.sha256(repr(SERVICES).encode())
    for path in _sources():
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


def _hadoop_jars() -> list[Path]:
    import pyspark

    directory = Path(pyspark.__file__).parent / "jars"
    found = [jar for pattern in HADOOP_JARS for jar in directory.glob(pattern)]
    if len(found) != len(HADOOP_JARS):
        raise FlinkUnavailable(
            f"Flink's Parquet format needs {' and '.join(HADOOP_JARS)}, expected in {directory}. "
            "Reinstall PySpark from PyPI."
        )
    return found


def _program(name: str, what: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FlinkUnavailable(
            f"Flink's environment can't be made: {name} is not on the PATH. Install {what}, and run again."
        )
    return found


def _run(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        raise FlinkUnavailable(f"{failure}: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-ERROR_LINES:])
        raise FlinkUnavailable(f"{failure}. The last lines of {Path(command[0]).name}:\n{tail}")
