"""Public helpers for tests: storage in memory, storage that fails on purpose, stores without a service, and checks
that every storage and every store has to pass."""

from __future__ import annotations

from millpond.testing.conformance import STATE_CHECKS, StateCheck, check_state_conformance, undisturbed
from millpond.testing.state import Batch, OpenShard, Row, StateCase, StateRun
from millpond.testing.storage import (
    CONFORMANCE_CHECKS,
    Crashed,
    Fault,
    FaultyStorage,
    LaggingStorage,
    MemoryStorage,
    check_conformance,
)

__all__ = [
    "CONFORMANCE_CHECKS",
    "STATE_CHECKS",
    "Batch",
    "Crashed",
    "Fault",
    "FaultyStorage",
    "LaggingStorage",
    "MemoryStorage",
    "OpenShard",
    "Row",
    "StateCase",
    "StateCheck",
    "StateRun",
    "check_conformance",
    "check_state_conformance",
    "undisturbed",
]
