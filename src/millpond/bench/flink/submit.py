"""Runs queries in Flink: `python submit.py SUBMISSION.json...`, with the Python of Flink's environment.

Nothing of Millpond is installed there, so this file imports the standard library and PyFlink only. The cluster is
inside the JVM that PyFlink starts; several submissions, a rehearsal and the run that counts, share that JVM. What is
timed is the job alone, from its initialisation in the cluster to its end with the last checkpoint committed (Flink's
net runtime): starting JVM and cluster and planning the query come before it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

RESULT = "result"
FORMAT_OPTIONS = {
    "utc-timezone": "true",
    "write.int64.timestamp": "true",
    "timestamp.time.unit": "micros",
    "compression": "UNCOMPRESSED",
    "enable.dictionary": "false",
}


def main(path: Path) -> None:
    submission = json.loads(path.read_text())
    from pyflink.common import Configuration  # type: ignore[import-not-found]
    from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

    configuration = Configuration()
    for name, value in submission["settings"].items():
        configuration.set_string(name, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    for ddl in submission["input_ddls"]:
        tables.execute_sql(ddl)
    columns = result_columns(tables.sql_query(submission["select"]))
    keys = submission["key_columns"] if submission["update"] else []
    tables.execute_sql(result_ddl(columns, keys, submission["output"]))
    insert = f"INSERT INTO `{RESULT}` {submission['select']}"
    print(tables.explain_sql(insert), flush=True)
    job = tables.execute_sql(insert).get_job_client()
    runtime_ms = job.get_job_execution_result().result().get_net_runtime()
    ended_ms = time.time() * 1000
    Path(submission["timing"]).write_text(json.dumps({"ended_ms": ended_ms, "runtime_ms": runtime_ms}))


def result_columns(table: Any) -> list[tuple[str, str]]:
    """Names and SQL types of a query's result, all of them nullable."""
    schema = table._j_table.getResolvedSchema()
    return [
        (column.getName(), column.getDataType().getLogicalType().copy(True).asSerializableString())
        for column in schema.getColumns()
    ]


def result_ddl(columns: list[tuple[str, str]], keys: list[str], output: str) -> str:
    """The table that the result goes to; with keys it takes upserts, without them only inserts."""
    missing = set(keys) - {name for name, _ in columns}
    if missing:
        raise ValueError(f"key columns {sorted(missing)} are not among the result's {columns}")
    lines = [f"`{name}` {kind}{' NOT NULL' if name in keys else ''}" for name, kind in columns]
    if keys:
        lines.append(f"PRIMARY KEY ({', '.join(f'`{key}`' for key in keys)}) NOT ENFORCED")
    form = "changelog-parquet" if keys else "parquet"
    options = {"connector": "filesystem", "path": output, "format": form}
    options |= {f"{form}.{name}": value for name, value in FORMAT_OPTIONS.items()}
    listed = ",\n  ".join(f"'{name}' = '{value}'" for name, value in options.items())
    body = ",\n  ".join(lines)
    return f"CREATE TABLE `{RESULT}` (\n  {body}\n) WITH (\n  {listed}\n)"


if __name__ == "__main__":
    for submission in sys.argv[1:]:
        main(Path(submission))
