"""The state service as a child process of the driver."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from millpond.errors import Unavailable
from millpond.service.allocation import with_large_pages
from millpond.service.client import ServiceClient
from millpond.service.messages import Endpoint

__all__ = ["ServiceProcess"]

_COMMAND = (sys.executable, "-m", "millpond.service")
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0


class ServiceProcess:
    """Started at once, used after `wait_ready`. Its socket, token and spill files are private to the user."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="millpond-"))  # mode 0700
        self._log = self._directory / "service.log"
        socket = self._directory / "socket"
        rows = self._directory / "rows"
        rows.mkdir()
        self.endpoint = Endpoint(f"grpc+unix://{socket}", secrets.token_hex(16), str(rows))
        with self._log.open("wb") as log:
            # A session of its own: a Ctrl-C in the terminal is for the driver to handle.
            self._process = subprocess.Popen(
                [*_COMMAND, str(socket), str(rows)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=with_large_pages(os.environ | {"PYTHONUNBUFFERED": "1"}),
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{self.endpoint.token}\n".encode())
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> ServiceClient:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _START_SECONDS
        while True:
            readable, _, _ = select.select([self._process.stdout], [], [], 0.2)
            if readable and self._process.stdout.readline().strip() == b"ready":
                return ServiceClient(self.endpoint)
            if readable or not self.alive:
                self._process.wait()
                raise Unavailable(f"the state service did not start: {self.last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise Unavailable(f"the state service was not ready within {_START_SECONDS:.0f} s")

    def last_words(self) -> str:
        """The end of what the service wrote to its log, for an error message."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        tail = " | ".join(text.strip().splitlines()[-3:])
        code = self._process.poll()
        return tail or (f"it ended with exit code {code}" if code is not None else "it said nothing")

    def stop(self) -> None:
        """Closes the pipe, which ends the service, and waits for it."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        if self.alive:
            self._process.kill()
        self.stop()
