"""The queries of the papers that are not NEXMark's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from millpond.workloads.linear_road import SEGMENT_FEET
from millpond.workloads.queries.query import PaperQuery, Windows
from millpond.workloads.queries.times import sliding, timed, tumbling
from millpond.workloads.ysb import Ysb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["PAPERS"]

KEPT_SECONDS = 60 * 24 * 60 * 60
"""How long orders are remembered: 60 days."""


def _readwrite(streams: Mapping[str, DataFrame], _: Windows) -> DataFrame:
    # The records have no order, so the padding that stays is the largest, not the last.
    return (
        streams["records"].groupBy("id").agg(F.count("*").alias("count"), F.max("padding").alias("padding"))
    )


def _segment() -> Column:
    return F.expr(f"position div {SEGMENT_FEET}").alias("segment")


def _lr2(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    # Spark takes one time column a side, so the times themselves stay behind.
    window = sliding(windows, seconds=30, slide=1).alias("window")
    reports = timed(streams["positions"]).select(
        "vehicle", window, "highway", "direction", _segment(), "speed"
    )
    others = reports.select("vehicle", "window", F.col("segment").alias("other_segment"))
    return reports.join(others, ["vehicle", "window"])


def _lr4(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    window = sliding(windows, seconds=20, slide=5)
    reports = timed(streams["positions"])
    return reports.groupBy(window, "highway", "direction", _segment()).agg(F.count("*").alias("vehicles"))


def _cm1(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    window = sliding(windows, seconds=60, slide=10)
    totals = timed(streams["tasks"]).groupBy(window, "category").agg(F.sum("cpu").alias("cpu"))
    return totals.orderBy("cpu", "category", "window")


def _cm2(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    window = sliding(windows, seconds=30, slide=1)
    scheduled = timed(streams["tasks"]).where("event_type = 1")
    return scheduled.groupBy(window, "job").agg(F.avg("cpu").alias("cpu"))


def _logistics(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    kept = f"{windows.seconds or KEPT_SECONDS} seconds"
    # The delay is how long Spark remembers which orders it has seen.
    orders = streams["orders"].withWatermark("ts", kept).dropDuplicatesWithinWatermark(["order_id"])
    shipments = timed(
        streams["shipments"].select(
            F.col("order_id").alias("shipped_order"), "status", "depot", F.col("ts").alias("updated_at")
        ),
        "updated_at",
    )
    matches = (
        (F.col("order_id") == F.col("shipped_order"))
        & (F.col("updated_at") >= F.col("ts"))
        & (F.col("updated_at") <= F.col("ts") + F.expr(f"INTERVAL {kept}"))
    )
    return orders.join(shipments, matches).drop("shipped_order")


def _ysb(streams: Mapping[str, DataFrame], windows: Windows) -> DataFrame:
    views = timed(streams["ads"], "event_time").where("event_type = 'view'").select("ad_id", "event_time")
    window = tumbling(windows, seconds=10, column="event_time")
    with_campaign = views.join(streams["campaigns"], "ad_id")
    return with_campaign.groupBy(window, "campaign_id").agg(F.count("*").alias("views"))


def _campaigns(seed: int) -> pa.Table:
    return Ysb(seed=seed).campaign_of_ads()


PAPERS: tuple[PaperQuery, ...] = (
    PaperQuery(
        name="readwrite",
        title="Records counted by id, with a padding that is kept beside the count",
        origin="APSys '18",
        pattern="RMW",
        streams=("records",),
        mode="update",
        plain=_readwrite,
        keys=("id",),
        filled="id",
    ),
    PaperQuery(
        name="lr2",
        title="Each report of a vehicle with all of its reports in windows of 30 s every 1 s",
        origin="MiSA, Linear Road",
        pattern="join",
        streams=("positions",),
        mode="append",
        window_seconds=30,
        lengths=("window", "slide"),
        thinned=20,
        plain=_lr2,
        columns={"positions": ("ts", "vehicle", "speed", "highway", "direction", "position")},
    ),
    PaperQuery(
        name="lr4",
        title="Vehicles per highway, direction and segment in windows of 20 s every 5 s",
        origin="MiSA, Linear Road",
        pattern="RMW",
        streams=("positions",),
        mode="append",
        window_seconds=20,
        lengths=("window", "slide"),
        plain=_lr4,
        columns={"positions": ("ts", "highway", "direction", "position")},
    ),
    PaperQuery(
        name="cm1",
        title="Sum of cpu per category in windows of 60 s every 10 s, ordered by the sum",
        origin="MiSA",
        pattern="RMW",
        streams=("tasks",),
        mode="complete",
        window_seconds=60,
        lengths=("window", "slide"),
        plain=_cm1,
        keys=("window.start", "window.end", "category"),
        columns={"tasks": ("ts", "category", "cpu")},
    ),
    PaperQuery(
        name="cm2",
        title="Average cpu of each job's scheduled tasks in windows of 30 s every 1 s",
        origin="MiSA",
        pattern="RMW",
        streams=("tasks",),
        mode="append",
        window_seconds=30,
        lengths=("window", "slide"),
        plain=_cm2,
        columns={"tasks": ("ts", "job", "event_type", "cpu")},
    ),
    PaperQuery(
        name="logistics",
        title="Orders, each taken once, with the shipping updates of the 60 days after them",
        origin="Flink 2.0",
        pattern="RMW + join",
        streams=("orders", "shipments"),
        mode="append",
        lengths=("window",),
        plain=_logistics,
    ),
    PaperQuery(
        name="ysb",
        title="Views of each campaign's ads in windows of 10 s; the campaigns are a table, not a server's answers",
        origin="Keyed Prefetching, Yahoo",
        pattern="enrichment",
        streams=("ads",),
        mode="append",
        window_seconds=10,
        lengths=("window", "slide"),
        plain=_ysb,
        columns={"ads": ("ad_id", "event_type", "event_time")},
        tables={"campaigns": _campaigns},
    ),
)
