"""`millpond bench`: compares engines on a workload and writes the figures."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from millpond.cli import bench_trace
from millpond.cli.bench_live import StateLatencyName, TrafficKind, live_of, refuse_without_rate
from millpond.cli.bench_run import run
from millpond.cli.bench_sweep import SWEEPABLE, variations_of

if TYPE_CHECKING:
    from millpond.bench.compare import Plan
    from millpond.workloads.queries.query import PaperQuery

__all__ = ["app"]


class WorkloadGroup(TyperGroup):
    """`millpond bench q5 q12 ...`: what is no command is the name of a query, and begins a list of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = [QUERIES_COMMAND, *args]
        return super().resolve_command(ctx, args)


QUERIES_COMMAND = "queries"
_OTHER_NUMBERS = "large q3, q8: ten times; lr2: a twentieth"
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
    refuse_all_warmup(warmup, workload.rows, workload.batch_rows, "rows")
    plan = Plan(
        workload=workload,
        engines=tuple(dict.fromkeys(str(chosen) for chosen in engine or INSTALLED)),
        repeat=repeat,
        warmup_batches=warmup,
        rehearsal_batches=rehearse,
        time_limit_s=time_limit,
    )
    raise typer.Exit(run([plan], json))


class State(StrEnum):
    """How large the state becomes."""

    SMALL = "small"
    LARGE = "large"


@app.command(QUERIES_COMMAND)
def queries(
    ctx: typer.Context,
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
    events: Annotated[
        int | None,
        typer.Option(min=1, help="Events in all.", show_default=f"6000000; {_OTHER_NUMBERS}"),
    ] = None,
    batch_events: Annotated[
        int | None,
        typer.Option(min=1, help="Events a batch.", show_default=f"500000; {_OTHER_NUMBERS}"),
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
            help=f"One run for each value of one option, such as window=10,60: {', '.join(SWEEPABLE)}.",
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
    from millpond.workloads.scales import EVENTS_PER_SECOND, Shape, check_shape, crowding

    unknown = [name for name in names if name not in QUERIES]
    if unknown:
        raise typer.BadParameter(
            f"no query {', '.join(unknown)}; `millpond bench list` shows what there is", param_hint="QUERY"
        )
    variations = variations_of(sweep, ctx)
    swept = next(iter(variations[0]), None)
    live_runs = rate is not None or swept == "rate"
    if live_runs and (events is not None or batch_events is not None or swept in ("events", "batch-events")):
        raise typer.BadParameter("--events and --batch-events are for full speed; with --rate give --seconds")
    if not live_runs:
        refuse_without_rate(variations[0], {"trigger": trigger, "traffic": traffic, "seconds": seconds})
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
        slide_seconds = int(varied.get("slide", slide))
        refuse_other_lengths(QUERIES[name], window=window_seconds, slide=slide_seconds)
        size = State(varied.get("state", state))
        crowded, thinned = crowding(QUERIES[name].streams, size.value), QUERIES[name].thinned
        run_events = int(varied.get("events", events or 6_000_000 * crowded // thinned))
        run_batch_events = int(varied.get("batch-events", batch_events or 500_000 * crowded // thinned))
        if live is None:
            refuse_all_warmup(warmup, run_events, run_batch_events, "events")
        default_memory = "256m" if size is State.LARGE else None
        latency = varied.get("state-latency", state_latency)
        amplification = varied.get("space-amplification", space_amplification)
        batch_ratio = varied.get("read-batch-ratio", read_batch_ratio)
        return Plan(
            workload=Paper(
                query_name=name,
                size=size.value,
                events=run_events,
                batch_events=run_batch_events,
                events_per_second=EVENTS_PER_SECOND * crowded // thinned,
                window_seconds=window_seconds,
                slide_seconds=slide_seconds,
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
            state_latency=None if latency is None else StateLatencyName(latency).value,
            find_rate=find_rate,
            varied=varied,
        )

    plans = [plan(name, varied) for name in dict.fromkeys(names) for varied in variations]
    raise typer.Exit(run(plans, json))


def _bytes(text: str | None) -> int | None:
    from millpond.bench.sizes import size_bytes

    try:
        return None if text is None else size_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory, --write-buffer") from None


def refuse_all_warmup(warmup: int, rows: int, batch_rows: int, what: str) -> None:
    if warmup >= -(-rows // batch_rows):
        raise typer.BadParameter(
            f"all batches are warm-up with {rows:,} {what}, {batch_rows:,} a batch; fewer of them, or more {what}",
            param_hint="--warmup",
        )


def refuse_other_lengths(query: PaperQuery, *, window: int, slide: int) -> None:
    """Lengths that the query has not got would do nothing."""
    for name, seconds in (("window", window), ("slide", slide)):
        if seconds and name not in query.lengths:
            raise typer.BadParameter(
                f"{query.name} has no {name} whose length could be varied", param_hint=f"--{name}"
            )


def _said_of(refusal: str | None) -> str:
    if refusal is None:
        return "runs"
    return "needs none" if "keeps no state" in refusal else "not yet"


@app.command("list")
def list_queries() -> None:
    """The papers' queries, and which engines run them; Spark's own stores run all."""
    from millpond.bench.papers import Paper
    from millpond.bench.support import refusal
    from millpond.workloads.queries.catalog import QUERIES

    table = Table(box=None, header_style="bold")
    for heading in ("query", "mode", "pattern", "millpond", "flink", "spark-tws", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    with Console(stderr=True).status("asking Spark for the queries' plans"):
        reasons = refusal(QUERIES)
    for name, query in QUERIES.items():
        workload = Paper(query_name=name)
        written = ("runs" if form else "" for form in (workload.flink_query(), workload.tws_query()))
        table.add_row(name, query.mode, query.pattern, _said_of(reasons[name]), *written, query.title)
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
    raise typer.Exit(run([plan], json))


@app.command()
def generator(
    events: Annotated[int, typer.Option(min=1, help="Events of a run.")] = 4_000_000,
    repeat: Repeat = 5,
    json: JsonFile = None,
) -> None:
    """Make NEXMark's events: in the kernel on one core, and as a Spark source beside Parquet with the same rows."""
    from millpond.bench import report
    from millpond.bench.generator import GeneratorBench
    from millpond.bench.generator import run as measure
    from millpond.bench.machine import invocation

    console = Console()
    asked = invocation(sys.argv[1:], datetime.now(UTC))
    entry = measure(GeneratorBench(events=events, repeat=repeat), console.print)
    for name, figures in entry["engines"].items():
        console.print(f"{name:14}{figures['rows_per_s']:>14,.0f} events/s on {figures['cores']} core(s)")
    console.print(
        f"source / parquet: {entry['source_to_parquet']} (plain: {entry['source_to_plain_parquet']}), "
        f"same rows: {entry['results_equal']}"
    )
    if json is not None:
        report.write(json, report.report(entry, invocation=asked))
    raise typer.Exit(0 if entry["results_equal"] else 1)
