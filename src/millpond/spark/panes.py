"""Windows whose rows can be kept in panes: those that Spark's analyser wrote out in the plan, and that nothing looks
at up to the node that groups or joins by them.

Often a query makes its windows some way below that, as a column among others. What stands between is then done to the
rows under the windows: so a row lies in its pane once, and gets the window column when a window over the pane ends.
"""

from __future__ import annotations

from dataclasses import replace

from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.needed import id_of, ids_of
from millpond.spark.windows import WindowForm, window_form

__all__ = ["panes_below"]


def panes_below(catalyst: Catalyst, plan: JavaObject, window: JavaObject) -> WindowForm | None:
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
