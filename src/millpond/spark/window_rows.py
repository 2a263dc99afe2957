"""Operators that keep rows for what Spark can only compute on all of them at once: aggregates that can't be merged,
functions of groups in pandas or Arrow, and joins of two streams by window (`spark/window_joins.py`).

In append mode rows are kept until their window ends; else for as long as their group is in the result. The node of
Spark's plan stays where it is and runs as a batch operator over the rows that are given out. Rows that belong
together come from one shard, and Spark is told so: it needs no shuffle to group them.
"""

from __future__ import annotations

from millpond.semantics.operator import (
    Column,
    GroupRowsSpec,
    OutputMode,
    TimeSpec,
    WindowRowsSpec,
    kept_time,
)
from millpond.spark.grouped import GroupedRows
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql
from millpond.spark.operators import (
    Inputs,
    Operator,
    check_key,
    emitted_columns,
    positions_of,
    time_of,
    type_text,
    with_window,
)
from millpond.spark.panes import panes_below
from millpond.spark.schemas import ArrowSettings
from millpond.spark.windows import WindowForm, is_session_window, watermarked_key

__all__ = ["GroupRowsDraft", "WindowRowsDraft"]


class WindowRowsDraft:
    noun = "rows"
    keeps_node = True
    _spec_type: type[WindowRowsSpec] | type[GroupRowsSpec] = WindowRowsSpec

    def __init__(self, catalyst: Catalyst, rows: GroupedRows) -> None:
        self._catalyst = catalyst
        self._keys = rows.keys
        self._purpose = rows.purpose
        self._decided_by = rows.decided_by
        self._timed_key = self._time_that_ends_groups(rows.keys)
        plain = self._timed_key is not None and kind(self._timed_key) == "AttributeReference"
        self._form = self._form_over(rows.node.child(), self._timed_key) if plain else None
        child = rows.node.child()
        self.below = (child if self._form is None else self._form.below,)
        self._kept = [
            attribute
            for attribute in items(child.output())
            if (rows.used is None or any(e.references().contains(attribute) for e in rows.used))
            and not (self._form is not None and attribute.exprId().equals(self._form.window.exprId()))
        ]
        if not self._kept and self._form is None:
            # Rows without columns could not be counted on their way.
            self._kept = items(child.output())[:1]

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        keys = self._placing_keys()
        for key in keys:
            check_key(self._catalyst, key, name)
        inputs = Inputs()
        for attribute in self._kept:
            inputs.append(attribute, f"the column {attribute.name()}")
        positions = [
            inputs.position(self._catalyst.normalized_key(key), f"the key {plain_sql(key)}") for key in keys
        ]
        time = time_of(self._catalyst, inputs, self._timed_key, self._form)
        late = self._late_column(inputs)
        slots = list(self._kept)
        window = None
        if self._form is not None:
            slots, window = with_window(self._catalyst, slots, self._form.window)
        emitted, output_ipc = emitted_columns(slots, name, arrow)
        spec = self._spec_type(
            name=name,
            keys=tuple(Column(plain_sql(key), type_text(key)) for key in keys),
            time=time,
            input_ipc=inputs.schema_bytes(name, arrow),
            output_ipc=output_ipc,
            key_columns=tuple(positions),
            kept_columns=(*range(len(self._kept)), *self._kept_time(time)),
            kept=tuple(Column(str(attribute.name()), type_text(attribute)) for attribute in self._kept),
            purpose=self._purpose,
            hint=self._decided_by,
            **({} if late is None else {"late_column": late}),
        )
        return Operator(
            spec=spec,
            emitted=emitted,
            inputs=(inputs.columns(self._catalyst),),
            slots=tuple(slots),
            columns=window,
            results=None,
            clustered_by=self._clustered_by(),
        )

    def _time_that_ends_groups(self, keys: list[JavaObject]) -> JavaObject | None:
        return watermarked_key(keys)

    def _form_over(self, child: JavaObject, window: JavaObject) -> WindowForm | None:
        """The windows, where rows can be kept by pane and given their windows when those end."""
        return panes_below(self._catalyst, child, window)

    def _kept_time(self, time: TimeSpec | None) -> tuple[int, ...]:
        return kept_time(time)

    def _late_column(self, inputs: Inputs) -> int | None:  # noqa: ARG002
        """By which rows are late, where that is not the time that ends their group."""
        return None

    def _placing_keys(self) -> list[JavaObject]:
        """A window's rows are spread over the shards by the other keys; where there are none, by the window."""
        others = [key for key in self._keys if not key.semanticEquals(self._timed_key)]
        return others or ([self._timed_key] if self._form is None else [])

    def _clustered_by(self) -> tuple[int, ...]:
        """Positions of the keys among what is emitted, where all of them are plain columns."""
        return positions_of(self._keys_of_rows(), self._kept)

    def _keys_of_rows(self) -> list[JavaObject]:
        """The keys that every row has by itself."""
        return [key for key in self._keys if self._form is None or not key.semanticEquals(self._timed_key)]


class GroupRowsDraft(WindowRowsDraft):
    """An aggregate that can't be merged, in update or complete mode."""

    _spec_type = GroupRowsSpec

    def __init__(self, catalyst: Catalyst, rows: GroupedRows, output_mode: OutputMode) -> None:
        self._mode = output_mode
        super().__init__(catalyst, rows)

    def _time_that_ends_groups(self, keys: list[JavaObject]) -> JavaObject | None:
        return watermarked_key(keys) if self._mode == "update" else None

    def _kept_time(self, time: TimeSpec | None) -> tuple[int, ...]:  # noqa: ARG002
        return ()

    def _late_column(self, inputs: Inputs) -> int | None:
        """As in Spark, where sessions are late in complete mode too, and nothing else is."""
        session = next(filter(is_session_window, self._keys), None)
        if self._timed_key is not None or session is None or watermarked_key([session]) is None:
            return None
        end = self._catalyst.micros(self._catalyst.struct_field(session, 1))
        return inputs.position(end, f"the end of {session.name()}")

    def _placing_keys(self) -> list[JavaObject]:
        return self._keys_of_rows()

    def _keys_of_rows(self) -> list[JavaObject]:
        """Sessions of all rows are formed by Spark from those of each row."""
        return [key for key in super()._keys_of_rows() if not is_session_window(key)]
