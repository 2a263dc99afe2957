"""The types that cross between Spark and the kernel, as Spark, Arrow and messages name them.

Everything is nullable at every depth: Spark's optimiser sharpens nullability between two runs of one query,
and kept state must not depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from millpond.errors import InvalidQuery

__all__ = ["ArrowSettings", "arrow_schema", "is_collated", "nullable_everywhere", "struct_of"]


def nullable_everywhere(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return struct_of([(field.name, field.dataType) for field in data_type.fields])
        case ArrayType():
            return ArrayType(nullable_everywhere(data_type.elementType), True)
        case MapType():
            return MapType(
                nullable_everywhere(data_type.keyType), nullable_everywhere(data_type.valueType), True
            )
    return data_type


def struct_of(columns: Sequence[tuple[str, DataType]]) -> StructType:
    return StructType([StructField(name, nullable_everywhere(kind), True) for name, kind in columns])


def is_collated(data_type: DataType) -> bool:
    """True when a string in it is ordered otherwise than by its bytes."""
    match data_type:
        case StringType():
            return not data_type.isUTF8BinaryCollation()
        case StructType():
            return any(is_collated(field.dataType) for field in data_type.fields)
        case ArrayType():
            return is_collated(data_type.elementType)
        case MapType():
            return is_collated(data_type.keyType) or is_collated(data_type.valueType)
    return False


@dataclass(frozen=True)
class ArrowSettings:
    """The session settings that decide in which Arrow types Spark hands columns over."""

    time_zone: str
    large_types: bool

    @staticmethod
    def of(session: SparkSession) -> ArrowSettings:
        return ArrowSettings(
            time_zone=session.conf.get("spark.sql.session.timeZone"),
            large_types=session.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true",
        )


def arrow_schema(
    columns: StructType, *, operator: str, meanings: Sequence[str], settings: ArrowSettings
) -> pa.Schema:
    """The Arrow schema with which Spark hands over such columns. `meanings` name them in messages."""
    fields: list[pa.Field] = []
    for column, meaning in zip(columns.fields, meanings, strict=True):
        try:
            alone = to_arrow_schema(
                StructType([column]), timezone=settings.time_zone, prefers_large_types=settings.large_types
            )
        except (PySparkException, TypeError) as error:
            raise InvalidQuery(
                f"{operator}: {meaning} has the type {column.dataType.simpleString()}, which Spark cannot "
                "hand to Python; cast it to another type"
            ) from error
        fields.append(alone.field(0))
    return pa.schema(fields)
