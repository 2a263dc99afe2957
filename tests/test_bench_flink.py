"""Flink as a peer, as far as it can be seen without Flink: its SQL, its output, its time, its environment."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.bench.digest import digest, last_rows
from millpond.bench.flink.changelog import KIND, final_rows
from millpond.bench.flink.environment import JAVA_SOURCES, SERVICES, FlinkUnavailable, ensure
from millpond.bench.flink.query import FlinkQuery, input_ddl
from millpond.bench.flink.run import _prepare, _settings, _typed
from millpond.bench.flink.settings import FLINK_ENGINES
from millpond.bench.flink.submit import result_ddl
from millpond.bench.flink.timing import batch_times
from millpond.bench.job import Job
from millpond.bench.keyed import Keyed, small_windows
from millpond.bench.papers import Paper
from millpond.bench.settings import ENGINE_SETTINGS, engine_settings, session_settings

INSERT, UPDATE, DELETE = 0, 2, 3
PLAIN = FlinkQuery(select="SELECT 1", update=False, key_columns=())


def part(output: Path, subtask: int, number: int, rows: list[dict[str, Any]]) -> None:
    output.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), output / f"part-0a1b-2c-{subtask}-{number}")


def change(key: int, n: int, kind: int) -> dict[str, Any]:
    return {"key": key, "n": n, KIND: kind}


def programs(directory: Path, *names: str) -> str:
    """A PATH on which these programs are, doing nothing, and no others."""
    directory.mkdir()
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return str(directory)


def test_the_input_table_has_the_columns_of_the_files() -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("ms"),
            "bid": pa.struct({"price": pa.float64(), "tags": pa.list_(pa.int32())}),
        }
    )
    ddl = input_ddl(PLAIN, "input", schema, Path("/data/input"))
    assert "`id` BIGINT,\n  `name` STRING,\n  `at` TIMESTAMP_LTZ(6),\n  `local` TIMESTAMP(3)" in ddl
    assert "`bid` ROW<`price` DOUBLE, `tags` ARRAY<INT>>" in ddl
    assert "'path' = 'file:///data/input'" in ddl
    assert "WATERMARK" not in ddl


def test_event_time_is_a_column_of_its_own_with_a_watermark_behind_it() -> None:
    query = FlinkQuery(select="SELECT 1", update=False, key_columns=(), event_time="at", watermark_seconds=7)
    ddl = input_ddl(query, "input", pa.schema({"at": pa.timestamp("us", "UTC")}), Path("/data"))
    assert "`event_time` AS CAST(`at` AS TIMESTAMP_LTZ(3))" in ddl
    assert "WATERMARK FOR `event_time` AS `event_time` - INTERVAL '7' SECOND" in ddl


def test_a_column_that_flink_can_not_read_is_named() -> None:
    with pytest.raises(ValueError, match=r"'took'.*duration"):
        input_ddl(PLAIN, "input", pa.schema({"took": pa.duration("us")}), Path("/data"))
    query = FlinkQuery(select="SELECT 1", update=False, key_columns=(), event_time="at")
    with pytest.raises(ValueError, match="'at' is not a column of id"):
        input_ddl(query, "input", pa.schema({"id": pa.int64()}), Path("/data"))


def test_an_update_query_without_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the key columns"):
        FlinkQuery(select="SELECT 1", update=True, key_columns=())


def test_the_result_takes_upserts_when_it_has_keys_and_only_inserts_otherwise() -> None:
    columns = [("key", "BIGINT"), ("n", "BIGINT")]
    upserts = result_ddl(columns, ["key"], "file:///out")
    assert "`key` BIGINT NOT NULL,\n  `n` BIGINT,\n  PRIMARY KEY (`key`) NOT ENFORCED" in upserts
    assert "'format' = 'changelog-parquet'" in upserts
    inserts = result_ddl(columns, [], "file:///out")
    assert "PRIMARY KEY" not in inserts
    assert "'format' = 'parquet'" in inserts
    with pytest.raises(ValueError, match="window"):
        result_ddl(columns, ["window"], "file:///out")


def test_keyed_updates_groups_and_appends_windows() -> None:
    groups = Keyed(rows=10, keys=2, batch_rows=5).flink_query()
    assert (groups.update, groups.key_columns, groups.event_time) == (True, ("key",), None)
    windows = small_windows(1).flink_query()
    assert (windows.update, windows.event_time, windows.watermark_seconds) == (False, "ts", 4 + 5)
    assert "INTERVAL '5' SECONDS, INTERVAL '20' SECONDS" in windows.select


def test_windows_of_a_query_are_as_long_as_a_benchmark_says() -> None:
    def select(name: str, **windows: int) -> str:
        query = Paper(query_name=name, **windows).flink_query()
        assert query is not None
        assert (query.event_time, query.watermark_seconds) == ("ts", 4)
        return query.select

    assert "HOP(TABLE `bids`, DESCRIPTOR(`event_time`), INTERVAL '5' SECONDS, INTERVAL '10' SEC" in select(
        "q5"
    )
    assert "INTERVAL '3' SECONDS, INTERVAL '9' SECONDS" in select("q5", window_seconds=9, slide_seconds=3)
    assert "TUMBLE(TABLE `bids`, DESCRIPTOR(`event_time`), INTERVAL '7'" in select("q7", window_seconds=7)
    assert "HOP(" in select("q7", window_seconds=8, slide_seconds=2)
    assert "SESSION(TABLE `bids` PARTITION BY `bidder`" in select("q11")


def test_each_stream_is_a_table_over_links_to_its_files(tmp_path: Path) -> None:
    workload = Paper(query_name="q20", size="small", events=2_000, batch_events=1_000)
    query = workload.flink_query()
    assert query is not None
    workload.prepare(tmp_path / "data")
    files = {stream: sorted((tmp_path / "data" / stream).iterdir())[:2] for stream in workload.streams}
    job = Job(workload, "flink-hashmap", str(tmp_path / "data"), str(tmp_path), session_settings(2, 3))
    submission = _prepare(query, job, tmp_path / "flink", files).read_text()
    assert "CREATE TABLE `bids`" in submission
    assert "CREATE TABLE `auctions`" in submission
    assert len(list((tmp_path / "flink" / "input" / "bids").iterdir())) == 2


def test_partitions_are_flinks_parallelism(tmp_path: Path) -> None:
    job = Job(small_windows(1), "flink-rocksdb", "", "", session_settings(2, partitions=7))
    assert _settings(job, tmp_path)["parallelism.default"] == "7"


@pytest.mark.parametrize("store", ["rocksdb", "forst"])
def test_a_write_buffer_is_that_of_the_store(store: str) -> None:
    settings = engine_settings(f"flink-{store}", small_windows(1), write_buffer_bytes=16 << 20)
    assert settings[f"state.backend.{store}.writebuffer.size"] == str(16 << 20)


def test_columns_get_the_types_that_the_other_engines_give_them() -> None:
    rows = _typed(pa.table({"rank": pa.array([1], pa.int64()), "price": [2]}), {"rank": "int32"})
    assert rows.schema == pa.schema({"rank": pa.int32(), "price": pa.int64()})


def test_the_last_change_of_a_key_counts_and_deleted_keys_are_gone(tmp_path: Path) -> None:
    part(tmp_path / "out", 0, 9, [change(1, 10, INSERT), change(2, 20, INSERT), change(1, 11, UPDATE)])
    part(tmp_path / "out", 0, 10, [change(1, 12, UPDATE), change(2, 20, DELETE)])
    part(tmp_path / "out", 1, 0, [change(3, 30, INSERT), change(3, 30, DELETE), change(3, 31, INSERT)])
    rows = final_rows(tmp_path / "out", ["key"]).sort_by("key").to_pylist()
    assert rows == [{"key": 1, "n": 12}, {"key": 3, "n": 31}]


def test_all_rows_of_an_append_query_count_and_uncommitted_files_do_not(tmp_path: Path) -> None:
    part(tmp_path / "out", 0, 0, [{"key": 1, "n": 5}, {"key": 1, "n": 5}])
    (tmp_path / "out" / ".part-0a1b-2c-0-1.inprogress.77").write_bytes(b"half")
    assert final_rows(tmp_path / "out", ["key"]).to_pylist() == [{"key": 1, "n": 5}] * 2


def test_a_result_has_the_digest_of_the_other_engines(tmp_path: Path) -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    spark = pa.table(
        {
            "key": [1, 2],
            "window": pa.array([{"start": at}] * 2, pa.struct({"start": pa.timestamp("us", "UTC")})),
        }
    )
    naive = at.replace(tzinfo=None)
    part(tmp_path / "out", 0, 0, [{"key": 2, "window.start": naive}, {"key": 1, "window.start": naive}])
    for name, rows in (("spark", spark), ("flink", final_rows(tmp_path / "out", ["key"]))):
        (tmp_path / name / "batch=0").mkdir(parents=True)
        pq.write_table(rows, tmp_path / name / "batch=0" / "rows.parquet")
    digests = {digest(last_rows(tmp_path / name, ["key", "window.start"])) for name in ("spark", "flink")}
    assert len(digests) == 1


def test_a_files_time_lies_between_the_samples_and_all_times_add_up() -> None:
    samples = [(900.0, 0), (1_100.0, 0), (1_200.0, 100), (1_400.0, 300), (1_500.0, 400), (1_600.0, 400)]
    times = batch_times([200, 100, 100], samples, started_ms=1_000.0, ended_ms=1_900.0)
    assert [batch.ms for batch in times] == [300.0, 100.0, 500.0]
    assert [batch.rows for batch in times] == [200, 100, 100]


def test_files_that_a_query_reads_twice_count_once() -> None:
    samples = [(1_100.0, 400), (1_200.0, 800)]
    times = batch_times([200, 200], samples, started_ms=1_000.0, ended_ms=1_200.0)
    assert [batch.ms for batch in times] == [100.0, 100.0]


@pytest.mark.parametrize(("there", "missing"), [(("javac",), "mvn"), (("mvn",), "javac")])
def test_a_missing_program_is_named_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], missing: str
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", *there))
    with pytest.raises(FlinkUnavailable, match=rf"{missing} is not on the PATH\. Install"):
        ensure(pytest.fail, tmp_path / "cache")


def test_a_failed_installation_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", "mvn", "javac"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    with pytest.raises(FlinkUnavailable, match=r"(?s)PIP_INDEX_URL.*No matching distribution"):
        ensure(said.append, tmp_path / "cache")
    assert "installing apache-flink" in said[0]
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_cache_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlinkUnavailable, match="XDG_CACHE_HOME"):
        ensure(lambda text: None, tmp_path / "file" / "cache")


def test_the_classes_that_flink_is_told_of_are_there() -> None:
    for provider in (name for names in SERVICES.values() for name in names):
        outer = provider.partition("$")[0].replace(".", "/")
        assert (JAVA_SOURCES / f"{outer}.java").is_file()


def test_a_report_holds_the_settings_of_every_flink_engine() -> None:
    backends = [ENGINE_SETTINGS[engine]["state.backend.type"] for engine in FLINK_ENGINES]
    assert backends == ["rocksdb", "hashmap", "forst"]


def test_the_script_for_flinks_python_imports_nothing_of_millpond() -> None:
    import subprocess

    from millpond.bench.flink import submit

    code = f"import runpy; runpy.run_path({submit.__file__!r})"
    # -I -S: neither this environment's packages nor the working directory.
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
