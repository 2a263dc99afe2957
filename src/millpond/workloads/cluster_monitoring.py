"""Task events of a compute cluster, as cluster monitoring reads them: 65 bytes each."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from millpond.workloads.draws import Draws, event_numbers, timestamps, utc
from millpond.workloads.traffic import Traffic, traffic

__all__ = ["ClusterMonitoring"]

_EVENT_TYPES = 9  # submit, schedule, evict, fail, finish, kill, lost, and two kinds of update
_CATEGORIES = 4
_PRIORITIES = 12
_TASKS_OF_A_JOB = 100
_SCHEMA = pa.schema(
    [
        ("ts", utc()),
        ("job", pa.int64()),
        ("task", pa.int32()),
        ("machine", pa.int32()),
        ("event_type", pa.int32()),
        ("user", pa.int32()),
        ("category", pa.int32()),
        ("priority", pa.int32()),
        ("cpu", pa.float64()),
        ("ram", pa.float64()),
        ("disk", pa.float64()),
        ("constraints", pa.bool_()),
    ]
)


class ClusterMonitoring(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Requests for cpu, ram and disk are parts of a machine, in steps of 1/1024."""

    rate: int = 1_500
    rate_stddev: float = 0.0
    seed: int = 1
    jobs: int = 10_000
    machines: int = 12_500
    users: int = 1_000

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.machines < 1 or self.users < 1:
            raise ValueError("jobs, machines and users must be at least 1")

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    @property
    def traffic(self) -> Traffic:
        return traffic(self.rate, self.rate_stddev, self.seed)

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        numbers = event_numbers(first, count)
        event = Draws(self.seed, numbers)
        job = event.below(10, self.jobs)
        # Whose a job is, and of which category and priority, does not change from task to task.
        of_job = Draws(self.seed, job)
        columns = [
            timestamps(self.traffic.due_us(numbers)),
            job,
            event.below(11, _TASKS_OF_A_JOB),
            event.below(12, self.machines),
            event.below(13, _EVENT_TYPES),
            of_job.below(14, self.users),
            of_job.below(15, _CATEGORIES),
            of_job.below(16, _PRIORITIES),
            event.parts_of_1024(17, 512),
            event.parts_of_1024(18, 512),
            event.parts_of_1024(19, 128),
            event.below(20, 10) == 0,
        ]
        arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
