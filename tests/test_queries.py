"""Every query of the catalogue runs as a stream in Spark and gives what it should; Millpond gives the same or says
by name what it can't take yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millpond.errors import InvalidQuery
from millpond.workloads.queries.catalog import QUERIES
from millpond.workloads.queries.query import PaperQuery
from tests import query_answers
from tests.oracle_run import configured
from tests.query_streams import Streams, closed, in_order

NO_STATE = {"q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"}
"""Spark runs them alone; nothing is there for Millpond to keep."""

REFUSED = {
    **dict.fromkeys(["q3", "q4", "q6", "q8", "q9", "q20", "lr2", "logistics"], "a join of two streams"),
    **dict.fromkeys(["q7-session", "q11", "q11-median"], "session_window"),
    **dict.fromkeys(["q5-append", "q7", "q19"], "collect_list"),
    **dict.fromkeys(["q15", "q16"], "collect_set"),
}
"""What Millpond can't take yet, and what it says about it. A query that it can take leaves this list."""

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


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in {*NO_STATE, *REFUSED, "q12-time"}])
def test_millpond_ends_with_the_rows_that_spark_ends_with(
    streams: Streams, answers: Answers, name: str
) -> None:
    assert streams.started(QUERIES[name], millpond=True).answer() == answers.of(name)


@pytest.mark.parametrize("name", REFUSED)
def test_millpond_says_which_operator_it_can_not_take(streams: Streams, name: str) -> None:
    with pytest.raises(InvalidQuery, match=REFUSED[name]):
        streams.started(QUERIES[name], millpond=True)


@pytest.mark.parametrize("name", sorted(NO_STATE))
def test_millpond_says_that_there_is_no_state(streams: Streams, name: str) -> None:
    with pytest.raises(InvalidQuery, match="keeps no state"):
        streams.started(QUERIES[name], millpond=True)
