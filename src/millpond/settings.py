"""Settings: frozen plain data, from options of the query, Spark's configuration and the environment."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from millpond.errors import InvalidQuery

__all__ = ["SETTINGS", "Setting", "Settings"]

_PREFIX = "millpond."
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be tuned. `SETTINGS` says how a user writes each and what it means."""

    memory_bytes: int = 1 << 30
    write_buffer_bytes: int = 64 << 20
    staging_bytes: int = 256 << 20
    max_space_amplification: float = 1.5
    max_runs: int = 8
    read_batch_ratio: float = 0.02
    observed_bytes: int = 64 << 20
    keep_versions: int = 2
    batch_tries: int = 4
    rows_per_task: int = 100_000
    local_ingest_rows: int = 20_000
    local_emit_rows: int = 20_000
    storage_latency_ms: float = 0.0

    @classmethod
    def resolve(
        cls,
        options: Mapping[str, str],
        conf: Callable[[str], str | None],
        environ: Mapping[str, str],
    ) -> Settings:
        """Options of the query win over Spark's configuration, that over the environment, that over defaults.

        `options` may hold other options; those that begin with `millpond.` must be known. `conf` gives the
        value of a key of Spark's configuration, `millpond.x` or `spark.millpond.x`.
        """
        # Spark's options know no case.
        given = {key.lower(): (key, value) for key, value in options.items()}
        _refuse_unknown(key for key, _ in given.values())
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            found = _find(setting, given, conf, environ)
            if found is not None:
                values[setting.field] = setting.parse(*found)
        return cls(**values)


class Setting(msgspec.Struct, frozen=True):
    """One setting as a user meets it."""

    field: str
    name: str
    meaning: str
    kind: Literal["size", "count", "ratio"]
    least: float

    @property
    def default(self) -> int | float:
        value = getattr(Settings(), self.field)
        assert isinstance(value, int | float)
        return value

    @property
    def default_text(self) -> str:
        """The default as one would write it."""
        value = self.default
        if self.kind == "size":
            for unit in ("g", "m", "k"):
                if value % _UNITS[unit] == 0:
                    return f"{int(value) // _UNITS[unit]}{unit}"
        return str(value)

    @property
    def environment_name(self) -> str:
        """`millpond.write.bufferBytes` is `MILLPOND_WRITE_BUFFER_BYTES`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).replace(".", "_").upper()

    @property
    def allowed(self) -> str:
        match self.kind:
            case "size":
                return f"a size of at least {int(self.least)} bytes, such as 268435456, 256m or 1g"
            case "count":
                return f"a whole number of at least {int(self.least)}"
            case "ratio":
                return f"a number of at least {self.least}"

    def parse(self, text: str, source: str) -> int | float:
        value = self._number(text.strip())
        if value is None or value < self.least:
            raise InvalidQuery(f"{source} is {text!r}, but {self.name} must be {self.allowed}")
        return value

    def _number(self, text: str) -> int | float | None:
        if self.kind == "size":
            found = _SIZE.fullmatch(text)
            return int(found[1]) * _UNITS[found[2].lower()] if found else None
        try:
            value = int(text) if self.kind == "count" else float(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None


SETTINGS: tuple[Setting, ...] = (
    Setting(
        field="memory_bytes",
        name="millpond.memory.bytes",
        meaning="memory for the state of a service: tables, filters, indexes; above it, state is on disk",
        kind="size",
        least=1 << 20,
    ),
    Setting(
        field="write_buffer_bytes",
        name="millpond.write.bufferBytes",
        meaning="changes of a batch that are held before they are written to a pack",
        kind="size",
        least=1 << 16,
    ),
    Setting(
        field="staging_bytes",
        name="millpond.staging.bytes",
        meaning="rows from the driver, and outputs, that a service holds in memory; above it, they are in files",
        kind="size",
        least=1 << 16,
    ),
    Setting(
        field="max_space_amplification",
        name="millpond.compaction.maxSpaceAmplification",
        meaning="bytes on disk for each byte of live state; above it, state is rewritten",
        kind="ratio",
        least=1.05,
    ),
    Setting(
        field="max_runs",
        name="millpond.compaction.maxRuns",
        meaning="runs of one table; above it, the newest are merged",
        kind="count",
        least=2,
    ),
    Setting(
        field="read_batch_ratio",
        name="millpond.read.batchRatio",
        meaning="least share of the open sessions whose rows are read ahead between batches, those that close next; "
        "more where the watermark is expected to make more due; 0: none",
        kind="ratio",
        least=0,
    ),
    Setting(
        field="observed_bytes",
        name="millpond.observe.bytes",
        meaning="rows of unknown pattern that stay in memory; above it, their store is chosen by what was seen",
        kind="size",
        least=0,
    ),
    Setting(
        field="keep_versions",
        name="millpond.versions.keep",
        meaning="committed versions of the state that stay readable",
        kind="count",
        least=1,
    ),
    Setting(
        field="batch_tries",
        name="millpond.batch.maxTries",
        meaning="how often a batch is tried before the query fails",
        kind="count",
        least=1,
    ),
    Setting(
        field="rows_per_task",
        name="millpond.ingest.rowsPerTask",
        meaning="rows that are worth an ingest task of their own",
        kind="count",
        least=1,
    ),
    Setting(
        field="local_ingest_rows",
        name="millpond.ingest.localRows",
        meaning="rows up to which a batch's input goes through the driver, without Python workers",
        kind="count",
        least=0,
    ),
    Setting(
        field="local_emit_rows",
        name="millpond.emit.localRows",
        meaning="output rows up to which a batch's output goes through the driver, without a Spark job",
        kind="count",
        least=0,
    ),
    Setting(
        field="storage_latency_ms",
        name="millpond.storage.latencyMs",
        meaning="for benchmarks: added to each request to storage and each block read that misses memory",
        kind="ratio",
        least=0.0,
    ),
)


def _refuse_unknown(keys: Iterable[str]) -> None:
    known = {setting.name.lower() for setting in SETTINGS}
    for key in keys:
        if key.lower().startswith(_PREFIX) and key.lower() not in known:
            names = ", ".join(setting.name for setting in SETTINGS)
            raise InvalidQuery(f"there is no setting {key!r}; there are {names}")


def _find(
    setting: Setting,
    options: Mapping[str, tuple[str, str]],
    conf: Callable[[str], str | None],
    environ: Mapping[str, str],
) -> tuple[str, str] | None:
    """The text of the setting that wins, and where it stands."""
    if setting.name.lower() in options:
        key, text = options[setting.name.lower()]
        return text, f"option {key!r}"
    for key in (setting.name, f"spark.{setting.name}"):
        found = conf(key)
        if found is not None:
            return found, f"Spark configuration {key!r}"
    if setting.environment_name in environ:
        return environ[setting.environment_name], f"environment variable {setting.environment_name}"
    return None
