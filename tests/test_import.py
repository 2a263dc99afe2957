"""Importing the package starts nothing and stays light."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import sys, threading
import millpond
heavy = {"pyspark", "pandas", "pyarrow.flight", "rich", "typer"} & set(sys.modules)
print(sorted(heavy), threading.active_count())
"""


def test_import_starts_no_thread_and_brings_no_heavy_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[] 1"
