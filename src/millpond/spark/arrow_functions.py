"""Functions of the user over Arrow arrays, which Spark runs on the rows below a cut, and what they may return."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import ArrowUDFType
from pyspark.sql.types import DataType

from millpond.errors import InvalidQuery

__all__ = ["arrow_function", "name_of", "times_like"]


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def arrow_function(function: Callable[..., pa.Array], returns: DataType) -> Callable[..., Column]:
    with warnings.catch_warnings():
        # Spark would rather read the kind from type hints, which a function of any number of columns lacks.
        warnings.simplefilter("ignore", UserWarning)
        made: Callable[..., Column] = F.arrow_udf(function, returns, ArrowUDFType.SCALAR)
    return made


def times_like(times: pa.Array, values: Any, what: str) -> pa.Array:
    """What a function returned for rows of these times, as times of the same type. `what`: says it in messages."""
    try:
        array = (values if isinstance(values, pa.Array) else pa.array(values)).cast(times.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidQuery(f"{what} that are no times: {error}") from error
    if len(array) != len(times):
        raise InvalidQuery(f"{what} for {len(times)} rows, but {len(array)} of them")
    return array
