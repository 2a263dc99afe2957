"""The seeded generators: the same rows however ranges are cut, and the traffic that they say."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millpond.workloads.cluster_monitoring import ClusterMonitoring
from millpond.workloads.draws import Draws, event_numbers
from millpond.workloads.linear_road import SEGMENT_FEET, LinearRoad
from millpond.workloads.nexmark import Nexmark
from millpond.workloads.readwrite import ReadWrite
from millpond.workloads.traffic import traffic
from millpond.workloads.ysb import Ysb

GENERATORS = [
    Nexmark(),
    Nexmark(format="json"),
    LinearRoad(),
    LinearRoad(rate_stddev=150),
    ClusterMonitoring(rate=2_500, rate_stddev=250),
    Ysb(),
    Ysb(format="json", zipf=0),
    ReadWrite(),
]


@pytest.mark.parametrize("generator", GENERATORS, ids=repr)
def test_ranges_are_the_same_however_cut(generator: Any) -> None:
    whole = generator.batch(1_000, 5_000)
    whole.validate(full=True)
    assert whole.schema.equals(generator.schema)
    cuts = [1_000, 1_001, 2_500, 4_096, 6_000]
    pieces = [generator.batch(start, end - start) for start, end in itertools.pairwise(cuts)]
    assert pa.Table.from_batches(pieces).combine_chunks().to_batches() == [whole]


@pytest.mark.parametrize("kind", [LinearRoad, ClusterMonitoring, Ysb, ReadWrite])
def test_another_seed_gives_other_rows(kind: Any) -> None:
    assert kind(seed=1).batch(0, 100) == kind(seed=1).batch(0, 100)
    assert kind(seed=1).batch(0, 100) != kind(seed=2).batch(0, 100)


def test_draws_are_spread_evenly_and_fields_are_independent() -> None:
    draws = Draws(7, event_numbers(0, 100_000))
    counts = np.bincount(draws.below(3, 10), minlength=10)
    assert counts.min() > 9_600
    assert counts.max() < 10_400
    assert abs(np.corrcoef(draws.unit(1), draws.unit(2))[0, 1]) < 0.02
    normal = draws.normal(5)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02


def test_normal_traffic_draws_a_count_for_every_second() -> None:
    chosen = traffic(1_500, 150, seed=3)
    seconds = chosen.due_us(event_numbers(0, 300_000)) // 1_000_000
    counts = np.bincount(seconds)[:-1]
    assert abs(counts.mean() - 1_500) < 40
    assert 120 < counts.std() < 180


@pytest.mark.parametrize("stddev", [0, 150])
def test_events_are_available_from_the_moment_they_are_due(stddev: float) -> None:
    chosen = traffic(1_500, stddev, seed=3)
    due = chosen.due_us(event_numbers(0, 10_000))
    assert (np.diff(due) >= 0).all()
    for number in (0, 1, 1_499, 1_500, 7_777):
        moment = int(due[number])
        assert chosen.available(moment) == np.searchsorted(due, moment, side="right")
        assert chosen.available(moment - 1) == np.searchsorted(due, moment - 1, side="right")


def test_cars_drive_on_and_report_every_thirty_seconds() -> None:
    road = LinearRoad(vehicles=3_000, rate=100)
    reports = road.batch(0, 9_000).to_pandas()
    car = reports[reports.vehicle == 17]
    assert list(car.ts.diff().dropna().dt.total_seconds()) == [30.0, 30.0]
    assert car.highway.nunique() == car.direction.nunique() == 1
    # A mile a minute is 2,640 feet in 30 s; nobody is slower than 40 mph.
    moved = car.position.diff().dropna() * (1 if car.direction.iloc[0] == 0 else -1) % (100 * SEGMENT_FEET)
    assert ((moved > 1_700) & (moved < 3_800)).all()
    assert reports.position.between(0, 100 * SEGMENT_FEET - 1).all()


def test_sums_of_cpu_are_exact_in_any_order() -> None:
    cpu = ClusterMonitoring().batch(0, 100_000)["cpu"].to_numpy()
    assert (cpu * 1024 == np.rint(cpu * 1024)).all()
    assert cpu.sum() == np.sort(cpu)[::-1].cumsum()[-1]


def test_a_task_event_has_65_bytes() -> None:
    widths = [1 if kind == pa.bool_() else kind.bit_width // 8 for kind in ClusterMonitoring().schema.types]
    assert sum(widths) == 65


def test_every_ad_belongs_to_a_campaign_and_few_ads_get_most_events() -> None:
    ysb = Ysb()
    table = ysb.campaign_of_ads()
    assert table.num_rows == 1_000
    assert pc.count_distinct(table["ad_id"]).as_py() == 1_000
    assert pc.count_distinct(table["campaign_id"]).as_py() == 100
    ads = ysb.batch(0, 50_000)["ad_id"]
    assert pc.all(pc.is_in(ads, table["ad_id"].combine_chunks())).as_py()
    counts = sorted((row["counts"] for row in pc.value_counts(ads).to_pylist()), reverse=True)
    assert sum(counts[:100]) > sum(counts[100:])


def test_json_of_ad_events_says_what_the_columns_say() -> None:
    rows = Ysb().batch(10, 50).to_pylist()
    for text, row in zip(Ysb(format="json").batch(10, 50)["value"].to_pylist(), rows, strict=True):
        row["event_time"] = row["event_time"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert json.loads(text) == row


def test_readwrite_has_ids_in_range_and_padding_of_its_size() -> None:
    rows = ReadWrite(ids=50, padding_bytes=33).batch(0, 2_000)
    assert sorted(set(rows["id"].to_pylist())) == list(range(50))
    assert set(pc.binary_length(rows["padding"]).to_pylist()) == {33}
