"""Joins of two streams by window: the rows of each side are kept until their window ends, then joined by Spark.

A side mostly makes its windows some way below the join, with the columns that the join looks at above them. Its rows
are those under the windows, with the same done to them: so each is kept once, in its pane, and gets the window column
when a window over the pane ends. Where that can't be told from the plan, what is kept are the rows as the side gives
them, a copy for each window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millpond.spark.grouped import GroupedRows
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.needed import id_of, ids_of
from millpond.spark.operators import Operator
from millpond.spark.schemas import ArrowSettings
from millpond.spark.window_rows import WindowRowsDraft
from millpond.spark.windows import WindowForm, is_time_window, watermarked_key, window_form

__all__ = ["window_join"]


def window_join(catalyst: Catalyst, join: JavaObject) -> tuple[WindowRowsDraft, WindowRowsDraft] | None:
    """A join in which windows of both streams have to be equal: no row can find a partner once its window ended."""
    if not join.condition().isDefined():
        return None
    pairs = list(_equal_keys(join))
    windows = next(
        (pair for pair in pairs if all(is_time_window(key) and watermarked_key([key]) for key in pair)), None
    )
    if windows is None:
        return None
    # Both sides' rows are placed by the same keys, which rows have by themselves.
    looked_at = ids_of(windows)
    others = [pair for pair in pairs if not looked_at & ids_of(pair)]
    purpose = f"{str(join.joinType().sql()).lower()} join"
    left, right = (
        _SideDraft(catalyst, side, [pair[number] for pair in (windows, *others)], purpose)
        for number, side in enumerate((join.left(), join.right()))
    )
    return left, right


class _Side:
    """One side of a join in the place of a node that has a single child."""

    def __init__(self, child: JavaObject) -> None:
        self._child = child

    def child(self) -> JavaObject:
        return self._child


class _SideDraft(WindowRowsDraft):
    def __init__(self, catalyst: Catalyst, side: JavaObject, keys: list[JavaObject], purpose: str) -> None:
        self._columns = items(side.output())
        super().__init__(catalyst, GroupedRows(_Side(side), keys, None, purpose))

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        operator = super().finish(name, arrow)
        # A join gives all columns that its sides have, as they stand.
        return replace(operator, results=self._catalyst.seq(self._columns))

    def _form_over(self, child: JavaObject, window: JavaObject) -> WindowForm | None:
        form = _windows_below(self._catalyst, child, window)
        # Where the window is the only key, copies are spread over the shards by it, and panes are not.
        can_be_placed = form is not None and (len(self._keys) > 1 or form.slide_us < form.size_us)
        return form if can_be_placed else None


def _equal_keys(join: JavaObject) -> Iterator[tuple[JavaObject, JavaObject]]:
    """The pairs of expressions that have to be equal, of the left side and of the right."""
    left, right = join.left().outputSet(), join.right().outputSet()
    pending = [join.condition().get()]
    while pending:
        condition = pending.pop()
        if kind(condition) == "And":
            pending += [condition.right(), condition.left()]
        elif kind(condition) == "EqualTo":
            one, other = condition.left(), condition.right()
            if one.references().subsetOf(left) and other.references().subsetOf(right):
                yield one, other
            elif one.references().subsetOf(right) and other.references().subsetOf(left):
                yield other, one


def _windows_below(catalyst: Catalyst, plan: JavaObject, window: JavaObject) -> WindowForm | None:
    """The windows that `window`, a column of the plan, stands for, under nodes that only hand it on, perhaps under
    another name. `below` does what those nodes do to the rows under the windows."""
    passed: list[tuple[JavaObject, list[JavaObject]]] = []
    column = window
    while (form := window_form(plan, column)) is None:
        found = _handed_on(plan, column)
        if found is None:
            return None
        column, others = found
        passed.append((plan, others))
        plan = plan.child()
    return _over_rows(catalyst, passed, replace(form, window=window))


def _handed_on(node: JavaObject, window: JavaObject) -> tuple[JavaObject, list[JavaObject]] | None:
    """What the window column is below the node, and what else the node gives or asks for; None: it does more than
    hand the column on, or what it does to a row may differ from copy to copy."""
    match kind(node):
        case "Filter":
            others = [node.condition()]
        case "Project":
            columns = items(node.projectList())
            others = [column for column in columns if not column.exprId().equals(window.exprId())]
            (made, *more) = (column for column in columns if column.exprId().equals(window.exprId()))
            window = made.child() if kind(made) == "Alias" else made
            if more or kind(window) != "AttributeReference":
                return None
        case _:
            return None
    if id_of(window) in ids_of(others) or not all(other.deterministic() for other in others):
        return None
    return window, others


def _over_rows(
    catalyst: Catalyst, passed: list[tuple[JavaObject, list[JavaObject]]], form: WindowForm
) -> WindowForm:
    """The windows under these nodes, top down, with the nodes over the rows; the window's time goes up with them."""
    time = form.time
    # Nothing is computed of rows without a time.
    below = catalyst.filtered(catalyst.is_not_null(time), form.below) if passed else form.below
    for node, others in reversed(passed):
        if kind(node) == "Filter":
            below = node.withNewChildren(catalyst.seq([below]))
            continue
        carried = catalyst.alias(time, "time") if time is form.time else time
        below = catalyst.project(catalyst.seq([*others, carried]), below)
        time = carried.toAttribute()
    return replace(form, below=below, time=time)
