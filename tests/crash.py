"""Crash points: a process kills itself, as by `kill -9`, right before or after a step of the protocol.

A point is written `before-seal:2` or `after-seal:2`: at the second call of the step in this process.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

DRIVER_STEPS = {
    "take": ("millpond.storage.slotlog:SlotLog.take",),
    "ingest": ("millpond.spark.ingester:Ingester.from_sources",),
    "seal": ("millpond.service.client:ServiceClient.seal",),
    "save": ("millpond.service.client:ServiceClient.save",),
    "sink": ("millpond.spark.sinks:FileSink.write", "millpond.spark.sinks:BatchFunctionSink.write"),
    "record": ("millpond.spark.loop:publish_commit",),
    "told": ("millpond.service.client:ServiceClient.commit",),
    "batch": ("millpond.spark.loop:BatchLoop.__call__",),  # after it comes Spark's own commit
}

SERVICE_STEPS = {
    "open": ("millpond.service.query:ServedQuery.__init__",),
    "stage": ("millpond.service.staging:Staging.put", "millpond.service.staging:Staging.adopt"),
    "shard": ("millpond.service.query:ServedQuery._seal_shard",),
    "pack": ("millpond.service.query:publish_pack",),
    "manifest": ("millpond.service.query:publish_manifest",),
    "told": ("millpond.service.query:ServedQuery.commit",),
    "merge": ("millpond.service.compactor:Compactor._merge",),
}


def arm(point: str, steps: dict[str, tuple[str, ...]], die: Callable[[], None]) -> None:
    """Wraps the step's functions in this process; the calls of all of them are counted together."""
    when, _, rest = point.partition("-")
    step, _, nth = rest.partition(":")
    calls = itertools.count(1)
    counting = threading.Lock()
    for target in steps[step]:
        module, _, path = target.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, _wrapped(getattr(owner, name), when, int(nth), calls, counting, die))


def _wrapped(
    function: Callable[..., Any],
    when: str,
    nth: int,
    calls: itertools.count[int],
    counting: threading.Lock,
    die: Callable[[], None],
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with counting:
            is_due = next(calls) == nth
        if is_due and when == "before":
            die()
        result = function(*args, **kwargs)
        if is_due and when == "after":
            die()
        return result

    return call
