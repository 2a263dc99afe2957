"""Record batches that wait: in memory while a shared budget lasts, else in a file of their own."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

__all__ = ["Budget", "Spool"]


class Budget:
    """Bytes that several spools may hold in memory together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._lock = threading.Lock()

    def take(self, amount: int) -> bool:
        with self._lock:
            if self._used + amount > self._limit:
                return False
            self._used += amount
            return True

    def give_back(self, amount: int) -> None:
        with self._lock:
            self._used -= amount


class Spool:
    """Appended to by one thread, then read as often as wanted, in order, until closed."""

    def __init__(self, schema: pa.Schema, budget: Budget, directory: Path) -> None:
        self.schema = schema
        self.rows = 0
        self._budget = budget
        self._directory = directory
        self._in_memory: list[pa.RecordBatch] = []
        self._held = 0
        self._file: Path | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._filing = threading.Lock()

    def append(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        size = batch.nbytes
        if self._writer is None and self._budget.take(size):
            self._in_memory.append(batch)
            self._held += size
            return
        self._begin_file().write_batch(batch)

    def hold(self, batch: pa.RecordBatch) -> None:
        """Appends rows that lie in a file already, and so take nothing of the budget."""
        self.rows += batch.num_rows
        self._in_memory.append(batch)

    def finish(self) -> None:
        """Ends writing; what lies in a file can be read from now on."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            yield from self._in_memory
            return
        with pa.memory_map(str(self._file)) as source:
            yield from pa.ipc.open_stream(source)

    def file(self) -> Path:
        """A file with all rows, which stays until the spool is closed."""
        with self._filing:
            if self._file is None:
                self._begin_file()
                self.finish()
            assert self._file is not None
            return self._file

    def _begin_file(self) -> pa.ipc.RecordBatchStreamWriter:
        """All rows are in memory, or all in the file."""
        if self._writer is None:
            with tempfile.NamedTemporaryFile(dir=self._directory, prefix="spool-", delete=False) as file:
                path = Path(file.name)
            try:
                self._writer = pa.ipc.new_stream(str(path), self.schema)
                for batch in self._in_memory:
                    self._writer.write_batch(batch)
            except BaseException:
                path.unlink()
                raise
            self._file = path
            self._forget()
        return self._writer

    def _forget(self) -> None:
        # Somebody may be reading the list.
        self._in_memory = []
        self._budget.give_back(self._held)
        self._held = 0

    def close(self) -> None:
        self.finish()
        self._forget()
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None
