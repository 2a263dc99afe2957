"""How Spark's aggregate functions are kept: which merged buffers, from which inputs.

Spark's own final rule (`evaluateExpression`) turns the buffers into the result, so result types, nulls and
overflow are Spark's. What is not listed here can't be merged from parts, or not yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from millpond.errors import InvalidQuery
from millpond.semantics.operator import AggregateOp
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql, to_python_type
from millpond.spark.schemas import is_collated

__all__ = ["BUFFER_COUNTS", "Kept", "Part", "is_mergeable", "keep"]

BUFFER_COUNTS: dict[AggregateOp, int] = {
    "count": 1,
    "count_of": 1,
    "sum_int": 1,
    "sum_int_wrapping": 1,
    "sum_int_try": 2,
    "sum_float": 1,
    "sum_decimal": 2,
    "min": 1,
    "max": 1,
    "first": 2,
    "last": 2,
    "first_non_null": 2,
    "last_non_null": 2,
    "min_by": 2,
    "max_by": 2,
    "bit_and": 1,
    "bit_or": 1,
    "bit_xor": 1,
    "moments": 3,
    "top": 1,
}
"""How many columns the kernel emits for each operation."""


@dataclass(frozen=True)
class Part:
    """One merged aggregate that a function needs."""

    op: AggregateOp
    inputs: tuple[JavaObject, ...]
    text: str
    when: JavaObject | None = None
    """A condition of the function itself, beside the query's FILTER clause."""


@dataclass(frozen=True)
class Kept:
    """A function as it is kept: its parts, and which of their buffers are Spark's own, in Spark's order."""

    function: JavaObject
    parts: tuple[Part, ...]
    buffers: tuple[tuple[int, int], ...]
    """(part, buffer of the part)"""


def keep(catalyst: Catalyst, function: JavaObject, operator: str) -> Kept:
    written = plain_sql(function)
    while catalyst.is_replaceable(function):
        function = function.replacement()
    rule = _RULES.get(kind(function))
    if rule is None:
        raise InvalidQuery(
            f"{operator}: {written} can't be merged from parts, and Millpond does not keep such aggregates "
            f"yet. It keeps {_SUPPORTED}"
        )
    parts = rule(catalyst, function, f"{operator}: {written}")
    if kind(function) == "Average":
        return Kept(function, parts, ((0, 0), (1, 0)))
    (part,) = parts
    return Kept(function, parts, tuple((0, i) for i in range(BUFFER_COUNTS[part.op])))


def is_mergeable(catalyst: Catalyst, expression: JavaObject) -> bool:
    """`expression`: a function as it stands in an aggregate. Merged values do not tell which were counted before."""
    function = expression.aggregateFunction()
    while catalyst.is_replaceable(function):
        function = function.replacement()
    return kind(function) in _RULES and not expression.isDistinct()


_Rule = Callable[[Catalyst, JavaObject, str], tuple[Part, ...]]


def _count(catalyst: Catalyst, function: JavaObject, _: str) -> tuple[Part, ...]:
    return (_count_of(catalyst, items(function.children())),)


def _count_of(catalyst: Catalyst, children: list[JavaObject]) -> Part:
    """Only whether an input is null matters, so what is wider than a number goes over as a condition."""
    nullable = [child for child in children if child.nullable()]
    text = f"count({', '.join(plain_sql(child) for child in nullable) or '1'})"
    if all(child.dataType().typeName() in _NARROW for child in nullable):
        return Part("count", tuple(nullable), text)
    when = catalyst.is_not_null(nullable[0])
    for child in nullable[1:]:
        when = catalyst.both(when, catalyst.is_not_null(child))
    return Part("count", (), text, when)


_NARROW = {"boolean", "byte", "tinyint", "short", "smallint", "integer", "int", "long", "bigint", "float",
           "double", "date", "timestamp", "timestamp_ntz"}  # fmt: skip


def _sum(catalyst: Catalyst, function: JavaObject, place: str) -> tuple[Part, ...]:
    op = _sum_op(function.dataType(), str(function.evalContext().evalMode()), place)
    return (_sum_of(catalyst, op, function),)


def _sum_of(catalyst: Catalyst, op: AggregateOp, function: JavaObject) -> Part:
    child = items(function.children())[0]
    total = items(function.aggBufferAttributes())[0].dataType()
    text = f"sum({plain_sql(child)}) {total.sql().lower()}"
    return Part(op, (catalyst.widened(child, total),), text)


def _sum_op(total: JavaObject, eval_mode: str, place: str) -> AggregateOp:
    type_name = str(total.typeName())
    if type_name == "long":
        ops: dict[str, AggregateOp] = {
            "ANSI": "sum_int",
            "LEGACY": "sum_int_wrapping",
            "TRY": "sum_int_try",
        }
        return ops[eval_mode]
    if type_name == "double":
        return "sum_float"
    if type_name.startswith("decimal"):
        return "sum_decimal"
    raise InvalidQuery(
        f"{place} adds up values of the type {total.sql().lower()}, which Millpond can't keep yet"
    )


def _average(catalyst: Catalyst, function: JavaObject, place: str) -> tuple[Part, ...]:
    total = items(function.aggBufferAttributes())[0].dataType()
    op = _sum_op(total, "LEGACY", place)
    return (_sum_of(catalyst, op, function), _count_of(catalyst, items(function.children())[:1]))


def _ordered(op: AggregateOp) -> _Rule:
    """min, max and their `by` forms: the last input is the one that is compared."""

    def rule(_: Catalyst, function: JavaObject, place: str) -> tuple[Part, ...]:
        children = items(function.children())
        if is_collated(to_python_type(children[-1].dataType())):
            raise InvalidQuery(
                f"{place} compares strings by a collation, and Millpond compares them by their bytes; "
                "use `collate UTF8_BINARY`"
            )
        return (_plain(op, op, children),)

    return rule


def _positional(op: AggregateOp, op_non_null: AggregateOp) -> _Rule:
    def rule(_: Catalyst, function: JavaObject, __: str) -> tuple[Part, ...]:
        children = items(function.children())[:1]
        chosen = op_non_null if function.ignoreNulls() else op
        return (_plain(chosen, chosen.replace("_", " "), children),)

    return rule


def _unary(op: AggregateOp) -> _Rule:
    def rule(_: Catalyst, function: JavaObject, __: str) -> tuple[Part, ...]:
        return (_plain(op, op, items(function.children())[:1]),)

    return rule


def _plain(op: AggregateOp, name: str, children: list[JavaObject]) -> Part:
    kinds = ", ".join(str(child.dataType().sql()).lower() for child in children)
    return Part(op, tuple(children), f"{name}({', '.join(plain_sql(child) for child in children)}) {kinds}")


_RULES: dict[str, _Rule] = {
    "Count": _count,
    "Sum": _sum,
    "Average": _average,
    "Min": _ordered("min"),
    "Max": _ordered("max"),
    "MinBy": _ordered("min_by"),
    "MaxBy": _ordered("max_by"),
    "First": _positional("first", "first_non_null"),
    "Last": _positional("last", "last_non_null"),
    **{f"Bit{name}Agg": _unary(cast(AggregateOp, f"bit_{name.lower()}")) for name in ("And", "Or", "Xor")},
    **{name: _unary("moments") for name in ("StddevPop", "StddevSamp", "VariancePop", "VarianceSamp")},
}

_SUPPORTED = (
    "count, count_if, sum, avg, min, max, first, last, any_value, min_by, max_by, bool_and, bool_or, "
    "bit_and, bit_or, bit_xor, stddev and variance."
)
