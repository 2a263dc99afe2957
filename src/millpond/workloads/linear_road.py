"""Linear Road's position reports: cars on express ways, each saying twice a minute where it is."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from millpond.workloads.draws import Draws, event_numbers, timestamps, utc
from millpond.workloads.traffic import Traffic, traffic

__all__ = ["SEGMENT_FEET", "LinearRoad"]

SEGMENT_FEET = 5280
_SEGMENTS = 100
_LANES = 5
_SCHEMA = pa.schema(
    [
        ("ts", utc()),
        ("vehicle", pa.int64()),
        ("speed", pa.int32()),
        ("highway", pa.int32()),
        ("lane", pa.int32()),
        ("direction", pa.int32()),
        ("position", pa.int32()),
    ]
)


class LinearRoad(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All vehicles report in turn, so each one does every `vehicles`/`rate` seconds: 30 by default."""

    rate: int = 1_500
    rate_stddev: float = 0.0
    seed: int = 1
    vehicles: int = 45_000
    highways: int = 10

    def __post_init__(self) -> None:
        if self.vehicles < 1 or self.highways < 1:
            raise ValueError("vehicles and highways must be at least 1")

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    @property
    def traffic(self) -> Traffic:
        return traffic(self.rate, self.rate_stddev, self.seed)

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        numbers = event_numbers(first, count)
        times_us = self.traffic.due_us(numbers)
        vehicle = numbers % self.vehicles
        # What a car is follows from its number, what it reports from the event's.
        car, report = Draws(self.seed, vehicle), Draws(self.seed, numbers)
        cruise_mph = 40 + car.below(10, 45)
        driven_feet = times_us // 1_000 * cruise_mph * SEGMENT_FEET // 3_600_000
        length_feet = _SEGMENTS * SEGMENT_FEET
        eastward_feet = (car.below(11, length_feet) + driven_feet) % length_feet
        direction = car.below(12, 2)
        columns = [
            timestamps(times_us),
            vehicle,
            cruise_mph - 5 + report.below(13, 11),
            car.below(14, self.highways),
            report.below(15, _LANES),
            direction,
            np.where(direction == 0, eastward_feet, length_feet - 1 - eastward_feet),
        ]
        arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
