"""What a batch gives out and what it removes, for each output mode and kind of time.

Late rows were left out before; `before_us` is the watermark that the batch started with and `watermark_us` the
one that includes it. Windows fire when their end is in between.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millpond._kernel import Store
from millpond.errors import InternalError
from millpond.semantics.operator import AggregateSpec, KeyedTime, OutputMode, Panes, Sessions
from millpond.semantics.windows import due_windows, expired_slices, pane_slices, windows_of_slice

__all__ = ["NEVER", "fire"]

NEVER = 2**63 - 1
"""The slice of groups that do not expire."""


def fire(
    store: Store, spec: AggregateSpec, mode: OutputMode, before_us: int, watermark_us: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batch's outputs in the operator's output schema, then removes what has expired."""
    schema = spec.output_schema
    match spec.time:
        case None:
            slices = [slice_ for slice_, _ in store.slices()]
            for rows in store.scan(slices, touched_only=mode == "update"):
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
        case Panes() as panes:
            yield from _fire_panes(store, panes, schema, mode, before_us, watermark_us)
        case KeyedTime() as keyed:
            yield from _fire_keyed(store, keyed, schema, mode, watermark_us)
        case Sessions():
            if mode == "update":
                raise InternalError(f"{spec.name}: sessions are given out when they end, or all of them")
            yield from _fire_sessions(store, schema, mode, watermark_us)


def _fire_panes(
    store: Store, panes: Panes, schema: pa.Schema, mode: OutputMode, before_us: int, watermark_us: int
) -> Iterator[pa.RecordBatch]:
    live = [slice_ for slice_, _ in store.slices()]
    if mode == "append":
        windows = due_windows(panes, live, before_us, watermark_us)
    else:
        touched = {start for slice_ in store.touched_slices() for start in windows_of_slice(panes, slice_)}
        windows = sorted(start for start in touched if start + panes.size_us > before_us)
    present = set(live)
    start_type, end_type = schema.types[-2], schema.types[-1]
    for start in windows:
        slices = [slice_ for slice_ in pane_slices(panes, start) if slice_ in present]
        for rows in store.scan(slices, touched_only=mode == "update"):
            bounds = [
                pa.repeat(pa.scalar(start, start_type), rows.num_rows),
                pa.repeat(pa.scalar(start + panes.size_us, end_type), rows.num_rows),
            ]
            yield pa.RecordBatch.from_arrays([*rows.columns, *bounds], schema=schema)
    for slice_ in expired_slices(panes, live, watermark_us):
        store.drop(slice_)


def _fire_keyed(
    store: Store, keyed: KeyedTime, schema: pa.Schema, mode: OutputMode, watermark_us: int
) -> Iterator[pa.RecordBatch]:
    live = [slice_ for slice_, _ in store.slices()]
    whole = [slice_ for slice_ in live if slice_ <= watermark_us]
    # A slice ends at its name: the one that the watermark cuts holds expired groups beside waiting ones.
    cut = [slice_ for slice_ in live if slice_ - keyed.slice_us < watermark_us < slice_ != NEVER]
    if mode == "append":
        for slice_ in [*whole, *cut]:
            for rows in store.scan([slice_], expired_at_us=watermark_us):
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
    else:
        for slice_ in store.touched_slices():
            for rows in store.scan([slice_], touched_only=True):
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
    for slice_ in whole:
        store.drop(slice_)
    for slice_ in cut:
        store.delete_expired(slice_, watermark_us)


def _fire_sessions(
    store: Store, schema: pa.Schema, mode: OutputMode, watermark_us: int
) -> Iterator[pa.RecordBatch]:
    if mode == "append":
        batches = store.close_sessions(watermark_us)
    else:
        batches = store.scan([slice_ for slice_, _ in store.slices()])
    for rows in batches:
        *columns, start, end = rows.columns
        bounds = [start.cast(schema.types[-2]), end.cast(schema.types[-1])]
        yield pa.RecordBatch.from_arrays([*columns, *bounds], schema=schema)
