"""`millpond bench`: compares engines on a workload and writes the figures."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from millpond.cli import bench_trace
from millpond.cli.bench_live import StateLatencyName, TrafficKind, live_of, refuse_without_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millpond.bench.compare import Plan

__all__ = ["app"]


class WorkloadGroup(TyperGroup):
    """`millpond bench q5 q12 ...`: what is no command is the name of a query, and begins a list of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = [QUERIES_COMMAND, *args]
        return super().resolve_command(ctx, args)


QUERIES_COMMAND = "queries"
app = typer.Typer(
    cls=WorkloadGroup,
    help="Compare Millpond with Spark's own state stores, with Flink, and with no state at all. "
    "Name one or more of the queries that `millpond bench list` shows, or one of the commands.",
    no_args_is_help=True,
)
app.add_typer(bench_trace.app, name="trace")


class Engine(StrEnum):
    """What can run a streaming workload."""

    MILLPOND = "millpond"
    SPARK_ROCKSDB = "spark-rocksdb"
    SPARK_ROCKSDB_DEFAULT = "spark-rocksdb-default"
    SPARK_MEMORY = "spark-memory"
    SPARK_TWS = "spark-tws"
    PASSTHROUGH = "passthrough"
    FLINK_ROCKSDB = "flink-rocksdb"
    FLINK_HASHMAP = "flink-hashmap"
    FLINK_FORST = "flink-forst"


class InputForm(StrEnum):
    """How the streams come."""

    COLUMNS = "columns"
    JSON = "json"


INSTALLED = (Engine.MILLPOND, Engine.SPARK_ROCKSDB, Engine.SPARK_MEMORY, Engine.PASSTHROUGH)
"""What runs without fetching anything, at speeds that are not too far apart."""

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Repeat = Annotated[int, typer.Option(min=1, help="Runs of each engine, in turn.")]
Seed = Annotated[int, typer.Option(help="For the generated data.")]
Rehearse = Annotated[
    int,
    typer.Option(
        min=0,
        help="First batches run once beforehand, half of them in pieces, so that the JVM has compiled its code.",
    ),
]
TimeLimit = Annotated[float, typer.Option(min=1, help="Seconds for one run of one engine.")]


@app.command()
def keyed(
    rows: Annotated[int, typer.Option(min=1, help="Rows in all.")] = 6_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Keys, drawn uniformly.")] = 4_000_000,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows a batch.")] = 500_000,
    small: Annotated[
        bool,
        typer.Option("--small", help="80 batches of 4,500 rows, 10,000 keys, sliding window of 20 s by 5 s."),
    ] = False,
    engine: Annotated[
        list[Engine] | None,
        typer.Option(
            help="May be repeated; millpond, spark-rocksdb, spark-memory and passthrough by default."
        ),
    ] = None,
    repeat: Repeat = 1,
    warmup: Annotated[int, typer.Option(min=0, help="First batches of a run left out of the figures.")] = 2,
    rehearse: Rehearse = 8,
    time_limit: TimeLimit = 600,
    seed: Seed = 1,
    json: JsonFile = None,
) -> None:
    """Count and sum per key in update mode, from Parquet files."""
    from millpond.bench.compare import Plan
    from millpond.bench.keyed import Keyed, small_windows

    large = Keyed(rows=rows, keys=keys, batch_rows=batch_rows, seed=seed)
    workload = small_windows(seed) if small else large
    if warmup >= -(-workload.rows // workload.batch_rows):
        raise typer.BadParameter(
            "all batches are warm-up; fewer of them, or more rows", param_hint="--warmup"
        )
    plan = Plan(
        workload=workload,
        engines=tuple(dict.fromkeys(str(chosen) for chosen in engine or INSTALLED)),
        repeat=repeat,
        warmup_batches=warmup,
        rehearsal_batches=rehearse,
        time_limit_s=time_limit,
    )
    raise typer.Exit(_run([plan], json))


class State(StrEnum):
    """How large the state becomes."""

    SMALL = "small"
    LARGE = "large"


@app.command(QUERIES_COMMAND)
def queries(
    names: Annotated[list[str], typer.Argument(metavar="QUERY...", help="As `millpond bench list` shows.")],
    engine: Annotated[
        list[Engine] | None, typer.Option(help="May be repeated; millpond and spark-rocksdb by default.")
    ] = None,
    state: Annotated[State, typer.Option(help="NEXMark as it is, or millions of active keys.")] = State.LARGE,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What each engine's store may hold in memory, such as 256m.",
            show_default="256m for large",
        ),
    ] = None,
    events: Annotated[int | None, typer.Option(min=1, help="Events in all.", show_default="6000000")] = None,
    batch_events: Annotated[
        int | None, typer.Option(min=1, help="Events a batch.", show_default="500000")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N|max",
            help="Traffic arrives at so many events a second while the query runs, and batch times and end-to-end "
            "delays are measured; max: finds the highest rate without a growing backlog.",
            show_default="full speed",
        ),
    ] = None,
    trigger: Annotated[
        float | None,
        typer.Option(min=0.1, help="With --rate: seconds between batches.", show_default="1"),
    ] = None,
    traffic: Annotated[
        TrafficKind | None,
        typer.Option(
            help="With --rate: the same every second, or drawn from a normal distribution with a tenth of the rate "
            "as its deviation.",
            show_default="fixed",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="With --rate: seconds that count. Those of a window and its watermark come before them.",
            show_default="60; 20 a try for max",
        ),
    ] = None,
    state_latency: Annotated[
        StateLatencyName | None,
        typer.Option(
            help="Each request to checkpoint and state storage takes 1.5 ms (hdfs) or 23 ms (object-store) longer. "
            "Needs a JDK.",
            show_default="none",
        ),
    ] = None,
    input_form: Annotated[
        InputForm,
        typer.Option(
            "--input",
            help="What the files hold: the query's columns, or JSON lines that are parsed in front of the query, as "
            "the papers feed them. NEXMark and YSB only, and not Flink.",
        ),
    ] = InputForm.COLUMNS,
    keys: Annotated[int, typer.Option(min=0, help="Active keys of the streams; 0: as --state says.")] = 0,
    hot_ratio: Annotated[
        int,
        typer.Option(min=0, help="One event in so many is about a key that is not hot; 0: NEXMark's own."),
    ] = 0,
    window: Annotated[int, typer.Option(min=0, help="Seconds of a window; 0: the query's own.")] = 0,
    slide: Annotated[int, typer.Option(min=0, help="Seconds between windows; 0: the query's own.")] = 0,
    write_buffer: Annotated[
        str | None, typer.Option(help="Changes that a store gathers before it writes a file, such as 64m.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Shuffle partitions, shards, Flink's parallelism.", show_default="cores"),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Shards of Millpond's state.", show_default="partitions")
    ] = None,
    space_amplification: Annotated[
        float | None,
        typer.Option(
            min=1.05, help="Bytes on disk per live byte at which Millpond rewrites.", show_default="1.5"
        ),
    ] = None,
    read_batch_ratio: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Least share of the open sessions that Millpond reads ahead; 0: it reads none ahead.",
            show_default="0.02",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V1,V2,...",
            help="One run for each value of one of the options that are numbers or sizes, such as window=10,60 or "
            "rate=1000,2000.",
        ),
    ] = None,
    repeat: Repeat = 1,
    warmup: Annotated[int, typer.Option(min=0, help="First batches of a run left out of the figures.")] = 2,
    rehearse: Rehearse = 8,
    time_limit: TimeLimit = 600,
    seed: Seed = 1,
    json: JsonFile = None,
) -> None:
    """The papers' queries: NEXMark, Linear Road, cluster monitoring and others, one after another."""
    from millpond.bench.compare import Plan
    from millpond.bench.papers import Paper
    from millpond.workloads.lines import check_form
    from millpond.workloads.queries.catalog import QUERIES
    from millpond.workloads.scales import Shape, check_shape

    unknown = [name for name in names if name not in QUERIES]
    if unknown:
        raise typer.BadParameter(
            f"no query {', '.join(unknown)}; `millpond bench list` shows what there is", param_hint="QUERY"
        )
    variations = _variations(sweep)
    live_runs = rate is not None or any("rate" in varied for varied in variations)
    if live_runs and (events is not None or batch_events is not None):
        raise typer.BadParameter("--events and --batch-events are for full speed; with --rate give --seconds")
    if not live_runs:
        refuse_without_rate(variations[0], {"trigger": trigger, "traffic": traffic, "seconds": seconds})
    events, batch_events = events or 6_000_000, batch_events or 500_000
    if not live_runs and warmup >= -(-events // batch_events):
        raise typer.BadParameter(
            "all batches are warm-up; fewer of them, or more events", param_hint="--warmup"
        )
    default_memory = "256m" if state is State.LARGE else None
    chosen = tuple(dict.fromkeys(str(one) for one in engine or (Engine.MILLPOND, Engine.SPARK_ROCKSDB)))

    def plan(name: str, varied: dict[str, str]) -> Plan:
        window_seconds = int(varied.get("window", window))
        live, find_rate = live_of(
            QUERIES[name],
            varied,
            rate=rate,
            trigger=trigger,
            traffic=traffic,
            seconds=seconds,
            window=window_seconds,
            seed=seed,
        )
        shape = Shape(keys=int(varied.get("keys", keys)), hot_ratio=int(varied.get("hot-ratio", hot_ratio)))
        try:
            check_shape(QUERIES[name].streams, shape)
        except ValueError as error:
            raise typer.BadParameter(f"{name}: {error}", param_hint="--keys, --hot-ratio") from None
        try:
            check_form(QUERIES[name].streams, input_form.value)
        except ValueError as error:
            raise typer.BadParameter(f"{name}: {error}", param_hint="--input") from None
        amplification = varied.get("space-amplification", space_amplification)
        batch_ratio = varied.get("read-batch-ratio", read_batch_ratio)
        return Plan(
            workload=Paper(
                query_name=name,
                size=state.value,
                events=int(varied.get("events", events)),
                batch_events=int(varied.get("batch-events", batch_events)),
                window_seconds=window_seconds,
                slide_seconds=int(varied.get("slide", slide)),
                keys=shape.keys,
                hot_ratio=shape.hot_ratio,
                input=input_form.value,
                live=live,
                seed=seed,
            ),
            engines=chosen,
            repeat=repeat,
            warmup_batches=warmup,
            rehearsal_batches=rehearse,
            time_limit_s=time_limit,
            memory_bytes=_bytes(varied.get("memory", memory or default_memory)),
            write_buffer_bytes=_bytes(varied.get("write-buffer", write_buffer)),
            partitions=int(varied["partitions"]) if "partitions" in varied else partitions,
            shards=int(varied["shards"]) if "shards" in varied else shards,
            space_amplification=None if amplification is None else float(amplification),
            read_batch_ratio=None if batch_ratio is None else float(batch_ratio),
            state_latency=None if state_latency is None else state_latency.value,
            find_rate=find_rate,
            varied=varied,
        )

    plans = [plan(name, varied) for name in dict.fromkeys(names) for varied in variations]
    raise typer.Exit(_run(plans, json))


SIZES = ("memory", "write-buffer")
FRACTIONS = {"trigger": 0.1, "space-amplification": 1.05, "read-batch-ratio": 0.0}
"""What may be no whole number, and the least it may be."""
SWEEPABLE = (
    *("events", "batch-events", "window", "slide", "partitions", "rate", "shards", "keys", "hot-ratio"),
    *SIZES,
    *FRACTIONS,
)


def _variations(sweep: str | None) -> list[dict[str, str]]:
    """`window=10,60` as one change after the other; no sweep is one run without changes."""
    if sweep is None:
        return [{}]
    name, _, listed = sweep.partition("=")
    values = [value.strip() for value in listed.split(",") if value.strip()]
    if name not in SWEEPABLE or not values:
        raise typer.BadParameter(
            f"{sweep!r}: write NAME=VALUE,VALUE,... with one of the names {', '.join(SWEEPABLE)}",
            param_hint="--sweep",
        )
    if name in FRACTIONS:
        least = FRACTIONS[name]
        wrong = [value for value in values if not (_is_number(value) and float(value) >= least)]
        if wrong:
            raise typer.BadParameter(
                f"{name} takes numbers of at least {least}, not {', '.join(wrong)}", param_hint="--sweep"
            )
        return [{name: value} for value in values]
    wrong = [value for value in values if name not in SIZES and not value.isdigit()]
    if wrong:
        raise typer.BadParameter(f"{name} takes whole numbers, not {', '.join(wrong)}", param_hint="--sweep")
    return [{name: value} for value in values]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _bytes(text: str | None) -> int | None:
    from millpond.bench.sizes import size_bytes

    try:
        return None if text is None else size_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory, --write-buffer") from None


def _said_of(refusal: str | None) -> str:
    if refusal is None:
        return "runs"
    return "needs none" if "keeps no state" in refusal else "not yet"


@app.command("list")
def list_queries() -> None:
    """The papers' queries, and which of them Millpond runs."""
    from millpond.bench.support import refusal
    from millpond.workloads.queries.catalog import QUERIES

    table = Table(box=None, header_style="bold")
    for heading in ("query", "mode", "pattern", "Millpond", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    with Console(stderr=True).status("asking Spark for the queries' plans"):
        reasons = refusal(QUERIES)
    for name, query in QUERIES.items():
        table.add_row(name, query.mode, query.pattern, _said_of(reasons[name]), query.title)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What `--json` wrote.", exists=True)],
    out: Annotated[Path, typer.Option(help="A directory for the page and its plots.")],
) -> None:
    """A page in Markdown with tables and plots of measured runs."""
    from millpond.bench.page import write_page

    page = write_page(files, out)
    Console().print(f"{page}", markup=False, highlight=False)


@app.command()
def kernel(
    repeat: Repeat = 1,
    time_limit: TimeLimit = 600,
    seed: Seed = 1,
    json: JsonFile = None,
) -> None:
    """Get, merge and put on one core: a million 8-byte keys, 16-byte values, batches of 65,536, beside RocksDB."""
    from millpond.bench.compare import Plan
    from millpond.bench.kernel import KERNEL_ENGINES, KernelMerge

    workload = KernelMerge(seed=seed)
    plan = Plan(
        workload=workload,
        engines=KERNEL_ENGINES,
        repeat=repeat,
        warmup_batches=workload.loading_batches,
        time_limit_s=time_limit,
    )
    raise typer.Exit(_run([plan], json))


@app.command()
def generator(
    events: Annotated[int, typer.Option(min=1, help="Events of a run.")] = 4_000_000,
    repeat: Repeat = 5,
    json: JsonFile = None,
) -> None:
    """Make NEXMark's events: in the kernel on one core, and as a Spark source beside Parquet with the same rows."""
    from millpond.bench import report
    from millpond.bench.generator import GeneratorBench, run

    console = Console()
    entry = run(GeneratorBench(events=events, repeat=repeat), console.print)
    for name, figures in entry["engines"].items():
        console.print(f"{name:14}{figures['rows_per_s']:>14,.0f} events/s on {figures['cores']} core(s)")
    console.print(
        f"source / parquet: {entry['source_to_parquet']} (plain: {entry['source_to_plain_parquet']}), "
        f"same rows: {entry['results_equal']}"
    )
    if json is not None:
        report.write(json, report.report(entry))
    raise typer.Exit(0 if entry["results_equal"] else 1)


def _prepare_flink(plan: Plan, console: Console) -> None:
    """Before anything is measured. Where it fails, the engine's entry says so and the others still run."""
    from millpond.bench.flink.environment import FlinkUnavailable, ensure
    from millpond.bench.flink.settings import FLINK_ENGINES

    if not set(plan.engines) & set(FLINK_ENGINES):
        return
    try:
        ensure(lambda text: console.print(text, markup=False, highlight=False))
    except FlinkUnavailable as error:
        console.print(str(error), style="red", markup=False)


def _run(plans: Sequence[Plan], json: Path | None) -> int:
    """The exit code: 1 when results differ, or when no engine of a comparison finished. What an engine can't do is
    an error in the file and no failure of the benchmark."""
    from millpond.bench import report
    from millpond.bench.compare import compare
    from millpond.bench.display import Display
    from millpond.bench.slow_storage import JdkMissing
    from millpond.bench.tables import print_run

    # The engines' processes are in sessions of their own and end with the block that watches them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    entries: list[dict[str, Any]] = []
    for number, plan in enumerate(plans, 1):
        if len(plans) > 1:
            console.rule(f"{number} of {len(plans)}: {plan.workload.name}", align="left")
        _prepare_flink(plan, console)
        try:
            with Display(console) as display:
                comparison = compare(plan, display)
        except JdkMissing as error:
            console.print(str(error), style="red", markup=False)
            return 1
        entry = report.run_entry(comparison)
        entries.append(entry)
        if number == len(plans):
            for name, value in comparison.settings.items():
                console.print(f"{name}={value}", style="dim", highlight=False)
        print_run(console, entry)
        if comparison.difference is not None:
            console.print(f"results differ; first rows, {comparison.difference}", markup=False)
        if json is not None:
            # After each: a long run that is ended keeps what it has.
            report.write(json, report.report(*entries))
    return 1 if any(_failed(entry) for entry in entries) else 0


def _failed(entry: Mapping[str, Any]) -> bool:
    return entry["results_equal"] is False or all("error" in each for each in entry["engines"].values())
