"""What an operator does to its store, told to a listener before it is done: merged rows and removals.

Only stores that are recorded are wrapped, so that all others pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from millpond._kernel import Store
from millpond.errors import InternalError

__all__ = ["Access", "TracedStore"]


class Access(NamedTuple):
    """One call on a store. `rows`: what is merged; `slice`: what is dropped, or expires up to `expired_at_us`."""

    kind: Literal["merge", "drop", "expire"]
    rows: pa.RecordBatch | None = None
    slice: int = 0
    expired_at_us: int = 0


class TracedStore:
    """A store that tells of its changes. What only reads goes to the store itself."""

    def __init__(self, store: Store, tell: Callable[[Access], None]) -> None:
        self._store = store
        self._tell = tell

    def merge(self, encoded: pa.RecordBatch) -> None:
        self._tell(Access("merge", rows=encoded))
        self._store.merge(encoded)

    def drop(self, slice: int) -> None:
        self._tell(Access("drop", slice=slice))
        self._store.drop(slice)

    def delete_expired(self, slice: int, expired_at_us: int) -> int:
        self._tell(Access("expire", slice=slice, expired_at_us=expired_at_us))
        return self._store.delete_expired(slice, expired_at_us)

    def put(self, encoded: pa.RecordBatch) -> None:
        raise InternalError(f"a trace has no place for the {encoded.num_rows} rows of a put")

    def delete(self, encoded: pa.RecordBatch) -> None:
        raise InternalError(f"a trace has no place for the {encoded.num_rows} rows of a delete")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
