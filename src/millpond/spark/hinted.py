"""Hints in Spark's plan: which one a node has, and the column of times that a predictor of the user gives.

The predictor runs in Spark before the plan is cut, like a window function, so that a store sees a time with each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millpond.errors import InvalidQuery
from millpond.hints import MARK, Hint, NextRead, hint_on, known, marked
from millpond.spark.arrow_functions import arrow_function, name_of, times_like
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, to_python_type
from millpond.spark.windows import watermarked_key

__all__ = ["hint_of", "hinted", "hinted_schema", "with_next_read"]

_PREFIX = "millpond_"


def hint_of(node: JavaObject) -> Hint:
    """What the query says of a node that groups: with its functions, else with its window."""
    if kind(node) == "Aggregate":
        columns = [*items(node.aggregateExpressions()), *items(node.groupingExpressions())]
    else:
        columns = [*items(node.output()), *items(node.groupingAttributes())]
    found = Hint()
    for column in columns:
        found = found.over(_hint_with(column))
    return found


def _hint_with(column: JavaObject) -> Hint | None:
    if kind(column) not in ("Alias", "AttributeReference") or not column.metadata().contains(MARK):
        return None
    return known(int(column.metadata().getLong(MARK)))


def hinted(frame: DataFrame, given: Hint) -> DataFrame:
    """An aggregate of groups that have a hint: the last result carries it. What a function of it says counts more."""
    catalyst = Catalyst(frame.sparkSession)
    plan = _marked_plan(catalyst, frame._jdf.queryExecution().analyzed(), given)
    return frame if plan is None else catalyst.own_frame(plan)


def _marked_plan(catalyst: Catalyst, node: JavaObject, given: Hint) -> JavaObject | None:
    if kind(node) == "Aggregate":
        *others, last = items(node.aggregateExpressions())
        if kind(last) != "Alias":
            return None
        mark = catalyst.metadata(marked((_hint_with(last) or Hint()).over(given)))
        result = catalyst.alias_as(last.child(), last.toAttribute().withMetadata(mark))
        return catalyst.aggregate(node.groupingExpressions(), catalyst.seq([*others, result]), node.child())
    children = items(node.children())
    below = _marked_plan(catalyst, children[0], given) if len(children) == 1 else None
    return None if below is None else node.withNewChildren(catalyst.seq([below]))


def hinted_schema(function: Any, schema: StructType | str, of_groups: Hint | None) -> StructType | str:
    """The schema of what a function of groups returns, marked with the hint that it was decorated with, and that of
    its groups."""
    given = hint_on(function)
    given = of_groups if given is None else given.over(of_groups)
    if given is None:
        return schema
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    fields = StructType.fromJson(schema.jsonValue()).fields
    fields[0].metadata = {**(fields[0].metadata or {}), **marked(given)}
    return StructType(fields)


def with_next_read(
    catalyst: Catalyst,
    below: JavaObject,
    keys: list[JavaObject],
    window: JavaObject | None,
    predict: NextRead,
) -> tuple[JavaObject, JavaObject]:
    """The plan `below` with one more column: when the windows of its rows will be read, by the predictor. Returns the
    plan and the column. `window`: a column of starts and ends, where there is one before the rows are kept."""
    text = f"next_read={name_of(predict)}"
    time = watermarked_key([column for column in items(below.output()) if not _is_struct(column)])
    if time is None:
        raise InvalidQuery(
            f"hint({text}): it is given the event time of rows, and there is none; call withWatermark(...) before "
            "groupBy"
        )
    given = {f"key{i}": key for i, key in enumerate(keys)} | {"time": time}
    if window is not None:
        given["window"] = window
    named = [catalyst.alias(expression, _PREFIX + name) for name, expression in given.items()]
    frame = catalyst.own_frame(catalyst.project(catalyst.seq([*items(below.output()), *named]), below))
    columns = {name: F.col(_PREFIX + name) for name in given}
    predicted = arrow_function(_checked(predict, f"hint({text})"), to_python_type(time.dataType()))(
        F.struct(*(columns[f"key{i}"].alias(_name(key)) for i, key in enumerate(keys)))
        if keys
        else F.lit(None),
        columns.get("window", F.lit(None)),
        columns["time"],
    )
    plan = frame.select("*", predicted.alias(_PREFIX + "next_read"))._jdf.queryExecution().analyzed()
    return plan, items(plan.output())[-1]


def _is_struct(column: JavaObject) -> bool:
    return bool(column.dataType().typeName() == "struct")


def _name(key: JavaObject) -> str:
    return str(key.name()) if kind(key) == "AttributeReference" else str(key.sql())


def _checked(predict: NextRead, text: str) -> Callable[..., pa.Array]:
    def times(keys: pa.Array, windows: pa.Array, last_times: pa.Array) -> pa.Array:
        return _times(predict(keys, windows, last_times), last_times, text)

    return times


def _times(given: Any, last_times: pa.Array, text: str) -> pa.Array:
    array = times_like(last_times, given, f"{text} returned times")
    past = pc.index(pc.less(array, last_times), True).as_py()
    if past >= 0:
        raise InvalidQuery(
            f"{text} returned {array[past]} for a row of {last_times[past]}: what lies in the past is not read next"
        )
    return array
