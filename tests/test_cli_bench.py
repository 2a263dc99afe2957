"""`millpond bench`: its options, sweeps and traffic, what its commands print, and how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from millpond.bench.compare import Comparison, EngineRun, Plan
from millpond.bench.job import BatchTime, Outcome
from millpond.bench.runner import Measured
from millpond.cli.bench import QUERIES_COMMAND, _bytes, app
from millpond.cli.bench_live import SEARCH_FROM, TrafficKind, live_of
from millpond.cli.bench_run import pace_words
from millpond.cli.bench_sweep import variations_of
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
        (["q5", "q12", "--window", "20"], "q12 has no window"),
        (["q11", "--slide", "2"], "q11 has no slide"),
        (["q18", "--sweep", "window=10,20"], "q18 has no window"),
        (["q12", "--rate", "100", "--sweep", "events=5,6"], "are for full speed"),
        (["q12", "--sweep", "events=6000000,10"], "all batches are warm-up with 10 events"),
        (["q12", "--sweep", "batch-events=9000000"], "all batches are warm-up with 6,000,000 events"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def context() -> typer.Context:
    group: Any = typer.main.get_command(app)
    return typer.Context(group.commands[QUERIES_COMMAND])


def test_a_sweep_names_an_option_and_its_values() -> None:
    assert variations_of(None, context()) == [{}]
    assert variations_of("window=10, 60", context()) == [{"window": "10"}, {"window": "60"}]
    assert variations_of("space-amplification=1.2", context()) == [{"space-amplification": "1.2"}]
    assert variations_of("write-buffer=16m,64m", context()) == [
        {"write-buffer": "16m"},
        {"write-buffer": "64m"},
    ]
    assert variations_of("state=small,large", context()) == [{"state": "small"}, {"state": "large"}]
    assert variations_of("skew=2", context()) == [{"hot-ratio": "2"}]
    assert variations_of("cache=64m", context()) == [{"memory": "64m"}]


@pytest.mark.parametrize(
    "wrong",
    [
        *("window", "window=", "colour=1,2", "window=10s", "trigger=0.01", "partitions=2,0", "shards=0"),
        *("read-batch-ratio=5", "state=tiny", "state-latency=far", "skew=-1"),
    ],
)
def test_a_sweep_takes_what_its_option_takes(wrong: str) -> None:
    with pytest.raises(typer.BadParameter):
        variations_of(wrong, context())


def test_sizes_have_units() -> None:
    assert [_bytes(text) for text in (None, "4096", "16k", "256m", "1g")] == [
        None,
        4096,
        16 << 10,
        256 << 20,
        1 << 30,
    ]
    for wrong in ("", "m", "1.5g", "0", "12t"):
        with pytest.raises(typer.BadParameter):
            _bytes(wrong)


def invoked(monkeypatch: pytest.MonkeyPatch, *arguments: str, **outcomes: str | None) -> Any:
    """The command with engines that give these digests or, where the text has spaces, end with it as an error."""

    def compare(plan: Plan, _watcher: Any) -> Comparison:
        runs = []
        for engine in plan.engines:
            given = outcomes[engine.replace("-", "_")] or ""
            batches = tuple(BatchTime(100, 5.0, {}) for _ in range(12))
            outcome = Outcome(error=given) if " " in given else Outcome(batches)
            runs.append(EngineRun(engine, Measured(outcome, 1.0, 10), None if outcome.error else given))
        return Comparison(plan, 12, {}, tuple(runs), None)

    monkeypatch.setattr("millpond.bench.compare.compare", compare)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(
    ("millpond", "spark", "code"),
    [
        ("same", "same", 0),
        ("one", "other", 1),
        ("same", "not done after 600 s", 0),
        ("not supported: it keeps no state", "same", 0),
        ("not supported: it keeps no state", "not supported: no join", 0),
        ("not supported: it keeps no state", "out of memory", 1),
        ("no luck", "out of memory", 1),
    ],
)
def test_a_run_fails_when_results_differ_or_nothing_finished(
    monkeypatch: pytest.MonkeyPatch, millpond: str, spark: str, code: int
) -> None:
    assert invoked(monkeypatch, "q12", millpond=millpond, spark_rocksdb=spark).exit_code == code


def test_a_run_says_what_engines_are_set_to_and_how_long_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    done = invoked(monkeypatch, "q5", "q12", "--json", str(file), millpond="a", spark_rocksdb="a")
    assert "spark-rocksdb with spark.sql.streaming.stateStore.providerClass=" in done.output
    assert "took 0 s; about 0 s left for 1 more" in done.output
    assert [run["workload"] for run in json.loads(file.read_text())["runs"]] == ["q5", "q12"]


def test_what_is_left_is_guessed_from_what_is_done() -> None:
    assert pace_words([100.0], 3) == "took 1 min 40 s; about 3 min 20 s left for 2 more"
    assert pace_words([100.0, 20.0, 30.4], 3) == "took 30 s"


def test_figures_become_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, out = tmp_path / "figures.json", tmp_path / "out"
    invoked(monkeypatch, "q12", "--json", str(file), millpond="a", spark_rocksdb="a")
    done = CliRunner().invoke(app, ["report", str(file), "--out", str(out)])
    assert done.exit_code == 0
    assert done.output.replace("\n", "") == str(out / "report.md")
    assert "## q12" in (out / "report.md").read_text()


def test_the_list_says_which_engines_have_a_query() -> None:
    done = CliRunner().invoke(app, ["list"])
    assert done.exit_code == 0
    rows = {line.split()[0]: line.split() for line in done.output.splitlines() if line.strip()}
    assert rows["query"][3:6] == ["millpond", "flink", "spark-tws"]
    assert set(QUERIES) <= rows.keys()
    assert rows["q12"].count("runs") == 3
    assert rows["q18"].count("runs") == 3
    assert rows["q5"].count("runs") == 2
    assert rows["cm1"].count("runs") == 1
    assert "needs none" in " ".join(rows["q13"])
