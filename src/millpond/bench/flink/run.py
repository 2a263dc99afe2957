"""Runs one query in Flink, in processes of its own, and turns what it left into an outcome."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.bench.flink.changelog import final_rows
from millpond.bench.flink.environment import Environment, ensure
from millpond.bench.flink.query import FlinkQuery, input_ddl
from millpond.bench.flink.settings import JAVA_OPTIONS
from millpond.bench.flink.timing import batch_times, read_samples
from millpond.bench.job import Job, Outcome
from millpond.bench.settings import PARTITIONS
from millpond.bench.workload import load, stream_directory

__all__ = ["run_flink"]

SUBMIT = Path(__file__).with_name("submit.py")


class _Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What `submit.py` is given."""

    settings: dict[str, str]
    input_ddls: tuple[str, ...]
    select: str
    update: bool
    key_columns: tuple[str, ...]
    output: str
    timing: str


class _Timing(msgspec.Struct, frozen=True):
    """What `submit.py` leaves."""

    ended_ms: float
    runtime_ms: float


def run_flink(query: FlinkQuery, streams: Sequence[str], job: Job) -> Outcome:
    """Runs to the end of the files. What is timed: see `submit.py` and `timing.py`.

    The end closes all windows, so the files that close them for the other engines are left out: their own windows
    would be closed too.
    """
    environment = ensure(lambda text: print(text, flush=True))
    directory = Path(job.directory, "flink")
    prepared = load(Path(job.data))
    end = len(prepared.batches) - prepared.closing_batches
    files = {
        stream: sorted(stream_directory(Path(job.data), stream).glob("*.parquet"))[:end] for stream in streams
    }
    submissions = [_prepare(query, job, directory, files)]
    if job.rehearsal_batches:
        chosen = slice(prepared.filling_batches, prepared.filling_batches + job.rehearsal_batches)
        rehearsed = {stream: paths[chosen] for stream, paths in files.items()}
        submissions.insert(0, _prepare(query, job, Path(job.directory, "rehearsal"), rehearsed))
    _submit(environment, directory, submissions, job.settings.get(JAVA_OPTIONS, ""))
    timing = msgspec.json.decode((directory / "timing.json").read_bytes(), type=_Timing)
    batches = batch_times(
        [batch.rows for batch in prepared.batches],
        read_samples(directory / "progress"),
        timing.ended_ms - timing.runtime_ms,
        timing.ended_ms,
    )
    rows = _typed(final_rows(directory / "result", query.key_columns), query.types)
    output = job.output / "batch=0"
    output.mkdir(parents=True)
    pq.write_table(rows, output / "rows.parquet", compression="none", use_dictionary=False)
    return Outcome(batches=batches)


def _typed(rows: pa.Table, types: Mapping[str, str]) -> pa.Table:
    wanted = [
        pa.field(field.name, pa.type_for_alias(types[field.name]) if field.name in types else field.type)
        for field in rows.schema
    ]
    return rows.cast(pa.schema(wanted))


def _prepare(query: FlinkQuery, job: Job, directory: Path, files: Mapping[str, list[Path]]) -> Path:
    """A submission in a directory of its own, over links to the files."""
    for name in ("temporary", "result", *(f"input/{stream}" for stream in files)):
        (directory / name).mkdir(parents=True)
    for stream, paths in files.items():
        for path in paths:
            (directory / "input" / stream / path.name).hardlink_to(path)
    submission = _Submission(
        settings=_settings(job, directory),
        input_ddls=tuple(
            input_ddl(query, stream, pq.read_schema(paths[0]), directory / "input" / stream)
            for stream, paths in files.items()
        ),
        select=query.select,
        update=query.update,
        key_columns=query.key_columns,
        output=(directory / "result").as_uri(),
        timing=str(directory / "timing.json"),
    )
    path = directory / "submission.json"
    path.write_bytes(msgspec.json.encode(submission))
    return path


def _settings(job: Job, directory: Path) -> dict[str, str]:
    """The job's settings that are not Spark's, and what belongs to this run alone."""
    given = {name: value for name, value in job.settings.items() if not name.startswith("spark.")}
    return given | {
        "parallelism.default": job.settings[PARTITIONS],
        "io.tmp.dirs": str(directory / "temporary"),
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "metrics.reporters": "progress",
        "metrics.reporter.progress.factory.class": "millpond.SourceProgress$Factory",
        "metrics.reporter.progress.interval": "100 ms",
        "metrics.reporter.progress.path": str(directory / "progress"),
    }


def _submit(environment: Environment, directory: Path, submissions: list[Path], java_options: str) -> None:
    variables = os.environ | {
        # PyFlink puts both of these on the command line of its JVM, Hadoop or not.
        "HADOOP_CLASSPATH": os.pathsep.join(str(path) for path in environment.classpath),
        "JVM_ARGS": java_options,
        "FLINK_LOG_DIR": str(directory),
    }
    # Another installation's distribution or configuration would take the place of this one's.
    for name in ("FLINK_HOME", "FLINK_CONF_DIR", "FLINK_ENV_JAVA_OPTS", "PYTHONPATH", "PYTHONHOME"):
        variables.pop(name, None)
    command = [str(environment.python), str(SUBMIT), *(str(path) for path in submissions)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        cwd=directory,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    print(said, flush=True)
    if done.returncode != 0:
        raise RuntimeError(f"Flink failed: {_cause(said)}")


def _cause(said: str) -> str:
    """The innermost cause of a Java stack trace, or the last line of what was said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else "\n".join(lines[-1:])
