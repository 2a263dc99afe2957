"""Keys of a join that Spark could only compare after a cast that nobody asked for.

A stream of numbers written as text that is joined with numbers finds partners by what Spark reads out of the text,
and stops at the first row that is none. Which type is meant is for the query to say.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.errors import InvalidQuery
from millpond.spark.jvm import Catalyst, JavaObject, kind, plain_sql, to_python_type

__all__ = ["check_key_types"]


def check_key_types(catalyst: Catalyst, join: JavaObject) -> None:
    if not join.condition().isDefined():
        return
    left, right = join.left().outputSet(), join.right().outputSet()
    for condition in catalyst.conjuncts(join.condition().get()):
        if kind(condition) not in ("EqualTo", "EqualNullSafe"):
            continue
        sides = [condition.left(), condition.right()]
        if any(_is_of_both(side, left, right) for side in sides):
            continue
        given = [catalyst.before_own_cast(side) for side in sides]
        types = [to_python_type(side.dataType()) for side in given]
        if _family(types[0]) != _family(types[1]) and not any(isinstance(t, NullType) for t in types):
            texts = " and ".join(
                f"{plain_sql(side)} is {found.simpleString()}"
                for side, found in zip(given, types, strict=True)
            )
            raise InvalidQuery(
                f"the join of two streams asks for equal values of different types: {texts}. Cast one of them to the "
                "type of the other, with cast(...) in the condition or before the join"
            )


def _is_of_both(side: JavaObject, left: JavaObject, right: JavaObject) -> bool:
    """Or of none: then it is no key."""
    references = side.references()
    return bool(references.isEmpty() or not (references.subsetOf(left) or references.subsetOf(right)))


def _family(data_type: DataType) -> str:
    """Types of one family are compared without loss after the wider one is chosen."""
    match data_type:
        case NumericType():
            return "number"
        case StringType():
            return "text"
        case DateType() | TimestampType() | TimestampNTZType():
            return "time"
        case ArrayType():
            return f"array of {_family(data_type.elementType)}"
        case StructType():
            return f"struct of {', '.join(_family(field.dataType) for field in data_type.fields)}"
    return str(data_type.typeName())
