"""`millpond doctor`: looks at what a query needs on this machine and says how to fix what is missing.

Nothing here starts Spark: each check reads a version or asks a program for its own.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from millpond.bench.machine import java_command, java_version

__all__ = ["Check", "report", "run_checks"]

JAVA_NEEDED = 17
MEMORY_NEEDED_BYTES = 2 << 30
DISK_NEEDED_BYTES = 2 << 30
JAVA_FIX = (
    f"Install Java {JAVA_NEEDED} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17; others: https://adoptium.net). JAVA_HOME, if set, must point to it."
)


class Check(NamedTuple):
    """One thing looked at. `fix` is empty when it is well."""

    name: str
    state: Literal["ok", "warning", "failed"]
    found: str
    fix: str = ""


def report() -> int:
    """Prints the checks and returns the exit code: 1 when one of them failed."""
    checks = list(run_checks())
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    for check in checks:
        table.add_row(check.name, f"[{colours[check.state]}]{check.state}[/]", check.found)
    console = Console()
    console.print(table)
    for check in checks:
        if check.fix:
            console.print(f"[bold]{check.name}[/]: {check.fix}", soft_wrap=True)
    return 1 if any(check.state == "failed" for check in checks) else 0


def run_checks() -> Iterator[Check]:
    yield _python()
    yield _java()
    yield _pyspark()
    yield _worker_python()
    yield _kernel()
    yield _memory()
    yield _disk()


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", "ok", f"{version} ({sys.executable})")


def _java() -> Check:
    command = java_command()
    found = java_version(command)
    if found is None:
        where = f"no working {command}" + (
            " (from JAVA_HOME)" if "JAVA_HOME" in os.environ else " on the PATH"
        )
        return Check("Java", "failed", where, JAVA_FIX)
    major, line = found
    if major < JAVA_NEEDED:
        return Check("Java", "failed", f"{line}: too old", JAVA_FIX)
    return Check("Java", "ok", line)


def _pyspark() -> Check:
    fix = "Install it beside Millpond: pip install 'pyspark>=4.3,<4.4'"
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Check("PySpark", "failed", "not installed", fix)
    if not version.startswith("4.3."):
        return Check("PySpark", "failed", f"{version}: Millpond works with 4.3", fix)
    home = os.environ.get("SPARK_HOME")
    if home:
        return Check(
            "PySpark",
            "warning",
            f"{version}, but SPARK_HOME={home} is what runs",
            "Unset SPARK_HOME unless that Spark is a 4.3 too.",
        )
    return Check("PySpark", "ok", version)


def _worker_python() -> Check:
    """Spark starts PYSPARK_PYTHON, or python3, for its workers: it must be one that has Millpond's kernel."""
    named = os.environ.get("PYSPARK_PYTHON")
    command = named or "python3"
    fix = f"Set PYSPARK_PYTHON={sys.executable}, so that Spark's workers run the Python that has Millpond."
    program = shutil.which(command)
    if program is None:
        return Check("worker Python", "failed", f"no {command}", fix)
    if Path(program).absolute() == Path(sys.executable).absolute():
        return Check("worker Python", "ok", program)
    tried = subprocess.run(
        [program, "-c", "import sys, millpond._kernel; print(*sys.version_info[:2], sep='.')"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or ["it failed"])[-1]
        # Without the variable a program may still set it by itself, as the commands here do.
        return Check("worker Python", "failed" if named else "warning", f"{program}: {last}", fix)
    if tried.stdout.strip() != f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Check("worker Python", "failed", f"{program} is a Python {tried.stdout.strip()}", fix)
    return Check("worker Python", "ok", program)


def _kernel() -> Check:
    try:
        from millpond._kernel import FORMAT_VERSION
    except ImportError as error:
        return Check("kernel", "failed", str(error), "Build it: make setup, in a checkout of the project.")
    return Check("kernel", "ok", f"writes file format {FORMAT_VERSION}")


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    found = f"{_gib(memory.available)} free of {_gib(memory.total)}"
    if memory.available < MEMORY_NEEDED_BYTES:
        fix = f"Spark and the state service together want {_gib(MEMORY_NEEDED_BYTES)}: stop other programs."
        return Check("memory", "warning", found, fix)
    return Check("memory", "ok", found)


def _disk() -> Check:
    place = tempfile.gettempdir()
    usage = shutil.disk_usage(place)
    found = f"{_gib(usage.free)} free in {place}"
    if usage.free < DISK_NEEDED_BYTES:
        fix = "Free some space, or set TMPDIR (and spark.local.dir) to a place that has it."
        return Check("disk", "warning", found, fix)
    return Check("disk", "ok", found)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
