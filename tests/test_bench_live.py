"""Traffic that arrives while a query runs: when files appear, which batch read them, and which batches count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from millpond.bench.arrivals import batch_end_s, batch_start_s, ticks_of_batches, took_files
from millpond.bench.compare import Plan, compare
from millpond.bench.feeder import Feeder
from millpond.bench.job import Arrivals, BatchTime, Outcome, Probe, StateReads
from millpond.bench.latency import Counting, delay_percentiles, live_figures, search_entry, state_figures
from millpond.bench.live import Live
from millpond.bench.live_outputs import LiveOutputs
from millpond.bench.papers import Paper
from millpond.bench.report import run_entry
from millpond.bench.state_reads import hit_ratio, state_reads
from millpond.workloads.queries import bids, joins, papers, remaining, times
from millpond.workloads.queries.catalog import QUERIES
from millpond.workloads.queries.query import Windows
from tests.test_bench_runner import Quiet

LIVE = Live(rate=1_000, seconds=4, warmup_seconds=2, trigger_seconds=1)


def test_a_fixed_rate_brings_the_same_each_tick() -> None:
    assert LIVE.counts() == (200,) * 30
    assert [LIVE.due_s(tick) for tick in (0, 1, 29)] == pytest.approx([0.2, 0.4, 6.0])


def test_normal_traffic_varies_by_the_second_and_is_the_same_for_a_seed() -> None:
    normal = Live(rate=1_000, seconds=100, normal=True, seed=7)
    counts = normal.counts()
    seconds = [sum(counts[at : at + 5]) for at in range(0, len(counts), 5)]
    assert counts == Live(rate=1_000, seconds=100, normal=True, seed=7).counts()
    assert 90_000 < sum(seconds) < 110_000
    assert 60 < (max(seconds) - min(seconds)) / 6 < 200
    assert counts != Live(rate=1_000, seconds=100, normal=True, seed=8).counts()


@pytest.mark.parametrize(("trigger", "tick"), [(0.2, 0.1), (1.0, 0.2), (3.0, 0.5)])
def test_ticks_are_short_beside_a_trigger_and_no_more_than_needed(trigger: float, tick: float) -> None:
    assert Live(rate=10, seconds=9, trigger_seconds=trigger).tick_seconds == tick


def test_a_query_gets_the_traffic_as_files_with_event_times_at_its_rate() -> None:
    workload = Paper(query_name="lr4", size="small", live=LIVE)
    inputs = [tables["positions"] for tables in workload.inputs()]
    assert [rows.num_rows for rows in inputs] == [200] * 30 + [1] * workload.closing_batches
    first, last = inputs[0]["ts"][0].as_py(), inputs[29]["ts"][-1].as_py()
    assert 5.9 < (last - first).total_seconds() < 6.0
    faster = workload.at_rate(2_000)
    assert [rows["positions"].num_rows for rows in faster.inputs()][:30] == [400] * 30


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def read_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def files(directory: Path, count: int) -> Path:
    (directory / "bids").mkdir(parents=True)
    for number in range(count):
        (directory / "bids" / f"batch-{number:06}.parquet").write_text(str(number))
    return directory


def test_each_file_appears_when_it_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    watched = tmp_path / "watched"
    feeder = Feeder(files(tmp_path / "data", 3), watched, ["bids"], clock_s=clock.read_s, sleep=clock.sleep)
    Feeder.make_directories(watched, ["bids"])
    seen: list[tuple[float, int]] = []

    def look() -> bool:
        seen.append((clock.now_s - feeder.began_s, len(list((watched / "bids").iterdir()))))
        return len(seen) < 2

    assert not feeder.feed([0.5, 1.0, 1.5], look)
    assert seen == [(0.5, 1), (1.0, 2)]


def progress(batch: int, started: str, ms: int, *sources: tuple[str, int | None, int]) -> SimpleNamespace:
    described = [
        SimpleNamespace(
            description=f"FileStreamSource[file:/somewhere/traffic/{name}]",
            startOffset="null" if first is None else json.dumps({"logOffset": first}),
            endOffset=json.dumps({"logOffset": end}),
        )
        for name, first, end in sources
    ]
    return SimpleNamespace(
        batchId=batch,
        timestamp=f"2026-01-01T00:00:{started}Z",
        durationMs={"triggerExecution": ms},
        sources=described,
    )


def write_log(log: Path, name: str, entries: list[tuple[int, int]]) -> None:
    log.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"path": f"file:///x/batch-{tick:06}.parquet", "timestamp": 1, "batchId": number})
        for number, tick in entries
    ]
    (log / name).write_text("\n".join(["v1", *lines]))


def test_a_batch_read_what_its_sources_logs_say(tmp_path: Path) -> None:
    first, second = tmp_path / "sources" / "0", tmp_path / "sources" / "1"
    write_log(first, "0", [(0, 0), (0, 1)])
    write_log(first, "1.compact", [(0, 0), (0, 1), (1, 2)])
    (first / ".1.compact.crc").write_bytes(b"\xff")
    write_log(second, "0", [(0, 0)])
    reports = [
        progress(0, "10.000", 1_500, ("bids", None, 0), ("auctions", None, 0)),
        # The second source had nothing new.
        progress(1, "12.000", 500, ("bids", 0, 1), ("auctions", 0, 0)),
    ]
    reads = ticks_of_batches(tmp_path, reports, ["auctions", "bids"])
    assert [{read.stream: read.ticks for read in batch} for batch in reads] == [
        {"bids": (0, 1), "auctions": (0,)},
        {"bids": (2,), "auctions": ()},
    ]
    assert batch_end_s(reports[0]) - batch_start_s(reports[0]) == 1.5
    assert all(took_files(report) for report in reports)
    assert not took_files(progress(2, "13.000", 5, ("bids", 1, 1), ("auctions", 0, 0)))


def batch(
    started_s: float,
    ms: float = 100,
    delays: tuple[tuple[float, int], ...] = ((500, 10),),
    state_bytes: int | None = None,
    wait_ms: float | None = None,
) -> BatchTime:
    return BatchTime(
        rows=sum(rows for _, rows in delays),
        ms=ms,
        phases_ms={},
        state=StateReads(reads=10, from_memory=9, state_bytes=state_bytes, wait_ms=wait_ms),
        arrivals=Arrivals(started_s=started_s, delays=delays),
    )


def starts(batches: list[BatchTime]) -> list[float]:
    return [each.arrivals.started_s for each in batches if each.arrivals]


def test_batches_count_after_the_first_ones_and_the_window() -> None:
    batches = [batch(at) for at in (0.0, 1.0, 2.0, 3.0)]
    assert starts(Counting(0, LIVE).of(batches)) == [2.0, 3.0]
    assert starts(Counting(3, LIVE).of(batches)) == [3.0]
    closing = [*batches, batch(5.0, delays=())]
    assert starts(Counting(0, LIVE).of(closing)) == [2.0, 3.0]


def test_with_bounded_memory_batches_count_once_the_state_has_outgrown_it() -> None:
    batches = [batch(at, state_bytes=size) for at, size in ((0, 1), (2, 5), (3, 20), (4, 15))]
    assert starts(Counting(0, LIVE, memory_bytes=10).of(batches)) == [3, 4]
    assert live_figures([batches], Counting(0, LIVE, memory_bytes=10))["state_outgrew_memory"] is True
    # A state that stays small is measured all the same, and the figures say so.
    assert starts(Counting(0, LIVE, memory_bytes=100).of(batches)) == [2, 3, 4]
    assert live_figures([batches], Counting(0, LIVE, memory_bytes=100))["state_outgrew_memory"] is False


def test_delays_are_of_events_not_of_batches() -> None:
    found = delay_percentiles([batch(2, delays=((900, 1),)), batch(3, delays=((100, 98), (300, 1)))])
    assert found == {"p50": 100, "p95": 100, "p99": 300, "p999": 900, "max": 900}


def test_live_figures_tell_the_rate_that_was_done() -> None:
    figures = live_figures([[batch(at, delays=((500, 1_000),)) for at in (2, 3, 4, 5)]], Counting(0, LIVE))
    assert figures["rows_per_s"] == 1_000
    assert figures["counted_batches"] == 4
    assert figures["delay_cdf"]["ms"][-1] == 500


def test_waits_and_hits_are_told_where_they_are_known() -> None:
    slow = state_figures([batch(2, wait_ms=3.0), batch(3, wait_ms=5.0)])
    assert slow["read_hit_ratio"] == 0.9
    assert slow["state_wait_ms"]["p50"] == 3.0
    assert "state_wait_ms" not in state_figures([batch(2)])
    assert state_figures([BatchTime(1, 1.0, {})]) == {}


def test_the_highest_rate_of_repeats_is_the_middle_one() -> None:
    def found(rate: int) -> Outcome:
        return Outcome(probes=(Probe(rate=rate, sustained=True, delay_p95_ms=1.0),))

    assert search_entry([found(300), found(100), found(200)])["max_rate"] == 200
    failed = Outcome(probes=(Probe(rate=50, sustained=False, delay_p95_ms=None),))
    assert search_entry([failed])["max_rate"] is None


def told(**metrics: int) -> SimpleNamespace:
    return SimpleNamespace(stateOperators=[SimpleNamespace(customMetrics=metrics)])


def test_millponds_counters_grow_and_rocksdbs_begin_anew() -> None:
    grown = [
        told(gets=10, diskProbes=4, readWaitMs=6, storageWaitMs=1, liveBytes=5),
        told(gets=30, diskProbes=9, readWaitMs=9, storageWaitMs=2, liveBytes=7),
    ]
    first, second = state_reads(grown, [2_000_000, 5_000_000])
    assert (first.reads, first.from_memory, first.wait_ms) == (10, 6, 9.0)
    assert (second.reads, second.from_memory, second.wait_ms) == (20, 15, 7.0)
    assert second.state_bytes == 7
    rocks = [
        told(rocksdbReadBlockCacheHitCount=8, rocksdbReadBlockCacheMissCount=2, rocksdbSstFileSize=9),
        told(rocksdbReadBlockCacheHitCount=6, rocksdbReadBlockCacheMissCount=4, rocksdbSstFileSize=9),
    ]
    found = state_reads(rocks, [None, None])
    assert [(each.reads, each.from_memory, each.wait_ms) for each in found] == [(10, 8, None), (10, 6, None)]
    assert hit_ratio(found) == 0.7
    assert hit_ratio(state_reads([told()], [None])) is None


def test_the_floor_sends_back_as_many_rows_as_were_out_by_then() -> None:
    outputs = LiveOutputs(rows_in=(100, 300), rows_out=(10, 10))
    assert [outputs.out_after(rows) for rows in (0, 50, 100, 200, 300)] == [0, 5, 10, 10, 10]


class Anything:
    """Stands for every frame, column and function while a query is put together without Spark."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    __getattr__ = __getitem__ = __call__
    for _name in (
        "add",
        "radd",
        "sub",
        "mul",
        "truediv",
        "mod",
        "and",
        "or",
        "ge",
        "gt",
        "le",
        "lt",
        "eq",
        "ne",
    ):
        locals()[f"__{_name}__"] = __call__
    __neg__ = __invert__ = __call__
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_query_says_how_long_its_windows_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    class Recording(Anything):
        def window(self, _column: Any, length: str, *_: Any) -> Anything:
            used.append(length)
            return Anything()

        def session_window(self, _column: Any, gap: str) -> Anything:
            used.append(gap)
            return Anything()

    modules: tuple[ModuleType, ...] = (bids, joins, papers, remaining, times)
    for module in modules:
        monkeypatch.setattr(module, "F", Recording())
    query = QUERIES[name]
    found = {each: Anything() for each in (*query.streams, *query.tables)}
    query.plain(found, Windows())  # type: ignore[arg-type]
    lengths = {int(length.split()[0]) for length in used}
    outlasting = {length for length in lengths if length > 3_600}
    assert lengths - outlasting == ({query.window_seconds} if query.window_seconds else set())


def test_engines_agree_under_live_traffic_on_slow_storage() -> None:
    live = Live(rate=400, seconds=4, warmup_seconds=1, trigger_seconds=0.5)
    plan = Plan(
        workload=Paper(query_name="lr4", size="small", window_seconds=2, slide_seconds=1, live=live),
        engines=("passthrough", "millpond", "spark-memory"),
        repeat=1,
        warmup_batches=1,
        time_limit_s=240,
        state_latency="hdfs" if shutil.which("javac") else None,
    )
    comparison = compare(plan, Quiet())
    # The floor sends back what another engine put out.
    assert [each.engine for each in comparison.runs] == ["millpond", "passthrough", "spark-memory"]
    assert [each.measured.outcome.error for each in comparison.runs] == [None, None, None]
    assert comparison.difference is None
    entry = run_entry(comparison)
    assert entry["results_equal"] is True
    for figures in entry["engines"].values():
        assert figures["delay_ms"]["p50"] > figures["batch_ms"]["p50"] / 2
        assert figures["counted_batches"] > 0
        if plan.state_latency:
            # At least Spark's two logs of each batch.
            assert figures["state_wait_ms"]["p50"] > 3.0
