"""Every query of the catalogue runs as a stream in Spark and gives what it should; Millpond gives the same or says
by name what it can't take yet."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millpond.errors import InvalidQuery
from millpond.workloads.queries.catalog import QUERIES
from millpond.workloads.queries.query import PaperQuery, Windows
from tests import query_answers
from tests.oracle_run import configured
from tests.query_streams import Streams, closed, in_order
from tests.streams import write_batches

NO_STATE = {"q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"}
"""Spark runs them alone; nothing is there for Millpond to keep."""

BATCH_HAS_NO_FORM = {"logistics"}  # dropDuplicatesWithinWatermark is for streams alone

ANSWERS: dict[str, Callable[[query_answers.Rows], list[Any]]] = {
    "q5": query_answers.q5,
    "q7": query_answers.q7,
    "q9": query_answers.q9,
    "q11": query_answers.q11,
    "q12": query_answers.q12,
    "q18": query_answers.q18,
    "q19": query_answers.q19,
    "readwrite": query_answers.readwrite,
    "lr4": query_answers.lr4,
    "cm1": query_answers.cm1,
    "logistics": query_answers.logistics,
}


@pytest.fixture(scope="module")
def streams(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    # For so few rows, compiling a query costs more than running it.
    interpreted = {
        "spark__sql__codegen__wholeStage": "false",
        "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    }
    with configured(spark, **interpreted):
        yield Streams.write(spark, tmp_path_factory.mktemp("queries"))


class Answers:
    """Spark's answers as streams, each found once, several at a time."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._pool = ThreadPoolExecutor(3)
        self._found: dict[str, Future[list[Any]]] = {}

    def want(self, names: list[str]) -> None:
        for name in names:
            if name not in self._found:
                self._found[name] = self._pool.submit(self._find, QUERIES[name])

    def of(self, name: str) -> list[Any]:
        self.want([name])
        return self._found[name].result()

    def _find(self, query: PaperQuery) -> list[Any]:
        return self._streams.started(query).answer()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def answers(streams: Streams, request: pytest.FixtureRequest) -> Iterator[Answers]:
    found = Answers(streams)
    # What the chosen tests will ask for, in their order, so that one runs while another is compared.
    found.want([test.callspec.params["name"] for test in request.session.items if _asks(test)])
    yield found
    found.close()


def _asks(test: Any) -> bool:
    return "answers" in test.fixturenames and "name" in getattr(test, "callspec", test).params


def test_every_paper_and_every_nexmark_query_is_there() -> None:
    nexmark = [f"q{number}" for number in range(23)]
    of_papers = ["q5-append", "q7-session", "q11-median", "q12-time"]
    others = ["readwrite", "lr2", "lr4", "cm1", "cm2", "logistics", "ysb"]
    assert set(QUERIES) == {*nexmark, *of_papers, *others}
    assert all(query.name == name for name, query in QUERIES.items())


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.comparable])
def test_a_stream_in_spark_ends_with_what_all_rows_at_once_give(
    streams: Streams, answers: Answers, name: str
) -> None:
    query = QUERIES[name]
    found = answers.of(name)
    assert found, "no rows, so the comparison shows nothing"
    if name in ANSWERS:
        exact = in_order if query.mode == "complete" else closed
        assert found == exact(ANSWERS[name](streams.rows))
    if name not in BATCH_HAS_NO_FORM:
        assert closed(found) == streams.batch(query)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", [name for name in QUERIES if name not in {*NO_STATE, "q12-time"}])
def test_millpond_ends_with_the_rows_that_spark_ends_with(
    streams: Streams, answers: Answers, name: str
) -> None:
    assert streams.started(QUERIES[name], millpond=True).answer() == answers.of(name)


@pytest.mark.parametrize("name", sorted(NO_STATE))
def test_millpond_says_that_there_is_no_state(streams: Streams, name: str) -> None:
    with pytest.raises(InvalidQuery, match="keeps no state"):
        streams.started(QUERIES[name], millpond=True)


@pytest.mark.parametrize("millpond", [False, True], ids=["spark", "millpond"])
def test_windows_by_the_clock_hold_every_bid_once(
    spark: SparkSession, streams: Streams, tmp_path: Path, millpond: bool
) -> None:
    bids = streams.rows["bids"].slice(0, 500)
    here = Streams(spark, tmp_path, {"bids": bids})
    write_batches(tmp_path / "bids", [bids])
    run = here.started(QUERIES["q12-time"], Windows(seconds=1), millpond=millpond, until_now=False)
    try:
        late = bids.slice(0, 1).set_column(1, "bidder", pa.array([-1]))
        counted: Counter[int] = Counter()
        # Windows close with the batches after them, so there are batches until the first one's bids are out.
        deadline = time.monotonic() + 60
        while counted.total() < bids.num_rows and time.monotonic() < deadline:
            write_batches(tmp_path / "bids", [late])
            run.running.processAllAvailable()
            rows = [row for output in run.outputs for row in output]
            assert all(row.window.end - row.window.start == timedelta(seconds=1) for row in rows)
            counted = Counter()
            for row in rows:
                counted[row.bidder] += row.bids if row.bidder >= 0 else 0
        assert counted == Counter(bids["bidder"].to_pylist())
    finally:
        run.running.stop()


@pytest.mark.parametrize("name", ["q4", "q5", "q7", "q8", "q17", "cm1", "cm2", "lr2", "lr4", "ysb"])
def test_windows_have_the_lengths_that_a_benchmark_gives(streams: Streams, name: str) -> None:
    frame = streams.result(QUERIES[name], Windows(seconds=24, slide_seconds=8), streaming=False)
    windows = sorted(row.window for row in frame.select("window").distinct().collect())
    assert {window.end - window.start for window in windows} == {timedelta(seconds=24)}
    assert {window.start.second % 8 for window in windows} <= {0, 4}
    assert timedelta(seconds=8) in {b.start - a.start for a, b in itertools.pairwise(windows)}


def test_sessions_end_after_the_gap_that_a_benchmark_gives(streams: Streams) -> None:
    def sessions(windows: Windows) -> int:
        return int(streams.result(QUERIES["q11"], windows, streaming=False).count())

    bids = streams.rows["bids"].num_rows
    assert sessions(Windows()) < sessions(Windows(seconds=1)) <= bids


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_says_which_lengths_it_takes(streams: Streams, name: str) -> None:
    query = QUERIES[name]

    def plan(windows: Windows) -> str:
        analysed = streams.result(query, windows, streaming=True)._jdf.queryExecution().analyzed()
        # Without the numbers of expressions and watermarks.
        return re.sub(r"#\d+|[0-9a-f-]{36}", "", analysed.toString())

    other = {
        "window": Windows(seconds=24),
        "slide": Windows(slide_seconds=(query.window_seconds or 86_400) // 2 - 1),
    }
    taken = {length for length, windows in other.items() if plan(windows) != plan(Windows())}
    assert taken == set(query.lengths)
