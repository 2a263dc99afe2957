"""Joins of two streams that remember rows of both sides: by equal keys, and within bounds of time.

What a pair has to fulfil is divided among three. Conditions on one side are put before the join. Comparisons of a
value of the left row with one of the right become columns that Spark computes and Millpond compares; bounds of time
are of that kind. What is left is a filter over the pairs, which only an inner join allows: so are conditions without
columns, such as one on the time of day, which may hold for one batch and not for the next. When a row can be
forgotten is asked of Spark itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import get_args

from millpond.errors import InvalidQuery
from millpond.semantics.operator import Column, JoinKind, JoinSide, JoinSpec, JoinTime
from millpond.spark.jvm import Catalyst, JavaObject, items, kind, plain_sql
from millpond.spark.needed import Needed, id_of, ids_of
from millpond.spark.operators import Inputs, Operator, check_key, emitted_columns, type_text
from millpond.spark.schemas import ArrowSettings
from millpond.spark.windows import expiry_of, watermark_delay_us, watermarked_key

__all__ = ["JoinDraft"]

_COMPARISONS = {"LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SLICES = 8
"""Into how many parts what is kept of a side falls, about: each is looked into, and dropped as a whole."""
_MOST_SLICES = 64
"""Where partners are looked for in a short range of a long past: then few parts are looked into."""


class JoinDraft:
    noun = "join"
    keeps_node = False

    def __init__(self, catalyst: Catalyst, join: JavaObject, needed: Needed = None) -> None:
        """`needed`: what is looked at of the join's columns."""
        self._catalyst = catalyst
        self._join = join
        self._kind = _join_kind(join)
        sides = (join.left(), join.right())
        self._outer = (
            self._kind in ("left outer", "full outer"),
            self._kind in ("right outer", "full outer"),
        )
        own = catalyst.conjuncts(join.condition().get()) if join.condition().isDefined() else []
        general = [c for c in own if c.references().isEmpty()]
        self._own = [c for c in own if c.references().nonEmpty()]
        # Spark would fold what it can tell without a row into the plan, as it is when the query starts.
        planned = catalyst.planned_join(self._asking_for(self._own) if general else join)
        if planned is None or not planned.keys[0]:
            raise InvalidQuery(
                f"the {self._kind} join of two streams on {_condition_text(join)} has no equality between columns of "
                "both; Millpond finds partners by equal keys. Join on a column as well"
            )
        self._keys = planned.keys
        self._sort_out(planned.others, [c for c in general if not _always_holds(catalyst, c)])
        offsets = [catalyst.state_watermark_offset_us(planned, side) for side in (0, 1)]
        self._event_times = [watermarked_key(items(plan.output())) for plan in sides]
        self._timed_key = next(
            (i for keys in self._keys for i, key in enumerate(keys) if watermarked_key([key]) is not None),
            None,
        )
        self._offsets = (0, 0) if self._timed_key is not None else (offsets[0], offsets[1])
        self.below = (self._filtered(0, sides[0]), self._filtered(1, sides[1]))
        if needed is not None:
            needed |= ids_of(self._rest)
        self._kept = [
            [attribute for attribute in items(plan.output()) if needed is None or id_of(attribute) in needed]
            for plan in sides
        ]
        if self._kind == "left semi":
            self._kept[1] = []
        if not any(self._kept):
            # Rows without columns could not be counted on their way.
            self._kept[0] = items(sides[0].output())[:1]

    def _asking_for(self, conditions: list[JavaObject]) -> JavaObject:
        """The join with these in the place of its condition."""
        condition = functools.reduce(self._catalyst.both, conditions) if conditions else None
        join = self._join
        return join.copy(
            join.left(), join.right(), join.joinType(), self._catalyst.some(condition), join.hint()
        )

    def _sort_out(self, others: Iterable[JavaObject], general: list[JavaObject]) -> None:
        """`general`: conditions without columns."""
        if general and self._kind != "inner":
            asked = " and ".join(map(plain_sql, general))
            raise InvalidQuery(
                f"the {self._kind} join of two streams asks for {asked}, which has no column of them, so that it "
                "does not tell partners from other rows; leave it out, or filter a stream by it before the join"
            )
        left, right = self._join.left().outputSet(), self._join.right().outputSet()
        self._before = [
            [c for c in self._own if c.references().subsetOf(outputs)] for outputs in (left, right)
        ]
        """Conditions on one side alone."""
        self._comparisons: list[tuple[JavaObject, str, JavaObject]] = []
        self._rest = general
        for condition in others:
            if condition.references().subsetOf(left) or condition.references().subsetOf(right):
                continue
            found = self._comparison(condition, left, right)
            if found is None:
                self._rest.append(condition)
            else:
                self._comparisons.append(found)
        if self._rest and self._kind != "inner":
            rest = " and ".join(map(plain_sql, self._rest))
            raise InvalidQuery(
                f"the {self._kind} join of two streams asks for {rest}, which can't be told from a value of the "
                "left row and a value of the right; Millpond takes equalities, and comparisons of times or whole "
                "numbers with the columns of one stream on each side of the sign"
            )

    def _comparison(
        self, condition: JavaObject, left: JavaObject, right: JavaObject
    ) -> tuple[JavaObject, str, JavaObject] | None:
        sign = _COMPARISONS.get(kind(condition))
        if sign is None:
            return None
        one, other = condition.left(), condition.right()
        numbers = [self._catalyst.as_long(e) for e in (one, other)]
        if numbers[0] is None or numbers[1] is None:
            return None
        if one.references().subsetOf(left) and other.references().subsetOf(right):
            return numbers[0], sign, numbers[1]
        if one.references().subsetOf(right) and other.references().subsetOf(left):
            return numbers[1], _TURNED[sign], numbers[0]
        return None

    def _filtered(self, side: int, plan: JavaObject) -> JavaObject:
        """Rows of a side that does not come out alone are let through only if they may have a partner. Spark does
        the same, and takes the watermark from what is left."""
        if self._outer[side]:
            return plan
        compared = [comparison[2 * side] for comparison in self._comparisons]
        nullable = [e for e in (*self._keys[side], *compared) if e.nullable()]
        conditions = [*(self._catalyst.is_not_null(e) for e in nullable), *self._before[side]]
        for condition in conditions:
            plan = self._catalyst.filtered(condition, plan)
        return plan

    @property
    def rest(self) -> JavaObject | None:
        """What is left to be asked of pairs: a filter over the join."""
        if not self._rest:
            return None
        condition = self._rest[0]
        for other in self._rest[1:]:
            condition = self._catalyst.both(condition, other)
        return self._catalyst.filtered(condition, self._join)

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        for keys in self._keys:
            for key in keys:
                check_key(self._catalyst, key, name)
        built = [self._side(number, name, arrow) for number in (0, 1)]
        # Outer joins make columns nullable, so that these are taken from the join.
        kept = {id_of(attribute) for attributes in self._kept for attribute in attributes}
        slots = [attribute for attribute in items(self._join.output()) if id_of(attribute) in kept]
        emitted, output_ipc = emitted_columns(slots, name, arrow)
        spec = JoinSpec(
            name=name,
            keys=tuple(Column(plain_sql(key), type_text(key)) for key in self._keys[0]),
            time=self._time(),
            input_ipc=built[0][0].input_ipc,
            output_ipc=output_ipc,
            join=self._kind,
            sides=(built[0][0], built[1][0]),
            comparisons=tuple(sign for _, sign, _ in self._comparisons),  # type: ignore[misc]
            condition=_condition_text(self._join),
        )
        return Operator(
            spec=spec,
            emitted=emitted,
            inputs=(built[0][1], built[1][1]),
            slots=tuple(slots),
            columns=None,
            results=self._catalyst.seq(slots),
        )

    def _side(self, side: int, name: str, arrow: ArrowSettings) -> tuple[JoinSide, JavaObject]:
        """The side's description, and its input columns."""
        catalyst, inputs = self._catalyst, Inputs()
        attributes = self._kept[side]
        for attribute in attributes:
            inputs.append(attribute, f"the column {attribute.name()}")
        keys = [
            inputs.position(catalyst.normalized_key(key), f"the key {plain_sql(key)}")
            for key in self._keys[side]
        ]
        comparands = [
            inputs.position(comparison[2 * side], f"what is compared of the {('left', 'right')[side]} side")
            for comparison in self._comparisons
        ]
        matchable = None
        if self._outer[side] and self._before[side]:
            condition = self._before[side][0]
            for other in self._before[side][1:]:
                condition = catalyst.both(condition, other)
            matchable = inputs.append(condition, f"the condition {plain_sql(condition)}")
        late = self._event_times[side]
        expires = late if self._timed_key is None else self._keys[side][self._timed_key]
        offset_us = self._offsets[side]
        expiry = None
        if expires is not None and offset_us is not None:
            at = catalyst.minus(expiry_of(catalyst, expires)[0], offset_us)
            expiry = inputs.position(at, f"the expiry by {plain_sql(expires)}")
        late_at = None
        if late is not None:
            late_at = inputs.position(expiry_of(catalyst, late)[0], f"the time {plain_sql(late)}")
        description = JoinSide(
            input_ipc=inputs.schema_bytes(name, arrow),
            key_columns=tuple(keys),
            matchable=matchable,
            late=late_at,
            expiry=expiry,
            comparands=tuple(comparands),
            times=self._times(side) if expiry is not None else (),
            expires_after_us=-offset_us if offset_us is not None else 0,
            kept_columns=tuple(range(len(attributes))),
            kept=tuple(Column(str(attribute.name()), type_text(attribute)) for attribute in attributes),
            outer=self._outer[side],
            once=self._kind == "left semi" and side == 0,
            # Spark finds partners by the bytes of their keys, and only here filters none of the nulls before.
            null_keys=self._kind == "full outer",
        )
        return description, inputs.columns(catalyst)

    def _times(self, side: int) -> tuple[int, ...]:
        """The comparisons with the side's own event time, by which its rows expire."""
        time = self._event_times[side]
        if self._timed_key is not None or time is None:
            return ()
        at = expiry_of(self._catalyst, time)[0]
        compared = [(left, right)[side] for left, _, right in self._comparisons]
        return tuple(i for i, comparand in enumerate(compared) if comparand.semanticEquals(at))

    def _time(self) -> JoinTime | None:
        if all(time is None for time in self._event_times) and self._timed_key is None:
            return None
        delays = [watermark_delay_us(time) for time in self._event_times if time is not None]
        offsets = [offset for offset in self._offsets if offset is not None]
        kept_us = max(0, *(-offset for offset in offsets), *delays)
        slice_us = kept_us // _SLICES
        if len(offsets) == 2 and (self._times(0) or self._times(1)):
            looked_for_us = -sum(offsets)
            slice_us = max(min(slice_us, looked_for_us), kept_us // _MOST_SLICES)
        return JoinTime(self._offsets, max(1_000_000, slice_us))


def _join_kind(join: JavaObject) -> JoinKind:
    written = str(join.joinType().sql()).lower()
    for known in get_args(JoinKind):
        if written == known:
            return known  # type: ignore[no-any-return]
    raise InvalidQuery(
        f"a {written} join of two streams keeps state that Millpond does not take yet; it takes inner, left outer, "
        "right outer, full outer and left semi joins. Start the query with Spark's own writeStream"
    )


def _always_holds(catalyst: Catalyst, condition: JavaObject) -> bool:
    """Of a condition without columns, such as 1 = 1."""
    return _is_constant(catalyst, condition) and condition.eval(None) is True


def _is_constant(catalyst: Catalyst, expression: JavaObject) -> bool:
    """Spark also calls foldable what is the same within a batch, such as the time of day; that is no literal."""
    if kind(expression) == "Literal":
        return True
    if not expression.foldable() or catalyst.is_replaceable(expression) or kind(expression) == "CurrentTime":
        return False
    children = items(expression.children())
    return bool(children) and all(_is_constant(catalyst, child) for child in children)


def _condition_text(join: JavaObject) -> str:
    condition = join.condition()
    return plain_sql(condition.get()) if condition.isDefined() else "nothing"
