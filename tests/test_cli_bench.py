"""Options of `millpond bench QUERY...` that only make sense together, and the traffic that they describe."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from millpond.cli.bench import app
from millpond.cli.bench_live import SEARCH_FROM, TrafficKind, live_of
from millpond.workloads.queries.catalog import QUERIES


def live(
    query: str = "lr4", rate: str | None = "1500", window: int = 0, varied: dict[str, str] | None = None
):
    return live_of(
        QUERIES[query],
        varied or {},
        rate=rate,
        trigger=3.0,
        traffic=TrafficKind.NORMAL,
        seconds=None,
        window=window,
        seed=1,
    )


def test_the_warm_up_is_a_window_and_its_watermark() -> None:
    found, searching = live()
    assert found is not None
    assert not searching
    assert (found.rate, found.trigger_seconds, found.normal, found.seconds) == (1_500, 3.0, True, 60.0)
    assert found.warmup_seconds == 24
    assert live(window=60)[0].warmup_seconds == 64
    # A query without windows has nothing to wait for, whatever length is asked for.
    assert live("q12", window=60)[0].warmup_seconds == 0


def test_a_sweep_changes_rate_and_trigger() -> None:
    assert live(rate=None) == (None, False)
    assert live(rate=None, varied={"rate": "200"})[0].rate == 200
    assert live(varied={"trigger": "0.5"})[0].trigger_seconds == 0.5


def test_the_highest_rate_is_searched_for_in_short_runs() -> None:
    found, searching = live(rate="max")
    assert searching
    assert (found.rate, found.seconds) == (SEARCH_FROM, 20.0)


@pytest.mark.parametrize("wrong", ["fast", "0", "-5", "1.5"])
def test_a_rate_is_a_whole_number_or_max(wrong: str) -> None:
    with pytest.raises(typer.BadParameter, match="no rate"):
        live(rate=wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["q12", "--trigger", "3"], "--trigger is about live traffic"),
        (["q12", "--sweep", "trigger=1,3"], "about live traffic"),
        (["q12", "--traffic", "normal", "--seconds", "9"], "--traffic, --seconds is about live traffic"),
        (["q12", "--rate", "100", "--events", "5"], "are for full speed"),
        (["readwrite", "--hot-ratio", "4"], "only NEXMark's streams have hot keys"),
        (["readwrite", "--input", "json"], "only NEXMark and YSB come as JSON lines"),
        (["ysb", "--keys", "4"], "can't be varied"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
