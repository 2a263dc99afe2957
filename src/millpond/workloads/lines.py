"""Streams as JSON lines, as the papers feed them: which have that form, rows in it, and the columns back from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from millpond.workloads import nexmark, ysb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Form", "check_form", "key_lines", "line", "parsed_stream"]

Form = Literal["columns", "json"]
"""How the rows of a stream come: with its columns, or as one column `value` of JSON lines."""

_KINDS = {"persons": "person", "auctions": "auction", "bids": "bid"}
_ADS = "ads"


def check_form(streams: Sequence[str], form: Form) -> None:
    """Raises ValueError where one of the streams is not there in this form."""
    without = [stream for stream in streams if stream not in (*_KINDS, _ADS)]
    if form == "json" and without:
        raise ValueError(f"only NEXMark and YSB come as JSON lines, {', '.join(without)} only as columns")


def line(stream: str, row: Mapping[str, Any]) -> str:
    """One row as the stream's generator would write it."""
    return json.dumps(_event(stream, row), separators=(",", ":"), default=datetime.isoformat)


def key_lines(stream: str, column: str, keys: pa.Array) -> pa.Array:
    """A line for each of the keys, whole numbers, that says nothing else."""
    before, after = json.dumps(_event(stream, {column: 0}), separators=(",", ":")).rsplit("0", 1)
    return pc.binary_join_element_wise(before, keys.cast(pa.string()), after, "")


def _event(stream: str, row: Mapping[str, Any]) -> dict[str, Any]:
    if stream == _ADS:
        return dict(row)
    kind = _KINDS[stream]
    time = {"ts": row["ts"]} if "ts" in row else {}
    return {"event_type": nexmark.KINDS.index(kind), kind: dict(row)} | time


def parsed_stream(stream: str, lines: DataFrame, columns: Sequence[str]) -> DataFrame:
    """These columns of a stream, all where none is named, from lines about nothing else."""
    rows = ysb.parsed(lines) if stream == _ADS else nexmark.parsed(lines).select(f"{_KINDS[stream]}.*")
    return rows.select(*columns) if columns else rows
