"""Rows that were combined before they are ingested lead to the same encoded groups as the rows themselves."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millpond._kernel import Combiner, Store
from millpond.semantics.operator import Aggregate, AggregateSpec, Column, Panes
from millpond.semantics.precombine import precombined
from millpond.spark.precombine import PrecombineSwitch
from millpond.state.layout import layout_of

ROWS = pa.schema([("k0", pa.string()), ("c1", pa.int64()), ("c2", pa.int64()), ("c3", pa.bool_())])
PANES = Panes(column=2, size_us=10, slide_us=4, offset_us=1, window=Column("window", "struct"))
AGGREGATES = (
    Aggregate("count", ()),
    Aggregate("count", (1,), 3),
    Aggregate("sum_int", (1,)),
    Aggregate("max", (1,)),
)


def operator(*aggregates: Aggregate) -> AggregateSpec:
    return AggregateSpec(
        name="test",
        keys=(Column("k", "string"),),
        aggregates=aggregates,
        time=PANES,
        input_ipc=bytes(ROWS.serialize()),
        output_ipc=b"",
    )


def contents(spec: AggregateSpec, rows: pa.RecordBatch, weight: int | None) -> tuple[list[object], int, int]:
    """What a store holds after these rows, and how many rows were counted and late."""
    layout = layout_of(spec)
    combiner = Combiner(layout, [0], 9, weight)
    combiner.push(rows)
    # The state's own layout: combined rows only have other inputs.
    store = Store(layout_of(operator(*AGGREGATES)), 0, 4096, 1 << 20)
    for _, encoded in combiner.drain():
        store.merge(encoded)
    groups = [
        (number, row)
        for number, _ in store.slices()
        for batch in store.scan([number])
        for row in batch.to_pylist()
    ]
    return sorted(groups, key=repr), combiner.rows, combiner.late_rows


def test_combined_rows_give_the_same_state_and_counts() -> None:
    plain = pa.RecordBatch.from_pydict(
        {
            "k0": ["a", "a", "a", "b", "late", "late", "nowhere"],
            "c1": [1, 2, None, 4, 5, 5, 6],
            "c2": [21, 22, 21, 30, -3, -4, None],
            "c3": [True, False, True, None, True, True, True],
        },
        schema=ROWS,
    )
    form = precombined(operator(*AGGREGATES), ansi=True)
    assert form is not None
    assert form.spec.input_schema.names == ["k0", "time", "p0", "p1", "p2", "p3", "rows"]
    combined = pa.RecordBatch.from_pydict(
        {
            "k0": ["a", "b", "late", "nowhere"],
            "time": [21, 29, -3, None],
            "p0": [3, 1, 2, 1],
            "p1": [1, 0, 2, 1],
            "p2": [3, 4, 10, 6],
            "p3": [2, 4, 5, 6],
            "rows": [3, 1, 2, 1],
        },
        schema=form.spec.input_schema,
    )
    assert contents(operator(*AGGREGATES), plain, None) == contents(form.spec, combined, form.weight)
    assert contents(operator(*AGGREGATES), plain, None)[1:] == (7, 2)


@pytest.mark.parametrize("op", ["first", "moments", "sum_int_try", "sum_int_wrapping"])
def test_what_spark_can_t_combine_alike_stays_rows(op: str) -> None:
    assert precombined(operator(Aggregate("count", ()), Aggregate(op, (1,))), ansi=True) is None  # type: ignore[arg-type]


def test_a_weight_is_a_column_of_numbers() -> None:
    with pytest.raises(ValueError, match="column 0 is not"):
        Combiner(layout_of(operator(*AGGREGATES)), [0], None, 0)


def test_combining_begins_with_few_groups_and_ends_with_many() -> None:
    switch = PrecombineSwitch()
    switch.note(100_000, 50_000)
    assert not switch.on
    switch.note(100_000, 1_000)
    assert switch.on
    switch.note(100_000, 45_000)
    assert switch.on, "between the two bounds it stays as it is"
    switch.note(100_000, 60_000)
    assert not switch.on
    switch.note(100_000, 45_000)
    assert not switch.on, "between the two bounds it stays as it is"
    switch.note(1_000, 1)
    assert not switch.on, "small batches gain nothing"
