"""The description of one stateful operator, shared by the planner, the ingest tasks and the state service.

It is plain data: it crosses processes as bytes and is kept beside the state, so that a restarted query can be
compared with the one that wrote it.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import pyarrow as pa

__all__ = [
    "Aggregate",
    "AggregateOp",
    "AggregateSpec",
    "Column",
    "CountWindows",
    "DedupSpec",
    "Forgetting",
    "GroupRowsSpec",
    "JoinKind",
    "JoinSide",
    "JoinSpec",
    "JoinTime",
    "KeyedTime",
    "ObservedRowsSpec",
    "OperatorSpec",
    "Order",
    "OutputMode",
    "Panes",
    "Sessions",
    "TimeSpec",
    "Top",
    "UnalignedRowsSpec",
    "WindowRowsSpec",
    "kept_time",
]

OutputMode = Literal["append", "update", "complete"]

AggregateOp = Literal[
    "count",  # rows whose inputs are all non-null (no inputs: every row)              -> [int64]
    "count_of",  # int64: rows that a row stands for, added up; kept as `count` is     -> [int64]
    "sum_int",  # int64, an overflow is an error                                       -> [int64]
    "sum_int_wrapping",  # int64, an overflow wraps around                             -> [int64]
    "sum_int_try",  # int64, an overflow makes the sum null                            -> [int64, bool is_empty]
    "sum_float",  # float64                                                            -> [float64]
    "sum_decimal",  # decimal128 of the input's own type, an overflow makes it null    -> [decimal, bool is_empty]
    "min",  # smallest non-null input in Spark's order, any orderable type             -> [T]
    "max",  # largest                                                                  -> [T]
    "first",  # first input, nulls included                                            -> [T, bool value_set]
    "last",  # last input, nulls included                                              -> [T, bool value_set]
    "first_non_null",  # first non-null input                                          -> [T, bool value_set]
    "last_non_null",  # last non-null input                                            -> [T, bool value_set]
    "min_by",  # inputs (value, order): value at the smallest non-null order           -> [V, O]
    "max_by",  # inputs (value, order): value at the largest non-null order            -> [V, O]
    "bit_and",  # any signed integer type, nulls ignored                               -> [T]
    "bit_or",
    "bit_xor",
    "top",  # a struct: the first of a group's rows in an order, see `Top`               -> [array of structs]
    "moments",  # float64: count, mean, sum of squared differences, nulls ignored      -> [float64 n, avg, m2]
]


Order = Literal["asc_nulls_first", "asc_nulls_last", "desc_nulls_first", "desc_nulls_last"]


class Column(msgspec.Struct, frozen=True):
    """A named column with its Spark type as Spark writes it in SQL, for messages and comparison."""

    name: str
    type: str


class Top(msgspec.Struct, frozen=True):
    """Which of a group's rows are kept. Fields of the row's struct stand in the order in which they decide."""

    count: int
    by: int
    """How many fields the query orders by; those behind them only decide between rows that are equal in these."""
    orders: tuple[Order, ...]
    """One for each field."""


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate that is kept merged. `inputs` and `filter` are positions in the operator's input schema."""

    op: AggregateOp
    inputs: tuple[int, ...]
    filter: int | None = None
    """A boolean column: rows in which it is not true are left out of this aggregate."""
    text: str = ""
    """How the query writes it, with its type; for messages and comparison."""
    top: Top | None = None


class Panes(msgspec.Struct, frozen=True, tag="panes"):
    """Aligned windows over a timestamp column, kept as panes: the pieces that no window border cuts."""

    column: int
    """Position of the timestamp column (int64 microseconds) in the input schema."""
    size_us: int
    slide_us: int
    offset_us: int
    window: Column
    """The window column of the query."""


class KeyedTime(msgspec.Struct, frozen=True, tag="keyed"):
    """Groups whose key holds their own expiry time, for example a window column made by an operator below."""

    column: int
    """Position of the expiry column (int64 microseconds, may be null: never expires) in the input schema."""
    slice_us: int
    """Groups that expire within one interval of this length share a table."""
    key: Column
    """The key column that carries the time."""


class Sessions(msgspec.Struct, frozen=True, tag="sessions"):
    """Sessions: every row has one of its own, and those of a key that overlap or touch are one."""

    start: int
    """Position of the start of the row's own session (int64 microseconds) in the input schema."""
    end: int
    """Position of its end."""
    gap_us: int | None
    """How long a session waits for the next row; None: each row says it."""
    timer_us: int
    """Keys whose sessions may end within one interval of this length share a table of timers; 0: none ever ends."""
    window: Column
    """The window column of the query."""
    followed: bool = True
    """Whether a watermark follows the window column. Without one no row is late."""
    by_calendar: bool = False
    """Whether the gap is of days or months, so that it is only about as long as `gap_us`."""


class CountWindows(msgspec.Struct, frozen=True, tag="counts"):
    """Windows that end with their rows, not with time: each takes so many of a key, in the order in which they come.
    Merged groups are emitted with the number of their window right behind the keys."""

    rows: int
    """How many rows make a window."""
    window: Column
    """The window column of the query."""


class JoinTime(msgspec.Struct, frozen=True, tag="join"):
    """Rows of a join that are late by their side's event time, and are forgotten when they can find no partner any
    more: where that can be known, the watermark plus the side's offset has reached their event time."""

    offsets_us: tuple[int | None, int | None]
    """For the left side and the right; None: the side's rows stay for ever."""
    slice_us: int
    """Rows that can be forgotten within one interval of this length share files."""


TimeSpec = Panes | KeyedTime | Sessions | CountWindows | JoinTime


def kept_time(time: TimeSpec | None) -> tuple[int, ...]:
    """Where a slice is more than one moment long, its rows do not end together, and the expiry of each is kept."""
    return (time.column,) if isinstance(time, KeyedTime) and time.slice_us > 1 else ()


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What all operators have."""

    name: str
    keys: tuple[Column, ...]
    """The group keys, windows of `Panes`, `Sessions` and `CountWindows` left out."""
    time: TimeSpec | None
    """None: what is kept never expires."""
    input_ipc: bytes
    """Arrow schema of what ingest tasks read."""
    output_ipc: bytes
    """Arrow schema of what is emitted; for `Panes` and `Sessions` the window's start and end are the last two
    columns."""
    hint: str | None = None
    """The pattern that the query asked for, where that decided on the store; to be explained."""

    @property
    def drops_late_rows(self) -> bool:
        match self.time:
            case Sessions():
                return self.time.followed
            case CountWindows() | None:
                return False
        return True

    @property
    def input_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.input_ipc))

    def input_of(self, side: int) -> pa.Schema:  # noqa: ARG002
        """Of one of the operator's inputs."""
        return self.input_schema

    @property
    def output_lag_us(self) -> int:
        """How far what is emitted may be behind the watermark."""
        return 0

    @property
    def defers(self) -> bool:
        """Whether what a batch's watermark makes due waits for the batch after it."""
        return False

    @property
    def emits_deferred(self) -> bool:
        """Whether rows come out of that, which are then behind the watermark before their batch."""
        return False

    @property
    def output_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.output_ipc))


class AggregateSpec(Spec, frozen=True, kw_only=True, tag="aggregate"):
    """A keyed aggregate that is kept merged. It reads keys first, then other columns in any order, and emits keys
    and the buffers of the aggregates in order. Key i is column i of the input schema."""

    aggregates: tuple[Aggregate, ...]

    @property
    def defers(self) -> bool:
        """A row that is behind the watermark may still be in time for a session that has ended by then."""
        return isinstance(self.time, Sessions) and self.time.timer_us > 0

    @property
    def emits_deferred(self) -> bool:
        return self.defers


class WindowRowsSpec(Spec, frozen=True, kw_only=True, tag="window-rows"):
    """Rows that are kept as they are until their window ends, for what Spark then computes on all of them. It emits
    the kept columns. The keys only say which rows belong together."""

    key_columns: tuple[int, ...]
    """Positions of the keys in the input schema."""
    kept_columns: tuple[int, ...]
    """Positions of what is kept, in the order in which it is emitted."""
    kept: tuple[Column, ...]
    """What is kept as the query names it; for messages and comparison."""
    purpose: str
    """What is computed on the rows."""


class GroupRowsSpec(Spec, frozen=True, kw_only=True, tag="group-rows"):
    """Rows that are kept for as long as their group is, for what Spark computes on all of them whenever the group has
    got some, or with every batch. It emits the kept columns."""

    key_columns: tuple[int, ...]
    """Positions of the keys in the input schema."""
    kept_columns: tuple[int, ...]
    """Positions of what is kept, in the order in which it is emitted."""
    kept: tuple[Column, ...]
    """What is kept as the query names it; for messages and comparison."""
    purpose: str
    """What is computed on the rows."""
    late_column: int | None = None
    """Position of the time (int64 microseconds) by which a row is late, where groups never end: sessions in complete
    mode."""

    @property
    def drops_late_rows(self) -> bool:
        return self.late_column is not None or self.time is not None


class Forgetting(msgspec.Struct, frozen=True):
    """Keys that are forgotten some time after the event time of the row that brought them."""

    column: int
    """Position of the event time (int64 microseconds, a null counts as 0) in the input schema."""
    delay_us: int
    slice_us: int
    """Keys that are forgotten within one interval of this length are found together."""


class DedupSpec(Spec, frozen=True, kw_only=True, tag="dedup"):
    """Keys that were seen. It emits the first row of each; nothing but the key is kept of it. With `KeyedTime` a key
    is forgotten at the time that it holds."""

    key_columns: tuple[int, ...]
    """Positions of the keys in the input schema."""
    emitted_columns: tuple[int, ...]
    """Positions of what is emitted, in that order."""
    late_column: int | None
    """Position of the time (int64 microseconds, may be null) by which a row is late."""
    forgetting: Forgetting | None = None

    @property
    def drops_late_rows(self) -> bool:
        return self.late_column is not None

    @property
    def defers(self) -> bool:
        return self.time is not None or self.forgetting is not None


class UnalignedRowsSpec(Spec, frozen=True, kw_only=True, tag="unaligned-rows"):
    """Rows that are kept as they are until their session ends; until the end of the window that is one of their keys;
    or until their window has all its rows. It emits the kept columns, then start and end of the session or the number
    of the count window."""

    time: Sessions | KeyedTime | CountWindows
    key_columns: tuple[int, ...]
    """Positions of the keys in the input schema."""
    kept_columns: tuple[int, ...]
    """Positions of what is kept, in the order in which it is emitted."""
    kept: tuple[Column, ...]
    """What is kept as the query names it; for messages and comparison."""
    purpose: str
    """What is computed on the rows."""
    next_read: int | None = None
    """Position of the time (int64 microseconds, may be null) at which the row's window will be read, where the query
    predicts that. It decides what is read ahead and nothing else."""

    @property
    def defers(self) -> bool:
        return isinstance(self.time, Sessions)

    @property
    def emits_deferred(self) -> bool:
        return self.defers


class ObservedRowsSpec(Spec, frozen=True, kw_only=True, tag="observed-rows"):
    """Rows that are kept until the end of the window that is one of their keys, where it is not known whether the
    windows of many keys end together: that is seen when there are some. It emits the kept columns."""

    time: KeyedTime
    key_columns: tuple[int, ...]
    """Positions of the keys in the input schema."""
    kept_columns: tuple[int, ...]
    """Positions of what is kept, in the order in which it is emitted."""
    kept: tuple[Column, ...]
    """What is kept as the query names it; for messages and comparison."""
    purpose: str
    """What is computed on the rows."""
    next_read: int | None = None
    """As in `UnalignedRowsSpec`."""

    @property
    def aligned(self) -> WindowRowsSpec:
        """What it is where windows end together."""
        return WindowRowsSpec(
            name=self.name,
            keys=self.keys,
            time=self.time,
            input_ipc=self.input_ipc,
            output_ipc=self.output_ipc,
            key_columns=self.key_columns,
            kept_columns=(*self.kept_columns, *kept_time(self.time)),
            kept=self.kept,
            purpose=self.purpose,
        )

    @property
    def unaligned(self) -> UnalignedRowsSpec:
        """What it is where each ends by itself."""
        return UnalignedRowsSpec(**msgspec.structs.asdict(self))


JoinKind = Literal["inner", "left outer", "right outer", "full outer", "left semi"]


class JoinSide(msgspec.Struct, frozen=True):
    """One side of a join: positions in its input schema. All times are int64 microseconds."""

    input_ipc: bytes
    key_columns: tuple[int, ...]
    matchable: int | None
    """A boolean column: rows in which it is not true have no partner, whatever comes."""
    late: int | None
    """The event time: a row is late when the watermark has reached it."""
    expiry: int | None
    """The watermark at which the row can be forgotten; null: never."""
    comparands: tuple[int, ...]
    """int64 columns, each compared with the other side's."""
    times: tuple[int, ...]
    """Numbers of the comparisons whose comparand of this side is the time that `expiry` follows at a fixed distance:
    so it is known when the rows expire that a row of the other side looks for."""
    expires_after_us: int
    """That distance."""
    kept_columns: tuple[int, ...]
    """What is emitted."""
    kept: tuple[Column, ...]
    """What is emitted as the query names it."""
    outer: bool
    """Rows that were forgotten without having found a partner are emitted beside nulls."""
    once: bool
    """Rows are emitted with their first partner and never again."""
    null_keys: bool
    """Null is a key like others, and equal to itself."""


class JoinSpec(Spec, frozen=True, kw_only=True, tag="join"):
    """Pairs of rows of two streams that have equal keys and for which the comparisons hold. It emits the left side's
    kept columns, then the right side's."""

    join: JoinKind
    sides: tuple[JoinSide, JoinSide]
    comparisons: tuple[Literal["<", "<=", ">", ">="], ...]
    """Of the left row's comparands with the right one's."""
    condition: str
    """As the query writes it; for messages and comparison."""

    def input_of(self, side: int) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.sides[side].input_ipc))

    @property
    def output_lag_us(self) -> int:
        """A pair comes when its second row does; the first may be as old as the rows that are still kept."""
        offsets = self.time.offsets_us if isinstance(self.time, JoinTime) else ()
        return max((-offset for offset in offsets if offset is not None and offset < 0), default=0)

    @property
    def defers(self) -> bool:
        return isinstance(self.time, JoinTime) and any(offset is not None for offset in self.time.offsets_us)

    @property
    def emits_deferred(self) -> bool:
        return self.defers and any(side.outer for side in self.sides)


OperatorSpec = (
    AggregateSpec
    | WindowRowsSpec
    | GroupRowsSpec
    | UnalignedRowsSpec
    | ObservedRowsSpec
    | DedupSpec
    | JoinSpec
)
