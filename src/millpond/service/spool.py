"""Record batches that wait: in memory while a shared budget lasts, in a file of their own beyond it."""

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

    def append(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        size = batch.nbytes
        if self._file is None and self._budget.take(size):
            self._in_memory.append(batch)
            self._held += size
            return
        if self._writer is None:
            with tempfile.NamedTemporaryFile(dir=self._directory, prefix="spool-", delete=False) as file:
                self._file = Path(file.name)
            self._writer = pa.ipc.new_stream(str(self._file), self.schema)
        self._writer.write_batch(batch)

    def finish(self) -> None:
        """Ends writing; what lies in a file can be read from now on."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._in_memory
        if self._file is not None:
            with pa.memory_map(str(self._file)) as source:
                yield from pa.ipc.open_stream(source)

    @property
    def spilled(self) -> bool:
        return self._file is not None

    def close(self) -> None:
        self.finish()
        self._in_memory.clear()
        self._budget.give_back(self._held)
        self._held = 0
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None
