"""A window that is larger than the memory goes through the service in parts."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from millpond.service.messages import BatchTry, OutputKey, Receipt, StageKey
from millpond.state.opening import sorter_of
from tests.service_kit import Driver, window_rows

BATCHES, ROWS = 60, 100_000
WINDOW_BYTES = BATCHES * ROWS * 16
ROOM_BYTES = 2 << 20


def stage(driver: Driver, at: BatchTry) -> Receipt:
    sorter, staged_schema = sorter_of(driver.spec, 0, driver.starts, None, None)
    rows = np.arange(ROWS, dtype=np.int64)
    columns = [pa.array(rows % 1_000), pa.array(rows), pa.array(np.zeros(ROWS, np.int64))]
    sorter.push(pa.record_batch(columns, schema=driver.spec.input_of(0)))
    drained = sorter.drain()
    writer = driver.client.stage_file_writer(StageKey(at, 0, 0, 0, 0), staged_schema)
    for shard, batch in drained:
        writer.write(shard, batch)
    writer.close()
    staged = sum(batch.num_rows for _, batch in drained)
    return Receipt(0, 0, sorter.rows, sorter.late_rows, (staged,), side=0)


class Peak(threading.Thread):
    """The most that a process has in memory of its own while this runs. Files that it maps are not its own."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self._end = threading.Event()
        self.bytes = self.now()

    def now(self) -> int:
        (kilobytes,) = (
            line.split()[1] for line in self._status.read_text().splitlines() if line.startswith("RssAnon")
        )
        return int(kilobytes) << 10

    def run(self) -> None:
        while not self._end.wait(0.002):
            self.bytes = max(self.bytes, self.now())

    def end(self) -> int:
        self._end.set()
        self.join()
        return self.bytes


def test_a_fired_window_larger_than_memory_streams_through(tmp_path: Path) -> None:
    small = {"memory_bytes": ROOM_BYTES, "staging_bytes": ROOM_BYTES, "write_buffer_bytes": ROOM_BYTES}
    with Driver(tmp_path, spec=window_rows(100, 100), shards=1, mode="append", **small) as driver:
        for _ in range(BATCHES):
            at = driver.begin()
            driver.seal(at, [stage(driver, at)], 50)
            driver.commit(at, 50)
        peak = Peak(driver.service.pid)
        before = peak.bytes
        peak.start()
        at = driver.begin()
        driver.seal(at, [], 100)
        rows = sum(batch.num_rows for batch in driver.client.outputs(OutputKey(at, 0, 0)))
        grown = peak.end() - before
        driver.commit(at, 100)
    assert rows == BATCHES * ROWS
    # The allocator takes 32 MB at once.
    assert grown < WINDOW_BYTES // 2, f"{grown} bytes more in memory for a window of {WINDOW_BYTES}"
