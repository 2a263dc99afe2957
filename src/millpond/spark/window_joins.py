"""Joins of two streams by window: the rows of each side are kept until their window ends, then joined by Spark.

Where the plan allows it (`spark/panes.py`), a row is kept once, in its pane, and gets the window column when a window
over the pane ends; else what is kept are the rows as the side gives them, a copy for each window.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from millpond.spark.grouped import GroupedRows
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.needed import Needed, id_of, ids_of
from millpond.spark.operators import Operator
from millpond.spark.schemas import ArrowSettings
from millpond.spark.window_rows import WindowRowsDraft
from millpond.spark.windows import WindowForm, is_time_window, watermarked_key

__all__ = ["as_in_streams", "window_join"]


def window_join(
    catalyst: Catalyst, join: JavaObject, needed: Needed = None
) -> tuple[WindowRowsDraft, WindowRowsDraft] | None:
    """A join in which windows of both streams have to be equal: no row can find a partner once its window ended.
    `needed`: what is looked at of the join's columns."""
    if not join.condition().isDefined():
        return None
    conditions = catalyst.conjuncts(join.condition().get())
    pairs = [pair for condition in conditions if (pair := _equal_key(join, condition))]
    windows = next(
        (pair for pair in pairs if all(is_time_window(key) and watermarked_key([key]) for key in pair)), None
    )
    if windows is None:
        return None
    # Both sides' rows are placed by the same keys, which rows have by themselves.
    looked_at = ids_of(windows)
    others = [pair for pair in pairs if not looked_at & ids_of(pair)]
    purpose = f"{str(join.joinType().sql()).lower()} join"
    if needed is not None:
        needed |= ids_of([join.condition().get()])
    left, right = (
        _SideDraft(catalyst, side, [pair[number] for pair in (windows, *others)], purpose, needed)
        for number, side in enumerate((join.left(), join.right()))
    )
    return left, right


def as_in_streams(catalyst: Catalyst, join: JavaObject) -> JavaObject:
    """The join as Spark runs it over batches, with the partners that it finds in streams. There it goes by the
    bytes of the keys, and where it keeps all rows of both sides, a null is equal to a null."""
    if str(join.joinType().sql()) != "FULL OUTER":
        return join
    conditions = [
        catalyst.equal_or_both_null(c) if c.nullable() and _equal_key(join, c) else c
        for c in catalyst.conjuncts(join.condition().get())
    ]
    condition = catalyst.some(functools.reduce(catalyst.both, conditions))
    return join.copy(join.left(), join.right(), join.joinType(), condition, join.hint())


class _Side:
    """One side of a join in the place of a node that has a single child."""

    def __init__(self, child: JavaObject) -> None:
        self._child = child

    def child(self) -> JavaObject:
        return self._child


class _SideDraft(WindowRowsDraft):
    def __init__(
        self, catalyst: Catalyst, side: JavaObject, keys: list[JavaObject], purpose: str, needed: Needed
    ) -> None:
        self._columns = [c for c in items(side.output()) if needed is None or id_of(c) in needed]
        super().__init__(catalyst, GroupedRows(_Side(side), keys, self._columns, purpose))

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        operator = super().finish(name, arrow)
        # A join gives the columns that its sides have, as they stand.
        return replace(operator, results=self._catalyst.seq(self._columns))

    def _form_over(self, child: JavaObject, window: JavaObject) -> WindowForm | None:
        form = super()._form_over(child, window)
        # Where the window is the only key, copies are spread over the shards by it, and panes are not.
        can_be_placed = form is not None and (len(self._keys) > 1 or form.slide_us < form.size_us)
        return form if can_be_placed else None


def _equal_key(join: JavaObject, condition: JavaObject) -> tuple[JavaObject, JavaObject] | None:
    """The expressions that have to be equal by the condition, of the left side and of the right."""
    if kind(condition) != "EqualTo":
        return None
    one, other = condition.left(), condition.right()
    left, right = join.left().outputSet(), join.right().outputSet()
    if one.references().subsetOf(left) and other.references().subsetOf(right):
        return one, other
    if one.references().subsetOf(right) and other.references().subsetOf(left):
        return other, one
    return None
