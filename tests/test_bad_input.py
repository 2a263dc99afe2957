"""Bad queries, options, locations and files: the error names the thing and says what to do, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millpond as mp
from millpond.errors import CorruptState, InvalidQuery, Unavailable
from millpond.service.messages import SealRequest
from millpond.spark.frame import StreamFrame
from millpond.spark.loop import BatchLoop
from millpond.spark.plan import cut
from millpond.spark.query import MillpondQuery
from millpond.storage import names
from millpond.storage.local import LocalStorage
from millpond.storage.slotlog import SlotLog
from tests.kill_queries import SCHEMA, bids
from tests.service_kit import Driver
from tests.streams import read_stream, write_batches

Query = Callable[[DataFrame], StreamFrame]


def windowed(source: DataFrame) -> StreamFrame:
    return (
        mp.stream(source)
        .withWatermark("ts", "4 seconds")
        .groupBy("bidder", F.window("ts", "10 seconds"))
        .agg(F.count("*").alias("n"), F.sum("price").alias("total"))
    )


class Used:
    """A query that has run two batches and has a third before it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.source = root / "source"
        self.checkpoint = root / "checkpoint"
        self.state = self.checkpoint / "millpond"
        self.out: dict[int, Counter[Any]] = {}

    def start(self, query: Query = windowed, **options: Any) -> MillpondQuery:
        def write(frame: DataFrame, batch_id: int) -> None:
            self.out[batch_id] = Counter(tuple(row) for row in frame.collect())

        return (
            query(read_stream(self.spark, self.source, SCHEMA))
            .writeStream.outputMode("update")
            .foreachBatch(write)
            .options(**{"checkpointLocation": str(self.checkpoint), **options})
            .trigger(availableNow=True)
            .start()
        )

    def run(self, query: Query = windowed, **options: Any) -> None:
        self.start(query, **options).awaitTermination()

    def goes_on(self, wanted: Counter[Any]) -> None:
        """Nothing was lost: the third batch gives what it gives undisturbed."""
        self.out.clear()
        self.run()
        assert self.out == {2: wanted}


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    used = Used(spark, root)
    write_batches(used.source, bids(2))
    used.run()
    write_batches(used.source, bids(3)[2:])
    return root


@pytest.fixture(scope="module")
def third(spark: SparkSession, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Counter[Any]:
    """What the third batch gives undisturbed."""
    root = tmp_path_factory.mktemp("third")
    used = copy_of(template, spark, root)
    used.run()
    assert set(used.out) == {2}
    assert used.out[2]
    return used.out[2]


@pytest.fixture
def used(spark: SparkSession, template: Path, tmp_path: Path) -> Iterator[Used]:
    yield copy_of(template, spark, tmp_path)
    # Whatever was refused, no service stays behind.
    assert not services()


def copy_of(template: Path, spark: SparkSession, root: Path) -> Used:
    shutil.copytree(template / "checkpoint", root / "checkpoint")
    copied = Used(spark, root)
    # Spark's file source remembers its files by path.
    copied.source = template / "source"
    return copied


def services() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "millpond.service" in child.cmdline()]


# The query


def test_what_is_no_streaming_frame(spark: SparkSession) -> None:
    connect = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(InvalidQuery, match=r"Spark Connect.*classic session"):
        mp.stream(connect)
    with pytest.raises(InvalidQuery, match="this one is a batch: read it with readStream"):
        mp.stream(spark.range(3))
    with pytest.raises(InvalidQuery, match="takes a streaming DataFrame, not list"):
        mp.stream([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda s: mp.stream(s).groupBy("bidder").agg(F.expr("sum(make_dt_interval(0, price))")), "interval"),
        (lambda s: mp.stream(s).select("price").subtract(s.sparkSession.range(3)), "except keeps state"),
        (
            lambda s: (
                mp.stream(s).groupBy(F.expr("cast(bidder as string) collate UTF8_LCASE").alias("b")).count()
            ),
            "collation",
        ),
        (lambda s: mp.stream(s).where("price > 3"), "keeps no state"),
    ],
    ids=["aggregate", "operator", "key", "stateless"],
)
def test_what_millpond_does_not_keep_is_named_before_anything_runs(
    spark: SparkSession, template: Path, tmp_path: Path, query: Query, message: str
) -> None:
    fresh = Used(spark, tmp_path)
    fresh.source = template / "source"
    with pytest.raises(InvalidQuery, match=message):
        fresh.start(query)
    assert not fresh.checkpoint.exists()
    assert not services()


def two_streams(spark: SparkSession) -> list[DataFrame]:
    """Streams with numbers, the same as text, and times."""
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    columns = [
        "timestamp as ts",
        "value as n",
        "cast(value as int) as small",
        "string(value) as t",
        "date(timestamp) as d",
    ]
    one = rows.selectExpr(*columns, "window(timestamp, '10 seconds') as w")
    return [one, one.toDF(*(f"r{name}" for name in one.columns))]


NEAR = "rts between ts - interval 10 seconds and ts"
UNLIKE = {
    "text and a number": ("t = rn", "t is string and rn is bigint"),
    "a number and text": ("rt = n", "rt is string and n is bigint"),
    "text and a date": ("t = rd", "t is string and rd is date"),
    "null is a key": ("t <=> rn", "t is string and rn is bigint"),
}


@pytest.mark.parametrize("bound", [NEAR, "w = rw"], ids=["interval", "window"])
@pytest.mark.parametrize("case", UNLIKE)
def test_keys_of_a_join_that_are_not_of_one_type(spark: SparkSession, case: str, bound: str) -> None:
    condition, message = UNLIKE[case]
    left, right = two_streams(spark)
    for how in ("inner", "left_outer"):
        with pytest.raises(InvalidQuery, match=rf"different types: {message}\. Cast one"):
            cut(left.join(right, F.expr(f"{condition} and {bound}"), how), "append")


def test_keys_of_a_lookback_that_are_not_of_one_type(spark: SparkSession) -> None:
    left, _ = two_streams(spark)
    past = left.select("ts", F.col("t").alias("n"))
    found = mp.stream(left.drop("w")).lookback(past, on="n", between=("10 seconds", "0 seconds"))
    with pytest.raises(InvalidQuery, match=r"different types: .* is string"):
        cut(found.unwrapped, "append")


def test_a_key_may_be_wider_than_the_other_or_cast_by_the_query(spark: SparkSession) -> None:
    left, right = two_streams(spark)
    for condition in (
        "small = rn",
        "n = cast(rt as bigint)",
        "n = cast(cast(rt as int) as bigint)",
        "d = rts",
    ):
        for bound in (NEAR, "w = rw"):
            assert cut(left.join(right, F.expr(f"{condition} and {bound}")), "append").operators
    assert cut(left.join(right, [F.col("t").cast("long") == F.col("rn")]), "append").operators


def timed(source: DataFrame) -> StreamFrame:
    return mp.stream(source).withWatermark("ts", "4 seconds")


def kept(number: int) -> list[Any]:
    """The query's two aggregates, or a third beside them."""
    return [F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price")][:number]


CHANGES: dict[str, tuple[Query, str]] = {
    "another key": (
        lambda s: timed(s).groupBy("price", F.window("ts", "10 seconds")).agg(*kept(2)),
        "key 'bidder' bigint is now 'price' bigint",
    ),
    "one more key": (
        lambda s: timed(s).groupBy("bidder", "price", F.window("ts", "10 seconds")).agg(*kept(2)),
        "key 'price' bigint is new",
    ),
    "a key of another type": (
        lambda s: (
            timed(s.withColumn("bidder", F.col("bidder").cast("string")))
            .groupBy("bidder", F.window("ts", "10 seconds"))
            .agg(*kept(2))
        ),
        "key 'bidder' was bigint, is string",
    ),
    "one more aggregate": (
        lambda s: timed(s).groupBy("bidder", F.window("ts", "10 seconds")).agg(*kept(3)),
        r"aggregate 3, max\(price\).*, is new",
    ),
    "one aggregate less": (
        lambda s: timed(s).groupBy("bidder", F.window("ts", "10 seconds")).agg(*kept(1)),
        r"aggregate 2, sum\(price\).*, is gone",
    ),
    "another aggregate": (
        lambda s: (
            timed(s)
            .groupBy("bidder", F.window("ts", "10 seconds"))
            .agg(*kept(1), F.min("price").alias("total"))
        ),
        r"aggregate 2 was sum\(price\).*, is min\(price\)",
    ),
    "an aggregate of another type": (
        lambda s: (
            timed(s.withColumn("price", F.col("price").cast("double")))
            .groupBy("bidder", F.window("ts", "10 seconds"))
            .agg(*kept(2))
        ),
        r"aggregate 2 .*sum\(price\)",
    ),
    "another window": (
        lambda s: timed(s).groupBy("bidder", F.window("ts", "20 seconds")).agg(*kept(2)),
        "windows 'window' were 10 seconds long, every 10 seconds, windows 'window' are 20 seconds long",
    ),
    "another slide": (
        lambda s: timed(s).groupBy("bidder", F.window("ts", "10 seconds", "5 seconds")).agg(*kept(2)),
        "every 5 seconds",
    ),
    "no window": (
        lambda s: timed(s).groupBy("bidder").agg(*kept(2)),
        "windows 'window' were 10 seconds long.*groups never expire",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_query_on_an_old_checkpoint_says_what_changed(used: Used, change: str) -> None:
    query, message = CHANGES[change]
    before = SlotLog(LocalStorage(used.state)).head()
    with pytest.raises(InvalidQuery, match=f"differs from the one whose state.*{message}.*new checkpoint"):
        used.start(query)
    # It did not even take the log: a driver that runs the right query would not have been stopped.
    assert SlotLog(LocalStorage(used.state)).head() == before


def test_new_names_of_results_are_no_change(used: Used, third: Counter[Any]) -> None:
    used.run(lambda s: windowed(s).withColumnRenamed("n", "bids").where("bids > 0"))
    assert used.out == {2: third}


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"millpond.memory.byte": "1g"},
            "there is no setting 'millpond.memory.byte'; there are millpond.memory",
        ),
        ({"millpond.memory.bytes": "much"}, "'much', but millpond.memory.bytes must be a size"),
        ({"millpond.compaction.maxRuns": "1"}, "maxRuns must be a whole number of at least 2"),
        ({"shards": "none"}, "option shards = 'none': it is a number from 1 to 4096"),
        ({"shards": "0"}, "option shards = '0'"),
        ({"shards": "4097"}, "option shards = '4097'"),
        ({"shards": "3"}, "option shards = 3: the state has 2 shards, and their number can't be changed yet"),
        ({"stateLocation": "s3://bucket/state"}, "'s3://bucket/state' is not a local directory"),
        ({"stateLocation": " "}, "the state location is empty"),
    ],
)
def test_bad_options(used: Used, third: Counter[Any], options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidQuery, match=message):
        used.start(**options)


def test_an_unknown_setting_in_spark_s_configuration_has_the_same_checks(used: Used) -> None:
    used.spark.conf.set("spark.millpond.versions.keep", "zero")
    try:
        with pytest.raises(
            InvalidQuery, match=r"Spark configuration 'spark.millpond.versions.keep' is 'zero'"
        ):
            used.start()
    finally:
        used.spark.conf.unset("spark.millpond.versions.keep")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.format("parquet").start(), "checkpointLocation must be specified"),
        (lambda w: w.format("parquet").option("checkpointLocation", "DIR").start(), "needs a path"),
        (
            lambda w: (
                w.outputMode("update").option("checkpointLocation", "DIR").format("json").start("/nowhere")
            ),
            "takes output mode append, not update: use foreachBatch",
        ),
        (lambda w: w.format("memory").start(), "needs .queryName"),
        (lambda w: w.trigger(continuous="1 second"), "runs micro-batches"),
        (lambda w: w.trigger(realTime="1 second"), "runs micro-batches"),
        (lambda w: w.outputMode("upsert"), "append, update or complete"),
        (lambda w: w.foreach(print), "use foreachBatch"),
        (lambda w: w.toTable("t"), "use foreachBatch"),
    ],
)
def test_bad_writers(
    spark: SparkSession,
    template: Path,
    tmp_path: Path,
    call: Callable[[Any], Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = windowed(read_stream(spark, template / "source", SCHEMA)).writeStream
    checkpoint = writer.option
    monkeypatch.setattr(
        writer,
        "option",
        lambda key, value: checkpoint(key, str(tmp_path / value) if value == "DIR" else value),
    )
    with pytest.raises(InvalidQuery, match=message):
        call(writer)
    assert not services()


# Locations


def move_aside(used: Used) -> Path:
    return used.state.rename(used.root / "aside")


@pytest.mark.parametrize("leave", ["nothing", "an empty directory", "somebody else's files"])
def test_a_used_checkpoint_without_its_state(used: Used, third: Counter[Any], leave: str) -> None:
    aside = move_aside(used)
    if leave != "nothing":
        used.state.mkdir()
    if leave == "somebody else's files":
        (used.state / "notes.txt").write_text("mine")
        (used.state / "log").mkdir()
        (used.state / "log" / "2024-01-01.log").write_text("started")
    with pytest.raises(
        CorruptState, match=r"batches up to 1 but the state directory .* is empty: restore it"
    ):
        used.start()
    if leave == "somebody else's files":
        assert (used.state / "notes.txt").read_text() == "mine"
        shutil.rmtree(used.state)
    elif leave != "nothing":
        shutil.rmtree(used.state)
    aside.rename(used.state)
    used.goes_on(third)


def test_a_new_checkpoint_beside_used_state(used: Used, third: Counter[Any]) -> None:
    with pytest.raises(
        InvalidQuery, match=r"the checkpoint is new, but the state directory .* up to batch 1"
    ):
        used.start(checkpointLocation=str(used.root / "new"), stateLocation=str(used.state))
    used.goes_on(third)


def test_the_state_of_another_query(
    used: Used, third: Counter[Any], spark: SparkSession, template: Path
) -> None:
    other = Used(spark, used.root / "other")
    other.source = template / "source"
    other.run()
    with pytest.raises(
        InvalidQuery, match=r"holds the state of query .* but the checkpoint belongs to query"
    ):
        used.start(stateLocation=str(other.state))
    used.goes_on(third)


def test_state_older_than_its_checkpoint(used: Used, third: Counter[Any]) -> None:
    older = used.root / "older"
    shutil.copytree(used.state, older)
    used.goes_on(third)
    shutil.rmtree(used.state)
    older.rename(used.state)
    with pytest.raises(
        CorruptState, match=r"batches up to 2 but the state directory .* only up to 1: restore"
    ):
        used.start()


def test_a_checkpoint_older_than_its_state(used: Used) -> None:
    for directory in ("commits", "offsets"):
        shutil.rmtree(used.checkpoint / directory)
    with pytest.raises(
        CorruptState, match="up to 1 but the checkpoint has no committed batch: restore the newer"
    ):
        used.start()


def test_a_checkpoint_without_metadata(used: Used) -> None:
    (used.checkpoint / "metadata").unlink()
    with pytest.raises(InvalidQuery, match="committed batches but no metadata file"):
        used.start()


def test_a_file_where_the_state_should_be(used: Used, third: Counter[Any]) -> None:
    (used.root / "file").write_text("hello")
    with pytest.raises(InvalidQuery, match="stateLocation"):
        used.start(stateLocation=str(used.root / "file"))
    used.goes_on(third)


# Files


def newest_files(state: Path) -> dict[str, Path]:
    """One file of each kind that the next start reads."""
    commit = SlotLog(LocalStorage(state)).head().newest
    assert commit is not None
    packs = sorted((state / "packs").iterdir(), key=lambda pack: pack.stat().st_size)
    return {
        "pack": packs[-1],
        "manifest": state / commit.manifest,
        "commit record": state / names.log_name(commit.slot),
        "owner record": state / names.log_name(commit.owner_slot),
    }


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x20]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped byte": flip,
    "its first half": lambda data: data[: len(data) // 2],
    "nothing": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["pack", "manifest", "commit record", "owner record"])
def test_a_damaged_file_is_named(used: Used, kind: str, damage: str) -> None:
    file = newest_files(used.state)[kind]
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    # A flipped byte in a version's number looks like a newer version.
    with pytest.raises(CorruptState, match=f"{file.name}.*(restore|upgrade)"):
        used.run()
    assert 2 not in used.out


@pytest.mark.parametrize("kind", ["pack", "manifest", "owner record"])
def test_a_missing_file_is_named(used: Used, third: Counter[Any], kind: str) -> None:
    file = newest_files(used.state)[kind]
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(CorruptState, match=f"{file.name} is missing.*restore"):
        used.run()
    file.write_bytes(data)
    used.goes_on(third)


FUTURES: dict[str, Callable[[bytes], bytes]] = {
    "pack": lambda data: data[:8] + (99).to_bytes(4, "little") + data[12:],
    "manifest": lambda data: data[:8] + (99).to_bytes(4, "little") + data[12:],
    "commit record": lambda data: data.replace(b'{"millpond":1,', b'{"millpond":99,'),
}


@pytest.mark.parametrize("kind", FUTURES)
def test_a_format_from_the_future(used: Used, third: Counter[Any], kind: str) -> None:
    file = newest_files(used.state)[kind]
    data = file.read_bytes()
    file.write_bytes(FUTURES[kind](data))
    with pytest.raises(CorruptState, match=f"{file.name}.*99.*upgrade Millpond"):
        used.run()
    file.write_bytes(data)
    used.goes_on(third)


# The machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two megabytes; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"can't mount a small disk here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_a_full_disk_is_no_loss(small_disk: Path) -> None:
    rows = [(key, 1, 0) for key in range(2000)]
    with Driver(small_disk / "state") as driver:
        driver.run(rows)
        ballast = fill(small_disk)
        at = driver.begin()
        driver.seal(at, [driver.stage(at, rows)])
        with pytest.raises(Unavailable, match="No space left"):
            driver.client.save(at)
        ballast.unlink()
        assert driver.run(rows) == [(key, 2, 2) for key in range(2000)]
    with Driver(small_disk / "state") as driver:
        assert driver.run(rows) == [(key, 3, 3) for key in range(2000)]


def test_a_query_on_a_full_disk_says_so_and_goes_on_later(
    used: Used, third: Counter[Any], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(used.state, small_disk / "state")
    options = {"stateLocation": str(small_disk / "state"), "millpond.batch.maxTries": 2}
    seal = BatchLoop._seal

    def filling(loop: BatchLoop, request: SealRequest) -> Any:
        fill(small_disk)
        return seal(loop, request)

    with monkeypatch.context() as patch:
        patch.setattr(BatchLoop, "_seal", filling)
        with pytest.raises(Unavailable, match=r"failed 2 times.*No space left.*nothing is lost"):
            used.run(**options)
    (small_disk / "ballast").unlink()
    used.out.clear()
    used.run(**options)
    assert used.out == {2: third}


def test_doctor_without_java(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    ended = subprocess.run(
        [sys.executable, "-c", "from millpond.cli import main; main()", "doctor"],
        env=environment | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "openjdk-17" in ended.stdout + ended.stderr
