"""What a query of the papers is: which streams it reads, what it puts out, and how Spark's users would write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Form", "Length", "PaperQuery", "Windows"]

Mode = Literal["append", "update", "complete"]


@dataclass(frozen=True)
class Windows:
    """Lengths that a benchmark may vary; None is what the query's source says."""

    seconds: int | None = None
    slide_seconds: int | None = None


Length = Literal["window", "slide"]
Form = Callable[["Mapping[str, DataFrame]", Windows], "DataFrame"]
"""From the named streams, Spark's or Millpond's, and tables to the result."""


@dataclass(frozen=True)
class PaperQuery:
    """`plain` is what a Spark user writes; Millpond runs it through `mp.stream` where Spark has the operators, else
    `own`."""

    name: str
    title: str
    origin: str
    pattern: str
    streams: tuple[str, ...]
    mode: Mode
    plain: Form
    keys: tuple[str, ...] = ()
    """Columns that tell which older row a row of update mode replaces; structs flattened (`window.start`)."""
    own: Form | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of each stream that it reads; a stream that is not named is read whole."""
    tables: Mapping[str, Callable[[int], pa.Table]] = field(default_factory=dict)
    """Bounded tables that a form finds beside the streams, each made from the seed of the streams."""
    window_seconds: int = 0
    """How long a window is where no benchmark says otherwise, for sessions the gap; 0 where there is none, or one
    that outlasts any benchmark."""
    lengths: tuple[Length, ...] = ()
    """What of `Windows` it takes."""
    filled: str = ""
    """The key column of the only stream, where all of its active keys are in the state before a run with large state
    counts; empty: the state begins empty."""
    thinned: int = 1
    """Runs at full speed have one event in so many, in the same time: each becomes that many rows or more."""
    comparable: bool = True
    """False: what it puts out depends on the clock."""
