"""What can't be cut is refused by name, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import InvalidQuery
from millpond.semantics.operator import OutputMode
from millpond.spark.plan import cut
from tests.plan_bench import Bids


@pytest.fixture(scope="module")
def bids(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bids]:
    yield Bids(spark, tmp_path_factory.mktemp("refusals"))


def _timed(df: DataFrame) -> DataFrame:
    return df.withWatermark("ts", "1 second")


def _with_state(df: DataFrame) -> DataFrame:
    return (
        _timed(df)
        .groupBy("bidder")
        .applyInPandasWithState(lambda *_: iter(()), "n bigint", "n bigint", "append", "NoTimeout")
    )


OPERATORS: dict[str, tuple[OutputMode, Callable[[DataFrame], DataFrame]]] = {
    "limit": ("append", lambda df: df.limit(3)),
    "except": ("append", lambda df: df.select("price").subtract(df.sparkSession.range(3))),
    "applyInPandasWithState": ("append", _with_state),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_stateful_operator_alone(bids: Bids, name: str) -> None:
    mode, query = OPERATORS[name]
    with pytest.raises(InvalidQuery, match=f"^{name} keeps state"):
        cut(query(bids.stream), mode)


def test_a_stateful_operator_below_an_aggregate(bids: Bids) -> None:
    below = OPERATORS["limit"][1](_timed(bids.stream))
    with pytest.raises(InvalidQuery, match=r"^limit keeps state"):
        cut(below.groupBy(F.window("ts", "5 seconds")).count(), "append")


def test_a_stateful_operator_above_an_aggregate(bids: Bids) -> None:
    counts = _timed(bids.stream).groupBy(F.window("ts", "5 seconds")).count()
    with pytest.raises(InvalidQuery, match=r"^limit keeps state"):
        cut(counts.limit(3), "append")


def test_duplicates_within_a_watermark_that_follows_windows(bids: Bids) -> None:
    counts = _timed(bids.stream).groupBy(F.window("ts", "5 seconds")).count()
    with pytest.raises(InvalidQuery, match="event time is the window window"):
        cut(counts.dropDuplicatesWithinWatermark(["count"]), "append")


def test_duplicates_by_a_collation(bids: Bids) -> None:
    text = bids.stream.select(F.expr("cast(bidder as string) collate UTF8_LCASE").alias("b"))
    with pytest.raises(InvalidQuery, match="collation"):
        cut(text.dropDuplicates(["b"]), "append")


def test_an_aggregate_beside_another_stream(bids: Bids) -> None:
    counts = _timed(bids.stream).groupBy(F.window("ts", "5 seconds")).count().select("count")
    with pytest.raises(InvalidQuery, match="one side of a union"):
        cut(counts.union(_timed(bids.stream).select("price")), "append")


def test_a_query_without_state(bids: Bids) -> None:
    with pytest.raises(InvalidQuery, match=r"keeps no state.*Spark's own writeStream"):
        cut(bids.stream.where("price > 3"), "append")


def test_a_batch_frame(bids: Bids) -> None:
    with pytest.raises(InvalidQuery, match="not streaming"):
        cut(bids.table.groupBy("bidder").count(), "append")


def test_sums_of_intervals(bids: Bids) -> None:
    with pytest.raises(InvalidQuery, match="adds up values of the type interval"):
        cut(bids.stream.groupBy("bidder").agg(F.expr("sum(make_dt_interval(0, items))")), "update")


def test_session_windows_beside_another_time(bids: Bids) -> None:
    frame = _timed(bids.stream).groupBy(F.session_window("ts", "3 seconds"), "ts").count()
    with pytest.raises(
        InvalidQuery, match="aggregate-0: the query groups by session_window and by another time"
    ):
        cut(frame, "append")


def test_collations_that_take_different_bytes_for_the_same(bids: Bids) -> None:
    folded = F.expr("name collate UTF8_LCASE").alias("n")
    with pytest.raises(InvalidQuery, match="collation"):
        cut(bids.stream.groupBy(folded).count(), "update")
    with pytest.raises(InvalidQuery, match=r"min\(.*compares strings by a collation"):
        cut(bids.stream.groupBy("bidder").agg(F.min(F.expr("name collate UNICODE"))), "update")


def test_a_type_that_python_does_not_get(bids: Bids) -> None:
    with pytest.raises(InvalidQuery, match=r"the key .* has the type interval year to month"):
        cut(bids.stream.groupBy(F.expr("make_ym_interval(items)")).count(), "update")


@pytest.mark.parametrize(
    ("mode", "query"),
    [
        ("append", lambda df: df.groupBy("bidder").count()),
        ("complete", lambda df: df.select("bidder")),
        ("append", lambda df: df.groupBy("bidder").agg(F.count_distinct("price"))),
        ("update", lambda df: df.agg(F.count_distinct("price").alias("n")).orderBy("n")),
        ("update", lambda df: df.groupBy("bidder").count().orderBy("count")),
        ("update", lambda df: _timed(df).groupBy(F.session_window("ts", "3 seconds"), "bidder").count()),
        ("append", lambda df: df.groupBy(F.session_window("ts", "3 seconds"), "bidder").count()),
    ],
)
def test_what_spark_refuses_is_refused_in_its_words(
    bids: Bids, mode: OutputMode, query: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(InvalidQuery) as refused:
        cut(query(bids.stream), mode)
    reason = refused.value.__cause__
    assert isinstance(reason, AnalysisException)
    assert reason.getCondition()
    assert str(reason.getMessage()) in str(refused.value)


def test_a_window_that_nothing_ends(bids: Bids) -> None:
    for window in (F.window("ts", "5 seconds"), F.session_window("ts", "5 seconds")):
        for aggregate in (F.count("*"), F.median("price")):
            with pytest.raises(
                InvalidQuery, match=r"To do: call withWatermark\(\.\.\.\).*outputMode\('update'\)"
            ):
                cut(bids.stream.groupBy(window).agg(aggregate), "append")


def test_duplicates_within_no_watermark(bids: Bids) -> None:
    with pytest.raises(InvalidQuery, match="To do: call withWatermark"):
        cut(bids.stream.dropDuplicatesWithinWatermark(["bidder"]), "append")


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _applied(df: DataFrame, window: Column, *, arrow: bool = False) -> DataFrame:
    groups = df.groupBy("bidder", window.alias("w"))
    names = "bidder bigint"
    return groups.applyInArrow(_same, names) if arrow else groups.applyInPandas(_same, names)  # type: ignore[arg-type]


@pytest.mark.parametrize("arrow", [False, True], ids=["pandas", "arrow"])
def test_functions_of_windows_that_spark_would_give_the_rows_of_a_batch(bids: Bids, arrow: bool) -> None:
    window, session = F.window("ts", "5 seconds"), F.session_window("ts", "5 seconds")
    needs = r"applyIn\w+ needs all rows of w, .*use outputMode\('append'\) and withWatermark"
    with pytest.raises(InvalidQuery, match=needs):
        cut(_applied(bids.stream, window, arrow=arrow), "append")
    with pytest.raises(InvalidQuery, match=needs):
        cut(_applied(_timed(bids.stream), window, arrow=arrow), "update")
    with pytest.raises(InvalidQuery, match=needs):
        cut(_applied(bids.stream, session, arrow=arrow), "append")
    with pytest.raises(InvalidQuery, match=needs):
        cut(_applied(_timed(bids.stream), session, arrow=arrow), "update")
    unwatched = bids.stream.dropDuplicates(["bidder"])
    with pytest.raises(InvalidQuery, match=needs):
        cut(_applied(unwatched, window, arrow=arrow), "append")
