"""`python -m tests.kill_driver SOURCE ROOT QUERY... [POINT]`: a driver program that runs queries to their end.

One after the other: a query that is killed after Spark's file source has noted its files and before Spark has planned
the batch begins again with a larger batch, and its results are others, as they would be without Millpond.

At a crash point it kills its process group, itself and its JVM; at a point that begins with `alone-`, only itself. It
tells on standard output who else has to be gone after it: a line `service PID` for each state service.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from millpond.service.process import ServiceProcess
from tests.crash import DRIVER_STEPS, arm
from tests.kill_queries import start_joined, start_totals, start_windows
from tests.kill_stores import QUERIES as STORES
from tests.kill_stores import start_query

QUERIES = {
    "windows": start_windows,
    "totals": start_totals,
    "joined": start_joined,
    **{name: partial(start_query, name) for name in STORES},
}


def main() -> None:
    source, root = Path(sys.argv[1]), Path(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tell_services()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # It lives for seconds: compile what is hot quickly rather than well.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.local.dir", str(root / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    for point in sys.argv[3:]:
        if point not in QUERIES:
            alone = point.startswith("alone-")
            arm(point.removeprefix("alone-"), DRIVER_STEPS, _kill_this if alone else _kill_group)
    for name in sys.argv[3:]:
        if name in QUERIES:
            QUERIES[name](spark, source, root).awaitTermination()
    spark.stop()


def _kill_this() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_group() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _end_with_parent() -> None:
    """The test holds the other end of standard input, and may be ended itself."""
    sys.stdin.read()
    _kill_group()


def _tell_services() -> None:
    start = ServiceProcess.__init__

    def started(self: ServiceProcess) -> None:
        start(self)
        print("service", self.pid, flush=True)

    ServiceProcess.__init__ = started  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
