"""Operators that keep rows until their own window ends, which is at another time for every key.

The node of Spark's plan stays where it is and runs as a batch operator over the rows of the windows that ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from millpond.semantics.operator import (
    Column,
    CountWindows,
    KeyedTime,
    ObservedRowsSpec,
    Sessions,
    UnalignedRowsSpec,
)
from millpond.spark.grouped import GroupedRows
from millpond.spark.hinted import with_next_read
from millpond.spark.jvm import Catalyst, JavaObject, items, plain_sql
from millpond.spark.operators import (
    Inputs,
    Operator,
    check_key,
    emitted_columns,
    positions_of,
    type_text,
)
from millpond.spark.schemas import ArrowSettings

__all__ = ["UnalignedRowsDraft"]


class UnalignedRowsDraft(ABC):
    noun = "rows"
    keeps_node = True

    node: JavaObject
    """As it stays in the plan."""

    def __init__(
        self, catalyst: Catalyst, rows: GroupedRows, window: JavaObject | None, *, bounds: JavaObject | None
    ) -> None:
        """`window`: the window column, where it is made of what the store says. `bounds`: a column of the start and
        end that a row knows itself."""
        self._catalyst = catalyst
        self._keys = rows.keys
        self._window = window
        self._purpose = rows.purpose
        self._decided_by = rows.decided_by
        self.node = rows.node
        below, self._next_read = rows.node.child(), None
        self._columns = [
            attribute
            for attribute in items(below.output())
            if rows.used is None or any(e.references().contains(attribute) for e in rows.used)
        ]
        self._kept = _distinct(column for column in self._columns if not self._is_window(column))
        if rows.hint.next_read is not None:
            of_window = [column for column in (window, bounds) if column is not None]
            others = [key for key in rows.keys if not any(key.semanticEquals(column) for column in of_window)]
            below, self._next_read = with_next_read(catalyst, below, others, bounds, rows.hint.next_read)
        self.below = (below,)

    def _is_window(self, attribute: JavaObject) -> bool:
        return self._window is not None and bool(attribute.exprId().equals(self._window.exprId()))

    @abstractmethod
    def _time(self, name: str, inputs: Inputs, keys: list[JavaObject]) -> Sessions | KeyedTime | CountWindows:
        """When windows end; its columns become inputs. `keys`: those beside the window."""

    @abstractmethod
    def _window_slots(self) -> tuple[list[JavaObject], JavaObject | None]:
        """What is emitted behind the kept columns, and the window column made of it."""

    def _spec(
        self, time: Sessions | KeyedTime | CountWindows, **others: Any
    ) -> UnalignedRowsSpec | ObservedRowsSpec:
        return UnalignedRowsSpec(time=time, **others)

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        for key in self._keys:
            check_key(self._catalyst, key, name)
        keys = [key for key in self._keys if self._window is None or not key.semanticEquals(self._window)]
        inputs = Inputs()
        for attribute in self._kept:
            inputs.append(attribute, f"the column {attribute.name()}")
        positions = [
            inputs.position(self._catalyst.normalized_key(key), f"the key {plain_sql(key)}") for key in keys
        ]
        time = self._time(name, inputs, keys)
        next_read = None
        if self._next_read is not None:
            next_read = inputs.append(self._catalyst.micros(self._next_read), "the time that next_read says")
        inputs.fill(self._catalyst)
        bounds, window = self._window_slots()
        slots = [*self._kept, *bounds]
        emitted, output_ipc = emitted_columns(slots, name, arrow)
        spec = self._spec(
            name=name,
            keys=tuple(Column(plain_sql(key), type_text(key)) for key in keys),
            time=time,
            input_ipc=inputs.schema_bytes(name, arrow),
            output_ipc=output_ipc,
            key_columns=tuple(positions),
            kept_columns=tuple(range(len(self._kept))),
            kept=tuple(Column(str(attribute.name()), type_text(attribute)) for attribute in self._kept),
            purpose=self._purpose,
            next_read=next_read,
            hint=self._decided_by,
        )
        return Operator(
            spec=spec,
            emitted=emitted,
            inputs=(inputs.columns(self._catalyst),),
            slots=tuple(slots),
            # In the order in which the node has them: functions of groups go by that.
            columns=self._catalyst.seq(window if self._is_window(c) else c for c in self._columns),
            results=None,
            clustered_by=positions_of(keys, self._kept),
        )


def _distinct(attributes: Iterable[JavaObject]) -> list[JavaObject]:
    """A key stands among the columns twice where functions of groups read them."""
    found: list[JavaObject] = []
    for attribute in attributes:
        if not any(attribute.exprId().equals(other.exprId()) for other in found):
            found.append(attribute)
    return found
