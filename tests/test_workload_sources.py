"""The generators as sources of a real Spark: batches, streams, restarts and options."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import PySparkException

import millpond as mp
from millpond._kernel import Nexmark as Kernel
from millpond.workloads import nexmark
from millpond.workloads.sources import SOURCES, Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    mp.register(spark)
    return spark


def options(events: int, **more: object) -> dict[str, Any]:
    return {"totalEvents": events, **more}


def started(frame: DataFrame, directory: Path, rows: list[tuple[int, list[Any]]]) -> Any:
    """A query that gathers (batch id, sorted rows)."""

    def take(batch: DataFrame, batch_id: int) -> None:
        rows.append((batch_id, sorted(map(tuple, batch.collect()), key=repr)))

    return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(directory / "checkpoint"))


def test_a_batch_has_the_events_that_the_generator_makes(registered: SparkSession) -> None:
    frame = registered.read.format("nexmark").options(**options(20_000, partitions=3, firstEvent=7)).load()
    assert frame.rdd.getNumPartitions() == 3
    assert frame.toArrow().to_pylist() == Kernel().batch(7, 20_000).to_pylist()


def test_views_have_the_columns_of_their_kind(registered: SparkSession) -> None:
    nexmark.register_views(registered.read.format("nexmark").options(**options(5_000)).load())
    counts = registered.sql(
        "SELECT (SELECT count(*) FROM persons) p, (SELECT count(*) FROM auctions) a, (SELECT count(*) FROM bids) b"
    )
    assert tuple(counts.first()) == (100, 300, 4_600)
    assert registered.table("bids").columns == ["auction", "bidder", "price", "ts", "extra"]


def test_a_stream_is_cut_into_batches_and_a_restart_replays_the_same_rows(
    registered: SparkSession, tmp_path: Path
) -> None:
    settings = options(250, eventsPerBatch=100, partitions=2, outOfOrderGroup=20, kinds="bid", columns="bid")
    bids = nexmark.bids(registered.readStream.format("nexmark").options(**settings).load())
    rows: list[tuple[int, list[Any]]] = []
    writer = started(bids.select("auction", "bidder", "price"), tmp_path, rows).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert [batch_id for batch_id, _ in rows] == [0, 1, 2]
    # The last batch was not committed: it runs again, from the offsets alone.
    for name in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        name.unlink()
    writer.start().awaitTermination()
    assert rows[3:] == rows[2:3]
    expected = Kernel(out_of_order_group=20).batch(0, 250, kinds=["bid"])["bid"].to_pylist()
    held = sorted((bid["auction"], bid["bidder"], bid["price"]) for bid in expected)
    assert sorted(row for _, batch in rows[:3] for row in batch) == held


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("linear-road", {"rateStddev": 150}),
        ("cluster-monitoring", {"rateStddev": 150}),
        ("ysb", {"rateStddev": 150}),
        ("readwrite", {"rateStddev": 150}),
        ("logistics", {"repeatPercent": 30}),
    ],
)
def test_seeded_sources_stream_and_read_the_same_rows(
    registered: SparkSession, tmp_path: Path, name: str, own: dict[str, int]
) -> None:
    settings = options(300, eventsPerBatch=200, seed=5, rate=1_500, **own)
    rows: list[tuple[int, list[Any]]] = []
    stream = registered.readStream.format(name).options(**settings).load()
    started(stream, tmp_path, rows).trigger(availableNow=True).start().awaitTermination()
    assert [len(batch) for _, batch in rows] == [200, 100]
    del settings["eventsPerBatch"]
    whole = registered.read.format(name).options(**settings).load().collect()
    # By their text: a column may be null in one row and not in the next.
    assert sorted((row for _, batch in rows for row in batch), key=repr) == sorted(
        map(tuple, whole), key=repr
    )


@pytest.mark.parametrize("name", ["nexmark", "ysb"])
def test_json_lines_parse_to_the_columns(registered: SparkSession, name: str) -> None:
    from pyspark.sql import functions as F

    columns = registered.read.format(name).options(**options(500)).load()
    lines = registered.read.format(name).options(**options(500, format="json")).load()
    parsed = lines.select(F.from_json("value", columns.schema).alias("e")).select("e.*")
    assert lines.columns == ["value"]
    assert parsed.toArrow().to_pylist() == columns.toArrow().to_pylist()


def test_millpond_keeps_state_over_a_generated_stream(registered: SparkSession, tmp_path: Path) -> None:
    settings = options(4_000, eventsPerBatch=1_500, kinds="bid", columns="bid")
    bids = nexmark.bids(registered.readStream.format("nexmark").options(**settings).load())
    rows: list[tuple[int, list[Any]]] = []
    counts = mp.stream(bids).groupBy("bidder").count()
    writer = started(counts, tmp_path, rows).outputMode("update").trigger(availableNow=True)
    writer.start().awaitTermination()
    bidders = [bid["bidder"] for bid in Kernel().batch(0, 4_000, kinds=["bid"])["bid"].to_pylist()]
    assert dict(pair for _, batch in rows for pair in batch) == Counter(bidders)


def test_a_live_stream_holds_back_what_is_not_due(registered: SparkSession, tmp_path: Path) -> None:
    """It began two seconds ago by its option, at 1,000 events a second."""
    before = time.time()
    settings = {"rate": 1_000, "live": True, "startedAtMs": round(before * 1_000) - 2_000}
    rows: list[tuple[int, list[Any]]] = []
    stream = registered.readStream.format("cluster-monitoring").options(**settings).load().select("job")
    started(stream, tmp_path, rows).trigger(availableNow=True).start().awaitTermination()
    read = sum(len(batch) for _, batch in rows)
    assert 2_000 <= read <= (2 + time.time() - before) * 1_000 + 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"totalEvents": 10, "event": 1}, "has no option 'event'; it has activePeople, auctionBytes"),
        ({"totalEvents": 10, "rate": "fast"}, "Expected `int`.*rate"),
        ({"totalEvents": 10, "hotBidderRatio": 0}, "hot_bidder_ratio must be from 1"),
        ({"totalEvents": -1}, "totalEvents must be at least 0"),
        ({}, "set the option totalEvents"),
        ({"totalEvents": 10, "startedAtMs": 5}, "set live to true"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(
    registered: SparkSession, given: dict[str, object], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        registered.read.format("nexmark").options(**given).load().count()


def test_available_now_of_an_endless_stream_is_refused(registered: SparkSession, tmp_path: Path) -> None:
    stream = registered.readStream.format("nexmark").load()
    query = started(stream, tmp_path, []).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="set the option totalEvents"):
        query.awaitTermination()


def written(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.short_name)
def test_the_readme_has_every_option_of_a_source(source: Any) -> None:
    lines = (Path(__file__).parents[1] / "README.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| `{source.short_name}` |"))
    for field in msgspec.structs.fields(source.settings_type):
        assert f"`{field.encode_name}` {written(field.default)}" in row
    (common,) = (line for line in lines if line.startswith("| all | `firstEvent`"))
    assert all(f"`{field.encode_name}`" in common for field in msgspec.structs.fields(Reading))
