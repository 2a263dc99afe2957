"""Spark's two deduplicating nodes as operators: which columns are the key, by which time rows are late, and when a
key is forgotten.

All of it follows Spark's own operators; so rows are late by their event time, be it part of the key or not.
"""

from __future__ import annotations

from millpond.errors import InvalidQuery
from millpond.semantics.operator import Column, DedupSpec, Forgetting, KeyedTime
from millpond.spark.jvm import Catalyst, JavaObject, items, kind
from millpond.spark.operators import Inputs, Operator, check_key, python_type, type_text
from millpond.spark.schemas import ArrowSettings, arrow_schema, struct_of
from millpond.spark.windows import expiry_of, watermark_delay_us, watermarked_key

__all__ = ["DEDUPLICATING", "DedupDraft"]

DEDUPLICATING = ("Deduplicate", "DeduplicateWithinWatermark")

_SLICES_PER_DELAY = 64
_SHORTEST_SLICE_US = 1_000_000


class DedupDraft:
    noun = "deduplicate"
    keeps_node = False

    def __init__(self, catalyst: Catalyst, node: JavaObject) -> None:
        self._catalyst = catalyst
        self._within = kind(node) == "DeduplicateWithinWatermark"
        self._keys = items(node.keys())
        self._rows = items(node.child().output())
        self.below = (node.child(),)

    def finish(self, name: str, arrow: ArrowSettings) -> Operator:
        for key in self._keys:
            check_key(self._catalyst, key, name)
        inputs = Inputs()
        for attribute in self._rows:
            inputs.append(attribute, f"the column {attribute.name()}")
        normalized = ((self._catalyst.normalized_key(key), key.name()) for key in self._keys)
        keys = tuple(inputs.position(key, f"the key {key_name}") for key, key_name in normalized)
        time = watermarked_key(self._rows)
        late_column, keyed, forgetting = None, None, None
        if time is not None:
            expiry, slice_us = expiry_of(self._catalyst, time)
            late_column = inputs.append(expiry, f"the time of {time.name()}")
            if self._within:
                forgetting = self._forgetting(name, time, late_column)
            elif any(key.exprId().equals(time.exprId()) for key in self._keys):
                keyed = KeyedTime(late_column, slice_us, Column(str(time.name()), type_text(time)))
        emitted_names = [f"c{i}" for i in range(len(self._rows))]
        input_names = [f"c{i}" for i in range(len(inputs.expressions))]
        read = struct_of(list(zip(input_names, map(python_type, inputs.expressions), strict=True)))
        emitted = struct_of(list(zip(emitted_names, map(python_type, self._rows), strict=True)))
        meanings = inputs.meanings
        spec = DedupSpec(
            name=name,
            keys=tuple(Column(str(key.name()), type_text(key)) for key in self._keys),
            time=keyed,
            input_ipc=bytes(arrow_schema(read, operator=name, meanings=meanings, settings=arrow).serialize()),
            output_ipc=bytes(
                arrow_schema(
                    emitted, operator=name, meanings=meanings[: len(self._rows)], settings=arrow
                ).serialize()
            ),
            key_columns=keys,
            emitted_columns=tuple(range(len(self._rows))),
            late_column=late_column,
            forgetting=forgetting,
        )
        aliases = zip(inputs.expressions, input_names, strict=True)
        return Operator(
            spec=spec,
            emitted=emitted,
            inputs=(self._catalyst.seq(self._catalyst.alias(e, input_name) for e, input_name in aliases),),
            slots=tuple(self._rows),
            columns=None,
            results=self._catalyst.seq(self._rows),
        )

    def _forgetting(self, name: str, time: JavaObject, column: int) -> Forgetting:
        if time.dataType().typeName() == "struct":
            raise InvalidQuery(
                f"{name}: dropDuplicatesWithinWatermark over rows whose event time is the window {time.name()}; "
                "use dropDuplicates with the window among its columns"
            )
        delay_us = watermark_delay_us(time)
        return Forgetting(column, delay_us, max(delay_us // _SLICES_PER_DELAY, _SHORTEST_SLICE_US))
