"""Rows that tasks have sent and that no batch has taken yet.

They wait under the attempt that sent them: a retried, speculative or forgotten task harms nobody, because only
attempts whose receipt reached the driver are ever taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from millpond.errors import Conflict
from millpond.service.messages import Receipt, StageKey
from millpond.service.spool import Budget, Spool
from millpond.service.wire import SHARD, STAGED

__all__ = ["Staging"]


class Staging:
    """The staged rows of one try at a batch: encoded rows per attempt and shard."""

    def __init__(self, budget: Budget, directory: Path) -> None:
        self._budget = budget
        self._directory = directory
        self._lock = threading.Lock()
        self._attempts: dict[tuple[int, int, int, int], dict[int, Spool]] = {}
        self._closed = False

    def put(self, key: StageKey, schema: pa.Schema, rows: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Takes an attempt's rows as (shard, encoded rows). They count once the stream has ended well."""
        spools: dict[int, Spool] = {}
        try:
            for shard, batch in rows:
                spool = spools.get(shard)
                if spool is None:
                    spool = spools[shard] = Spool(schema, self._budget, self._directory)
                spool.append(batch)
            for spool in spools.values():
                spool.finish()
        except BaseException:
            for spool in spools.values():
                spool.close()
            raise
        self._keep(key, spools)

    def adopt(self, key: StageKey, name: str) -> None:
        """Takes the file that an attempt has left."""
        path = self._directory / name
        if path.parent != self._directory:
            raise Conflict(f"{name!r} is no file of a task")
        spools: dict[int, Spool] = {}
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch, metadata in reader.iter_batches_with_custom_metadata():
                shard = int(metadata[SHARD])
                if shard not in spools:
                    spools[shard] = Spool(reader.schema, self._budget, self._directory)
                spools[shard].hold(batch)
        # What is mapped stays readable.
        path.unlink()
        self._keep(key, spools)

    def _keep(self, key: StageKey, spools: dict[int, Spool]) -> None:
        with self._lock:
            closed = self._closed
            whose = (key.operator, key.side, key.task, key.attempt)
            replaced = spools if closed else self._attempts.pop(whose, {})
            if not closed:
                self._attempts[whose] = spools
        for spool in replaced.values():
            spool.close()
        if closed:
            raise Conflict(f"{key.at} ended while task {key.task} attempt {key.attempt} was sending its rows")

    def take(self, operator: int, shard: int, receipts: Iterable[Receipt]) -> Iterator[pa.RecordBatch]:
        """The rows of the winning attempts for one shard, in task order; what is missing is a `Conflict`."""
        for receipt in sorted(receipts, key=lambda receipt: (receipt.side, receipt.task)):
            promised = receipt.staged_rows[shard] if receipt.staged_rows else 0
            whose = (operator, receipt.side, receipt.task, receipt.attempt)
            spool = self._attempts.get(whose, {}).get(shard)
            staged = spool.rows if spool is not None else 0
            if staged != promised:
                raise Conflict(
                    f"operator {operator}, shard {shard}: task {receipt.task} attempt {receipt.attempt} promised "
                    f"{promised} rows and {staged} were staged; the batch has to be tried again"
                )
            if spool is not None:
                yield from spool.batches()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            attempts, self._attempts = self._attempts, {}
        for spools in attempts.values():
            for spool in spools.values():
                spool.close()
        # Of tasks that failed before they could say so.
        for left in self._directory.glob(f"{STAGED}*"):
            left.unlink(missing_ok=True)

    def release(self, operator: int) -> None:
        """Forgets what was staged for an operator whose batch is sealed."""
        with self._lock:
            mine = [key for key in self._attempts if key[0] == operator]
            released = [self._attempts.pop(key) for key in mine]
        for spools in released:
            for spool in spools.values():
                spool.close()
