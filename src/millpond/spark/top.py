"""`top` and `latest`: the first rows of each group in an order, which Spark has no streaming operator for.

In the plan, `top` stands as an aggregate that gathers the group's rows, marked with how many are kept and in which
order. So the columns above it, and what else a query does with them, are Spark's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.group import GroupedData
from pyspark.sql.types import ArrayType, CalendarIntervalType, DataType, MapType, StructType, VariantType

from millpond.errors import InvalidQuery
from millpond.semantics.operator import Order, Top
from millpond.spark.jvm import JavaObject, items, java_class, kind, plain_sql
from millpond.spark.schemas import is_collated

__all__ = ["has_top", "is_exploded_top", "latest", "marked_top", "top", "top_text"]

By: TypeAlias = str | Column | Sequence[str | Column]

_MARK = "millpond.top"
_LARGEST_FIRST: Order = "desc_nulls_last"

_ORDERS: dict[tuple[str, str], Order] = {
    ("Ascending", "NullsFirst"): "asc_nulls_first",
    ("Ascending", "NullsLast"): "asc_nulls_last",
    ("Descending", "NullsFirst"): "desc_nulls_first",
    ("Descending", "NullsLast"): "desc_nulls_last",
}
"""As Spark's sort orders call them."""


def top(groups: GroupedData, n: int, by: By) -> DataFrame:
    """Each group's first `n` rows: its keys, the other columns, and `rank` from 1."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise InvalidQuery(f"top({n!r}, ...): the number of rows to keep is a whole number from 1")
    rows = _Rows.of(groups, by, "top")
    if "rank" in (name.lower() for name in (*rows.keys, *rows.others)):
        raise InvalidQuery("top(...) adds a column named rank, and there is one already: rename it before")
    gathered = _gathered(groups, rows, n)
    exploded = gathered.select(
        *map(_named, gathered.columns[:-1]), F.posexplode(_named(gathered.columns[-1])).alias("place", "row")
    )
    columns = [*map(_named, gathered.columns[:-1]), *rows.taken_from("row")]
    return exploded.select(*columns, (F.col("place") + 1).alias("rank"))


def latest(groups: GroupedData, by: By) -> DataFrame:
    """Each group's row with the largest `by`: its keys and the other columns."""
    rows = _Rows.of(groups, by, "latest")
    if any(order != _LARGEST_FIRST for order in rows.orders):
        raise InvalidQuery(
            "latest(...) takes the row with the largest values; for another order use top(1, by=...)"
        )
    if rows.all_ordered:
        one = groups.agg(F.max(rows.struct).alias("row"))
        return one.select(*map(_named, one.columns[:-1]), *rows.taken_from("row"))
    gathered = _gathered(groups, rows, 1)
    one = gathered.select(
        *map(_named, gathered.columns[:-1]), _named(gathered.columns[-1]).getItem(0).alias("row")
    )
    return one.select(*map(_named, one.columns[:-1]), *rows.taken_from("row"))


def _gathered(groups: GroupedData, rows: _Rows, n: int) -> DataFrame:
    mark = Top(n, rows.by, rows.orders)
    gathered = F.collect_list(rows.struct).alias("rows", metadata={_MARK: msgspec.json.encode(mark).decode()})
    return groups.agg(gathered)


def marked_top(expression: JavaObject) -> Top | None:
    """What is kept for a result column of an aggregate that `top` made."""
    if kind(expression) != "Alias" or not expression.metadata().contains(_MARK):
        return None
    inside = expression.child()
    if kind(inside) != "AggregateExpression" or kind(inside.aggregateFunction()) != "CollectList":
        return None
    return msgspec.json.decode(str(expression.metadata().getString(_MARK)), type=Top)


def is_exploded_top(generate: JavaObject) -> bool:
    """Whether a node makes rows of the lists that `top` gathers, as `top` itself has it."""
    aggregate, generator = generate.child(), generate.generator()
    if kind(aggregate) != "Aggregate" or kind(generator) != "PosExplode" or generate.outer():
        return False
    gathered = [column for column in items(aggregate.aggregateExpressions()) if marked_top(column)]
    return len(gathered) == 1 and generator.child().semanticEquals(gathered[0].toAttribute())


def has_top(plan: JavaObject) -> bool:
    if kind(plan) == "Aggregate" and any(map(marked_top, items(plan.aggregateExpressions()))):
        return True
    return any(map(has_top, items(plan.children())))


def top_text(mark: Top, struct: JavaObject) -> str:
    """How `top` is written, for messages and comparison."""
    values = items(struct.children())[1::2]
    columns = [plain_sql(value) for value in values]
    ordered = (
        f"{column} {order.replace('_', ' ')}"
        for column, order in zip(columns[: mark.by], mark.orders, strict=False)
    )
    types = ", ".join(str(value.dataType().sql()).lower() for value in values)
    return f"top {mark.count} of ({', '.join(columns)}) by {', '.join(ordered)}: {types}"


@dataclass(frozen=True)
class _Rows:
    """A group's rows as a struct whose fields stand in the order in which they decide: what the query orders by,
    then the other columns, so that no two engines choose between equal rows in different ways."""

    keys: tuple[str, ...]
    others: dict[str, str]
    """The columns that are no keys, each with its field, in the order of the frame."""
    struct: Column
    by: int
    orders: tuple[Order, ...]
    all_ordered: bool
    """Whether every field has an order of Spark's own, by bytes."""

    @staticmethod
    def of(groups: GroupedData, by: By, method: str) -> _Rows:
        frame = groups._df
        wanted = list(by) if isinstance(by, (list, tuple)) else [by]
        if not wanted:
            raise InvalidQuery(f"{method}(...): name at least one column to order by")
        keys, others = _columns(groups, frame, method)
        fields: list[Column] = []
        orders: list[Order] = []
        field_of: dict[str, str] = {}
        for column in wanted:
            value, order = _ordered(frame, column, method)
            field = f"c{len(fields)}"
            name = _frame_column(frame, value, others)
            if name is not None:
                if name in field_of:
                    continue
                field_of[name] = field
            fields.append(value.alias(field))
            orders.append(order)
        count = len(fields)
        for name in others:
            if name not in field_of:
                field_of[name] = f"c{len(fields)}"
                fields.append(_named(name).alias(field_of[name]))
                orders.append(_LARGEST_FIRST)
        types = [field.dataType for field in frame.select(*fields).schema]
        for column, kind_ in zip(wanted, types[:count], strict=False):
            if not _is_ordered(kind_):
                raise InvalidQuery(
                    f"{method}(..., by={column!r}): values of the type {kind_.simpleString()} have no order that "
                    "Millpond can keep; order by another column"
                )
        return _Rows(
            keys=keys,
            others={name: field_of[name] for name in others},
            struct=F.struct(*fields),
            by=count,
            orders=tuple(orders),
            all_ordered=all(map(_is_ordered, types)),
        )

    def taken_from(self, row: str) -> list[Column]:
        return [F.col(row).getField(field).alias(name) for name, field in self.others.items()]


def _columns(groups: GroupedData, frame: DataFrame, method: str) -> tuple[tuple[str, ...], list[str]]:
    """The names of the keys, and of the frame's columns that are none of them."""
    plan = groups.agg(F.count(F.lit(1)))._jdf.queryExecution().analyzed()
    if kind(plan) != "Aggregate" or _has_grouping_sets(plan):
        raise InvalidQuery(f"{method}(...) is for groupBy(...), not for rollup, cube, grouping sets or pivot")
    grouping = [key for key in items(plan.groupingExpressions()) if kind(key) == "AttributeReference"]
    others = []
    for attribute in items(frame._jdf.queryExecution().analyzed().output()):
        if not any(key.exprId().equals(attribute.exprId()) for key in grouping):
            others.append(str(attribute.name()))
    keys = tuple(str(attribute.name()) for attribute in items(plan.output()))[:-1]
    return keys, others


def _has_grouping_sets(aggregate: JavaObject) -> bool:
    return any(
        kind(key) == "AttributeReference" and str(key.name()) == "spark_grouping_id"
        for key in items(aggregate.groupingExpressions())
    )


def _ordered(frame: DataFrame, column: str | Column, method: str) -> tuple[Column, Order]:
    """The column alone, and its order: the largest first where the query does not say."""
    if isinstance(column, str):
        value, order = F.col(column), _LARGEST_FIRST
    elif isinstance(column, Column):
        value, order = _taken_apart(frame, column)
    else:
        raise InvalidQuery(f"{method}(..., by={column!r}): it is a column or the name of one")
    try:
        frame.select(value)
    except AnalysisException as error:
        raise InvalidQuery(f"{method}(..., by={column!r}): {error}") from error
    return value, order


def _taken_apart(frame: DataFrame, column: Column) -> tuple[Column, Order]:
    node = column._jc.node()
    if kind(node) != "SortOrder":
        return column, _LARGEST_FIRST
    written = kind(node.sortDirection()).rstrip("$"), kind(node.nullOrdering()).rstrip("$")
    value = ClassicColumn(java_class(frame.sparkSession._jvm, "org.apache.spark.sql.Column")(node.child()))
    return value, _ORDERS[written]


def _frame_column(frame: DataFrame, value: Column, names: list[str]) -> str | None:
    """The name of the frame's column that the value is, if it is one."""
    (resolved,) = items(frame.select(value)._jdf.queryExecution().analyzed().projectList())
    if kind(resolved) != "AttributeReference":
        return None
    for attribute in items(frame._jdf.queryExecution().analyzed().output()):
        if attribute.exprId().equals(resolved.exprId()) and str(attribute.name()) in names:
            return str(attribute.name())
    return None


def _is_ordered(data_type: DataType) -> bool:
    match data_type:
        case MapType() | VariantType() | CalendarIntervalType():
            return False
        case ArrayType():
            return _is_ordered(data_type.elementType)
        case StructType():
            return all(_is_ordered(field.dataType) for field in data_type.fields)
    return not is_collated(data_type)


def _named(name: str) -> Column:
    """The column with exactly this name."""
    return F.col(f"`{name.replace('`', '``')}`")
