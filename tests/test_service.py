"""The state service as its driver and its tasks meet it, without Spark: one process, one socket, one query."""

from __future__ import annotations

import gc
import random
import shutil
import stat
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil
import pytest

from millpond.errors import Conflict, CorruptState, Fenced, Unavailable
from millpond.service.client import ServiceClient, connect
from millpond.service.messages import BatchTry, Endpoint, OutputKey, Receipt, StagedFile, StageKey
from millpond.state.layout import layout_of
from tests.service_kit import Driver, Group, Rows, counts, disk_bytes

WINDOW_US = 10_000_000


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Driver(tmp_path / "state") as driver:
        yield driver


def random_rows(dice: random.Random, rows: int, keys: int, start_us: int = 0) -> Rows:
    return [
        (dice.randrange(keys), dice.randrange(1000), start_us + dice.randrange(WINDOW_US))
        for _ in range(rows)
    ]


def expected_totals(batches: list[Rows]) -> dict[int, Group]:
    totals: dict[int, Group] = {}
    for rows in batches:
        for key, value, _ in rows:
            _, n, total = totals.get(key, (key, 0, 0))
            totals[key] = (key, n + 1, total + value)
    return totals


# Who may talk to it


def test_a_wrong_token_is_refused(driver: Driver) -> None:
    stranger = ServiceClient(msgspec.structs.replace(driver.service.endpoint, token="wrong"))
    with pytest.raises(Fenced, match="token"):
        stranger.begin(BatchTry("run", 0, 1))
    with pytest.raises(Fenced, match="token"):
        stranger.stage_writer(
            StageKey(BatchTry("run", 0, 1), 0, 0, 0), layout_of(counts()).encoded_schema
        ).close()
    stranger.close()


def test_the_socket_is_private_to_the_user(driver: Driver) -> None:
    socket = Path(urlsplit(driver.service.endpoint.uri).path)
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


def test_the_token_is_on_no_command_line(driver: Driver) -> None:
    process = psutil.Process(driver.service.pid)
    token = driver.service.endpoint.token
    assert all(token not in word for word in [*process.cmdline(), *process.environ().values()])


def test_it_does_not_start_without_a_token(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "millpond.service", str(tmp_path / "socket"), str(tmp_path / "rows")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "started by Millpond itself" in ended.stderr


# A process's clients


def strangers(number: int) -> list[Endpoint]:
    """Nobody listens there, which shows with the first call only."""
    return [Endpoint(f"grpc+unix:///nowhere/{i}", "token", "/nowhere") for i in range(number)]


def test_services_do_not_evict_each_other_s_client() -> None:
    one, other = strangers(2)
    first = connect(one)
    assert connect(other) is not first
    assert connect(one) is first


def test_threads_that_connect_at_once_share_a_client() -> None:
    endpoints = strangers(4)
    with ThreadPoolExecutor(max_workers=8) as threads:
        clients = list(threads.map(connect, endpoints * 500))
    assert len(set(map(id, clients))) == len(endpoints)


def test_clients_are_bounded_and_the_one_not_used_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.service.client._CLIENTS_KEPT", 3)
    endpoints = strangers(4)
    clients = [weakref.ref(connect(endpoint)) for endpoint in endpoints[:3]]
    assert connect(endpoints[0]) is clients[0]()
    connect(endpoints[3])
    gc.collect()
    assert [client() is not None for client in clients] == [True, False, True]


def test_rows_on_their_way_keep_their_client_from_being_closed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.service.client._CLIENTS_KEPT", 1)
    at = driver.begin()
    writer = connect(driver.service.endpoint).stage_writer(
        StageKey(at, 0, 0, 0), layout_of(counts()).encoded_schema
    )
    client = weakref.ref(connect(driver.service.endpoint))
    connect(*strangers(1))
    gc.collect()
    assert client() is not None
    writer.close()
    del writer
    gc.collect()
    assert client() is None


# Which rows count


def test_another_try_is_refused_everywhere(driver: Driver) -> None:
    old = driver.begin()
    driver.stage(old, [(1, 1, 0)])
    driver.begin()
    with pytest.raises(Conflict, match="not the running batch"):
        driver.stage(old, [(1, 1, 0)])
    for act in (driver.client.save, driver.client.commit, driver.client.abort):
        with pytest.raises(Conflict, match="not the running batch"):
            act(old)
    with pytest.raises(Conflict, match="not the running batch"):
        driver.seal(old, [])


def test_a_batch_out_of_turn_is_refused(driver: Driver) -> None:
    driver.run([(1, 1, 0)])
    for batch in (0, 2):
        with pytest.raises(Conflict, match=f"batch {batch}.*batch 1"):
            driver.client.begin(BatchTry("run", batch, 9))


def test_only_attempts_with_a_receipt_count(driver: Driver) -> None:
    at = driver.begin()
    driver.stage(at, [(1, 100, 0)], task=0, attempt=0)  # its receipt is lost
    winner = driver.stage(at, [(1, 5, 0), (2, 7, 0)], task=0, attempt=1)
    driver.stage(at, [(3, 9, 0)], task=1, attempt=2)  # a speculative copy that lost
    other = driver.stage(at, [(3, 9, 0)], task=1, attempt=3)
    driver.seal(at, [other, winner])
    assert driver.outputs(at) == [(1, 1, 5), (2, 1, 7), (3, 1, 9)]


def test_an_attempt_that_stages_twice_counts_once(driver: Driver) -> None:
    at = driver.begin()
    driver.stage(at, [(1, 5, 0)])
    driver.seal(at, [driver.stage(at, [(1, 5, 0)])])
    assert driver.outputs(at) == [(1, 1, 5)]


@pytest.mark.parametrize("more", [1, -1])
def test_another_number_of_rows_than_promised_is_a_conflict(driver: Driver, more: int) -> None:
    at = driver.begin()
    receipt = driver.stage(at, [(key, 1, 0) for key in range(50)])
    wrong = msgspec.structs.replace(receipt, staged_rows=tuple(n + more for n in receipt.staged_rows))
    with pytest.raises(Conflict, match="promised"):
        driver.seal(at, [wrong])


def test_rows_that_never_came_are_a_conflict(driver: Driver) -> None:
    at = driver.begin()
    with pytest.raises(Conflict, match="task 4 attempt 2 promised 3 rows and 0 were staged"):
        driver.seal(at, [Receipt(4, 2, 3, 0, (3, 0))])


def test_staged_rows_beyond_the_budget_spill_and_count_all_the_same(tmp_path: Path) -> None:
    rows = [(key, key, 0) for key in range(20_000)]
    with Driver(tmp_path / "state", staging_bytes=1 << 16) as driver:
        directory = Path(urlsplit(driver.service.endpoint.uri).path).parent
        at = driver.begin()
        receipts = [driver.stage(at, rows[i::4], task=i) for i in range(4)]
        spilled = [file for file in directory.rglob("spool-*") if file.is_file()]
        assert sum(file.stat().st_size for file in spilled) > 1 << 16
        driver.seal(at, receipts)
        assert driver.outputs(at) == [(key, 1, key) for key in range(20_000)]
        driver.commit(at)
        assert not [file for file in directory.rglob("spool-*") if file.is_file()]


def test_rows_in_files_count_like_others_and_leave_nothing(driver: Driver) -> None:
    directory = Path(driver.service.endpoint.directory)
    at = driver.begin()
    rows = [(key, key, 0) for key in range(5_000)]
    lost = driver.client.stage_file_writer(StageKey(at, 0, 7, 0), layout_of(counts()).encoded_schema)
    receipts = [driver.stage(at, rows[:10]), driver.stage(at, rows[10:], task=1, in_files=True)]
    driver.seal(at, receipts)
    key = OutputKey(at, 0, 0)
    whole = list(driver.client.outputs(key))
    assert list(driver.client.output_file(key)) == list(driver.client.output_file(key)) == whole
    assert list(driver.client.outputs(key)) == whole
    assert driver.outputs(at) == [(key, 1, key) for key in range(5_000)]
    # One with outputs, and that of a task that never ended.
    assert len(list(directory.iterdir())) == 2
    driver.commit(at)
    assert not list(directory.iterdir())
    with pytest.raises(Conflict, match="not the running batch"):
        lost.close()


def test_a_name_outside_of_the_directory_is_refused(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(Conflict, match="no file of a task"):
        driver.client.stage_file(StagedFile(StageKey(driver.begin(), 0, 0, 0), str(tmp_path / "other")))


def test_without_its_directory_a_service_is_not_there(driver: Driver) -> None:
    at = driver.begin()
    driver.seal(at, [driver.stage(at, [(1, 1, 0)])])
    shutil.rmtree(driver.service.endpoint.directory)
    with pytest.raises(Unavailable, match="in a file"):
        driver.client.stage_file_writer(StageKey(at, 0, 0, 0), layout_of(counts()).encoded_schema)
    with pytest.raises(Unavailable):
        list(driver.client.output_file(OutputKey(at, 0, 0)))


def test_a_budget_is_given_back_by_every_end_of_a_batch(tmp_path: Path) -> None:
    rows = [(key, key, 0) for key in range(1000)]
    with Driver(tmp_path / "state", staging_bytes=1 << 17) as driver:
        directory = Path(urlsplit(driver.service.endpoint.uri).path).parent
        for number in range(12):
            at = driver.begin()
            receipt = driver.stage(at, rows)
            if number % 3:
                driver.seal(at, [receipt])
            if number % 3 == 2:
                driver.commit(at)
        at = driver.begin()
        driver.stage(at, rows)
        assert not [file for file in directory.rglob("spool-*") if file.is_file()]


# What a batch gives


def test_outputs_can_be_read_twice(driver: Driver) -> None:
    at = driver.begin()
    driver.seal(at, [driver.stage(at, [(key, key, 0) for key in range(300)])])
    assert driver.outputs(at) == driver.outputs(at) == [(key, 1, key) for key in range(300)]


def test_outputs_of_another_batch_are_refused(driver: Driver) -> None:
    at = driver.begin()
    driver.seal(at, [driver.stage(at, [(1, 1, 0)])])
    driver.commit(at)
    with pytest.raises(Conflict, match="not the running batch"):
        driver.outputs(at)
    with pytest.raises(Conflict, match="not sealed"):
        driver.outputs(driver.begin())


def test_a_batch_that_is_tried_again_gives_the_same(driver: Driver) -> None:
    driver.run([(1, 10, 0), (2, 20, 0)])
    first = driver.begin()
    driver.seal(first, [driver.stage(first, [(1, 1, 0), (3, 3, 0)])])
    wanted = driver.outputs(first)
    driver.client.save(first)
    driver.client.abort(first)
    second = driver.begin()
    driver.seal(second, [driver.stage(second, [(1, 1, 0), (3, 3, 0)])])
    assert driver.outputs(second) == wanted == [(1, 2, 11), (3, 1, 3)]


def test_a_new_try_aborts_the_one_before(driver: Driver) -> None:
    driver.run([(1, 10, 0)])
    left = driver.begin()
    driver.seal(left, [driver.stage(left, [(1, 1, 0)])])
    assert driver.run([(1, 1, 0)]) == [(1, 2, 11)]


def test_windows_fire_once_across_an_abort(tmp_path: Path) -> None:
    with Driver(tmp_path / "state", spec=counts(WINDOW_US), mode="append") as driver:
        driver.run([(1, 10, 0), (1, 5, WINDOW_US)])
        left = driver.begin()
        driver.seal(left, [driver.stage(left, [(1, 1, WINDOW_US)])], watermark_us=WINDOW_US)
        assert driver.outputs(left) == [(1, 1, 10, 0, WINDOW_US)]
        driver.client.abort(left)
        assert driver.run([(1, 1, WINDOW_US)], watermark_us=WINDOW_US) == [(1, 1, 10, 0, WINDOW_US)]
        assert driver.run([], watermark_us=2 * WINDOW_US) == [(1, 2, 6, WINDOW_US, 2 * WINDOW_US)]


# What remains


def test_a_new_service_goes_on_from_the_commit_record(tmp_path: Path) -> None:
    dice = random.Random(3)
    batches = [random_rows(dice, 400, 150) for _ in range(6)]
    for start in (0, 3):
        with Driver(tmp_path / "state") as driver:
            for rows in batches[start : start + 3]:
                outputs = driver.run(rows)
            left = driver.begin()
            driver.seal(left, [driver.stage(left, [(1, 10**9, 0)])])
            driver.client.save(left)  # saved, but its record is never written
    with Driver(tmp_path / "state", mode="complete") as driver:
        assert driver.run([(0, 0, 0)]) == sorted(expected_totals([*batches, [(0, 0, 0)]]).values())
    assert outputs == sorted(expected_totals(batches)[key] for key in {row[0] for row in batches[-1]})


@pytest.mark.parametrize(
    "settings",
    [
        {"write_buffer_bytes": 1 << 16},
        {"memory_bytes": 1 << 20},
        {"memory_bytes": 1 << 20, "write_buffer_bytes": 1 << 16, "staging_bytes": 1 << 16, "max_runs": 2},
    ],
    ids=["early flush", "eviction", "all small"],
)
def test_small_limits_change_nothing_but_the_cost(tmp_path: Path, settings: dict[str, int]) -> None:
    dice = random.Random(11)
    batches = [random_rows(dice, 12_000, 40_000) for _ in range(8)]
    so_far: list[Rows] = []
    reads = 0
    with Driver(tmp_path / "state", **settings) as driver:
        for rows in batches:
            so_far.append(rows)
            at = driver.begin()
            receipts = [driver.stage(at, rows[i::3], task=i) for i in range(3)]
            driver.seal(at, receipts)
            totals = expected_totals(so_far)
            assert driver.outputs(at) == sorted(totals[key] for key in {row[0] for row in rows})
            [stats] = driver.commit(at).stats
            assert stats.rows == len(totals)
            reads = stats.block_reads
    if "memory_bytes" in settings:
        assert reads > 0, "nothing was evicted: the test does not test what it says"
    with Driver(tmp_path / "state", mode="complete") as driver:
        assert driver.run([(0, 0, 0)]) == sorted(expected_totals([*batches, [(0, 0, 0)]]).values())


def test_disk_and_runs_stay_bounded_over_many_commits(tmp_path: Path) -> None:
    dice = random.Random(5)
    keys = 3000
    everything = [(key, 1, 0) for key in range(keys)]
    after: list[int] = []
    with Driver(tmp_path / "state", max_runs=4) as driver:
        driver.run(everything)
        once = disk_bytes(tmp_path / "state")
        for number in range(60):
            driver.run(random_rows(dice, 1000, keys))
            if number % 10 == 9:
                after.append(disk_bytes(tmp_path / "state"))
        at = driver.begin()
        driver.seal(at, [driver.stage(at, [(0, 0, 0)])])
        [stats] = driver.commit(at).stats
    assert stats.rows == keys
    # A merge is adopted one commit after it is decided, so a few batches' runs may stand above the bound.
    assert stats.run_bytes < 2.5 * stats.live_bytes
    # Two versions and what is being merged, however many batches went before.
    assert max(after) < 6 * once
    assert after[-1] < 1.5 * max(after[:3])


@pytest.mark.parametrize(
    ("settings", "ahead"),
    [({}, 0), ({"write_buffer_bytes": 1}, 1), ({"max_runs": 1, "write_buffer_bytes": 1}, -2)],
    ids=["after a batch", "within the batch that wrote them", "after they were merged"],
)
def test_fired_windows_leave_no_files(tmp_path: Path, settings: dict[str, int], ahead: int) -> None:
    dice = random.Random(6)
    sizes: list[int] = []
    counted: list[int] = []
    with Driver(tmp_path / "state", spec=counts(WINDOW_US), mode="append", **settings) as driver:
        for number in range(30):
            at = driver.begin()
            # Several tasks, so that a small buffer is flushed before the batch ends.
            receipts = [
                driver.stage(at, random_rows(dice, 100, 400, start_us=number * WINDOW_US), task=task)
                for task in range(5)
            ]
            watermark_us = max((number + ahead) * WINDOW_US, 0)
            driver.seal(at, receipts, watermark_us)
            counted.append(len(driver.commit(at, watermark_us).in_flight))
            sizes.append(disk_bytes(tmp_path / "state" / "packs"))
    assert max(sizes[10:]) <= 2 * max(sizes[:10])
    assert max(counted[10:]) <= max(counted[:10]) + 2, "packs that no manifest will name are still spared"


def test_a_damaged_pack_is_named(tmp_path: Path) -> None:
    with Driver(tmp_path / "state") as driver:
        driver.run([(key, 1, 0) for key in range(5000)])
    [pack] = (tmp_path / "state" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    with pytest.raises(CorruptState, match=f"{pack.name}.*restore"), Driver(tmp_path / "state") as driver:
        driver.run([(key, 1, 0) for key in range(5000)])


def test_a_missing_pack_is_named(tmp_path: Path) -> None:
    with Driver(tmp_path / "state") as driver:
        driver.run([(1, 1, 0)])
    [pack] = (tmp_path / "state" / "packs").iterdir()
    pack.unlink()
    with pytest.raises(CorruptState, match=f"{pack.name} is missing"):
        Driver(tmp_path / "state")


# How it ends


def test_it_exits_when_its_driver_is_gone(driver: Driver) -> None:
    process = psutil.Process(driver.service.pid)
    at = driver.begin()
    driver.stage(at, [(1, 1, 0)])
    driver.service._process.stdin.close()  # what the system does when the driver's process ends
    process.wait(timeout=30)


def test_a_killed_service_is_unavailable(driver: Driver) -> None:
    at = driver.begin()
    psutil.Process(driver.service.pid).kill()
    with pytest.raises(Unavailable, match="does not answer"):
        driver.stage(at, [(1, 1, 0)])
    with pytest.raises(Unavailable, match="does not answer"):
        driver.client.save(at)


def test_a_service_that_can_t_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.service.process import ServiceProcess

    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    service = ServiceProcess()
    with pytest.raises(Unavailable, match="did not start"):
        service.wait_ready()
    service.kill()
