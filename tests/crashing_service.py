"""`python -m tests.crashing_service SOCKET`: a state service that dies at the next crash point of a plan.

The plan is a file, named in the environment, with one point a line. Each service process takes the first line
and removes it as it dies there; with an empty plan, it lives.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from millpond.service.server import serve
from tests.crash import SERVICE_STEPS, arm

PLAN = "MILLPOND_TEST_CRASH_PLAN"


def main() -> None:
    plan = Path(os.environ[PLAN])
    points = plan.read_text().splitlines()

    def die() -> None:
        plan.write_text("".join(f"{point}\n" for point in points[1:]))
        os.kill(os.getpid(), signal.SIGKILL)

    if points:
        arm(points[0], SERVICE_STEPS, die)
    serve(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
