"""Where a benchmark ran and with what, for its report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millpond.bench.flink.environment import FLINK_VERSION
from millpond.bench.flink.settings import FLINK_ENGINES

__all__ = ["invocation", "java_command", "java_version", "machine", "versions"]


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
    }


def invocation(arguments: Sequence[str], now: datetime) -> dict[str, str]:
    """How a benchmark was asked for, and when."""
    date = now.astimezone(UTC).isoformat(timespec="seconds")
    return {"command": shlex.join(["millpond", *arguments]), "date": date}


def versions(engines: Collection[str]) -> dict[str, Any]:
    """Of what all runs use, and of the peers that took part."""
    java = java_version(java_command())
    return {
        "python": platform.python_version(),
        "pyspark": importlib.metadata.version("pyspark"),
        "pyarrow": importlib.metadata.version("pyarrow"),
        "java": java[1] if java else None,
        "millpond": importlib.metadata.version("millpond"),
        "git_commit": _git_commit(),
        **({"flink": FLINK_VERSION} if set(engines) & set(FLINK_ENGINES) else {}),
        **{
            package: importlib.metadata.version(package)
            for name, package in _STORES.items()
            if name in engines
        },
    }


_STORES = {"rocksdb": "rocksdict", "lmdb": "lmdb"}
"""Stores that are used without Spark, by the package that they are in."""


def java_command() -> str:
    """The program that Spark will start: it looks at JAVA_HOME first."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def java_version(command: str) -> tuple[int, str] | None:
    """Major version and first line of `java -version`, or None where there is no such program."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    for line in done.stderr.splitlines() + done.stdout.splitlines():
        # Java 8 and older call themselves 1.8; JAVA_TOOL_OPTIONS may print a line before the version.
        if match := re.search(r'version "(?:1\.)?(\d+)', line):
            return int(match[1]), line.strip()
    return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git_commit() -> str | None:
    """The checkout that this package was imported from, if it is one."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--match=",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
