"""The kernel's layouts and combiner as Python sees them: Arrow in, encoded Arrow out."""

from __future__ import annotations

import sys
import threading

import pyarrow as pa
import pytest

from millpond import _kernel

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])


def rows(
    keys: list[int | None], values: list[int | None], times: list[int | None] | None = None
) -> pa.RecordBatch:
    times = times if times is not None else [0] * len(keys)
    return pa.record_batch([pa.array(c, pa.int64()) for c in (keys, values, times)], schema=SCHEMA)


def sum_layout(**time: tuple[int, ...]) -> _kernel.Layout:
    return _kernel.Layout(SCHEMA, 1, [("count", [], None), ("sum_int", [1], None)], **time)


def test_schemas_name_keys_and_buffers() -> None:
    tz = pa.timestamp("us", tz="Europe/Oslo")
    schema = pa.schema(
        [pa.field("at", tz), pa.field("name", pa.string()), pa.field("d", pa.decimal128(12, 2))]
    )
    layout = _kernel.Layout(schema, 2, [("sum_decimal", [2], None), ("max_by", [1, 0], None)])
    assert layout.output_schema == pa.schema(
        [
            ("at", tz),
            ("name", pa.string()),
            ("b0", pa.decimal128(12, 2)),
            ("b1", pa.bool_()),
            ("b2", pa.string()),
            ("b3", tz),
        ]
    )
    assert layout.encoded_schema.names == ["hash", "slice", "key", "value"]
    assert layout.encoded_schema.field("key").type == pa.binary()


def test_fixed_layouts_travel_in_fixed_width() -> None:
    encoded = sum_layout().encoded_schema
    assert encoded.field("key").type == pa.binary(9)
    assert encoded.field("value").type == pa.binary(17)


def test_rows_of_a_group_are_combined() -> None:
    combiner = _kernel.Combiner(sum_layout(), [0])
    combiner.push(rows([1, 2, 1, None], [10, 20, 30, 40]))
    combiner.push(rows([2], [None]))
    [(shard, encoded)] = combiner.drain()
    encoded.validate(full=True)
    assert shard == 0
    assert encoded.num_rows == 3
    counts = [int.from_bytes(value[:8], "little") for value in encoded["value"].to_pylist()]
    sums = [int.from_bytes(value[9:17], "little") for value in encoded["value"].to_pylist()]
    assert (counts, sums) == ([2, 2, 1], [40, 20, 40])
    assert combiner.rows == 5
    assert combiner.memory_bytes == 0
    assert combiner.drain() == []


def test_shards_are_intervals_of_buckets() -> None:
    starts = [0, 100, 3000]
    combiner = _kernel.Combiner(sum_layout(), starts)
    combiner.push(rows(list(range(10_000)), [1] * 10_000))
    drained = combiner.drain()
    assert [shard for shard, _ in drained] == [0, 1, 2]
    ends = [*starts[1:], _kernel.BUCKETS]
    for shard, encoded in drained:
        buckets = [value >> 52 for value in encoded["hash"].to_pylist()]
        assert starts[shard] <= min(buckets) <= max(buckets) < ends[shard]
    assert sum(encoded.num_rows for _, encoded in drained) == 10_000


def test_equal_layouts_give_equal_bytes() -> None:
    def encode() -> pa.RecordBatch:
        combiner = _kernel.Combiner(sum_layout(), [0])
        combiner.push(rows([5, 6, 5], [1, 2, 3]))
        return combiner.drain()[0][1]

    assert encode().equals(encode())


def test_late_rows_and_rows_without_a_time_are_left_out() -> None:
    layout = sum_layout(panes=(2, 10, 10, 0))
    combiner = _kernel.Combiner(layout, [0], late_before_us=10)
    combiner.push(rows([1, 1, 1, 1], [1, 1, 1, 1], [9, 10, 25, None]))
    [(_, encoded)] = combiner.drain()
    assert encoded["slice"].to_pylist() == [10, 20]
    assert (combiner.rows, combiner.late_rows) == (4, 1)


def test_keyed_time_slices_by_expiry() -> None:
    combiner = _kernel.Combiner(sum_layout(keyed_time=(2, 100)), [0], late_before_us=0)
    combiner.push(rows([1, 2, 3, 4], [1, 1, 1, 1], [0, 1, 100, None]))
    [(_, encoded)] = combiner.drain()
    assert encoded["slice"].to_pylist() == [100, 100, 2**63 - 1]
    assert combiner.late_rows == 1


def test_identity_is_one_row_for_operators_without_keys() -> None:
    layout = _kernel.Layout(SCHEMA, 0, [("count", [], None), ("min", [1], None)])
    identity = layout.identity()
    assert identity.schema == layout.encoded_schema
    assert identity["key"].to_pylist() == [b""]
    with pytest.raises(ValueError, match="without keys"):
        sum_layout().identity()


def test_a_sum_beyond_int64_is_an_overflow() -> None:
    combiner = _kernel.Combiner(sum_layout(), [0])
    with pytest.raises(_kernel.Overflow, match="long overflow"):
        combiner.push(rows([1, 1], [2**63 - 1, 1]))
    assert issubclass(_kernel.Overflow, ArithmeticError)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (("sum_int", [0], None), "sum_int does not take type Utf8"),
        (("sum_float", [1], None), "sum_float does not take type Int64"),
        (("max", [2], None), "max: values of type Map"),
        (("bit_or", [0], None), "bit_or does not take type Utf8"),
        (("median", [1], None), "unknown aggregate median"),
        (("max_by", [1], None), "max_by takes 2 inputs, 1 were given"),
        (("count", [], 1), "filter of count is of type Int64"),
        (("count", [9], None), "count reads column 9, the input has 3 columns"),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    aggregate: tuple[str, list[int], int | None], message: str
) -> None:
    schema = pa.schema([("s", pa.string()), ("i", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(ValueError, match=message):
        _kernel.Layout(schema, 1, [aggregate])


def test_times_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="slide must be positive"):
        sum_layout(panes=(2, 10, 0, 0))
    with pytest.raises(ValueError, match="one kind of time"):
        sum_layout(panes=(2, 10, 10, 0), keyed_time=(2, 10))
    with pytest.raises(ValueError, match="int64 microseconds"):
        _kernel.Layout(pa.schema([("t", pa.timestamp("us"))]), 0, [], panes=(0, 10, 10, 0))


def test_batches_of_another_schema_are_refused() -> None:
    combiner = _kernel.Combiner(sum_layout(), [0])
    with pytest.raises(ValueError, match="a batch of 1 columns, the input has 3"):
        combiner.push(pa.record_batch([pa.array([1])], names=["k"]))


def test_slices_of_batches_are_read_from_their_offset() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.list_(pa.float64()))])
    batch = pa.record_batch(
        [pa.array(["a", "b", None, "c"] * 100), pa.array([[1.0], [], [float("nan")], None] * 100)],
        schema=schema,
    )
    layout = _kernel.Layout(schema, 1, [("max", [1], None), ("first", [1], None), ("count", [1], None)])

    def encode(part: pa.RecordBatch) -> list[dict[str, object]]:
        combiner = _kernel.Combiner(layout, [0])
        combiner.push(part)
        return combiner.drain()[0][1].to_pylist()

    sliced = batch.slice(101, 55)
    assert encode(sliced) == encode(pa.RecordBatch.from_pylist(sliced.to_pylist(), schema=schema))


def test_pushing_leaves_the_gil_to_other_threads() -> None:
    combiner = _kernel.Combiner(sum_layout(), [0])
    batch = rows(list(range(100_000)), [1] * 100_000)
    gate, ran = threading.Lock(), threading.Event()

    def pass_gate() -> None:
        with gate:
            ran.set()

    # Python itself will not switch threads within this test, so only a call that gives the GIL up lets another run.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        gate.acquire()
        thread = threading.Thread(target=pass_gate)
        thread.start()
        gate.release()
        for _ in range(500):
            combiner.push(batch)
            combiner.drain()
            if ran.is_set():
                break
        passed = ran.is_set()
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert passed


def test_a_text_at_the_end_of_a_value_lies_as_it_is() -> None:
    row = pa.struct([("at", pa.int64()), ("text", pa.string())])
    schema = pa.schema([("k", pa.int64()), ("row", row)])
    layout = _kernel.Layout(schema, 1, [("max", [1], None)])
    combiner = _kernel.Combiner(layout, [0])
    combiner.push(pa.record_batch([[1], [{"at": 5, "text": "x" * 100}]], schema=schema))
    [(_, encoded)] = combiner.drain()
    # Two flags, a length and the time beside the text.
    assert len(encoded.column("value")[0].as_py()) <= 100 + 16
