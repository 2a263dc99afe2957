"""The running query: Spark's `StreamingQuery` with Millpond's figures, errors and end."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any, Literal, overload

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from millpond.spark.explain import as_text
from millpond.spark.figures import with_figures
from millpond.spark.loop import BatchLoop

__all__ = ["MillpondQuery"]


class MillpondQuery(StreamingQuery):
    """A `StreamingQuery` whose state Millpond keeps. Ends its state service when the query ends."""

    def __init__(self, jsq: Any, loop: BatchLoop, temporary: Path | None) -> None:
        super().__init__(jsq)
        self._loop = loop
        self._temporary = temporary
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, name="millpond-query", daemon=True).start()

    def _await_end(self) -> None:
        with contextlib.suppress(Exception):
            self._jsq.awaitTermination()
        try:
            self._loop.close()
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
            self._ended.set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        try:
            ended: bool | None = super().awaitTermination(timeout)
        except StreamingQueryException as error:
            raise self._original(error) from None
        if timeout is None or ended:
            self._ended.wait()
        return ended

    def processAllAvailable(self) -> None:
        try:
            super().processAllAvailable()
        except StreamingQueryException as error:
            raise self._original(error) from None

    def exception(self) -> Any:
        """The error that ended the query, the original one where it was raised on Millpond's side."""
        ended_by = super().exception()
        # Spark knows of stops that Millpond does not, through `spark.streams`: what they break off is no failure.
        return None if ended_by is None else self._loop.failure or ended_by

    def _original(self, error: Exception) -> BaseException:
        self._ended.wait()
        return self._loop.failure or error

    def stop(self) -> None:
        self._loop.stopping.set()
        super().stop()
        self._ended.wait()

    @overload
    def explain(self, extended: bool = ..., *, as_dict: Literal[False] = ...) -> None: ...
    @overload
    def explain(self, extended: bool = ..., *, as_dict: Literal[True]) -> list[dict[str, Any]]: ...
    def explain(self, extended: bool = False, *, as_dict: bool = False) -> list[dict[str, Any]] | None:
        """Prints for each operator how it touches its state, why, and what its store holds and costs, after the
        newest committed batch. `extended`: Spark's plans of the part that Spark runs as well. `as_dict`: returns the
        operators as data in place of printing them."""
        batch_id, operators = self._loop.explained()
        if as_dict:
            return operators
        print(as_text(self.name or str(self.id), batch_id, operators))
        if extended:
            print()
            super().explain(extended=True)
        return None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        return [self._merged(json.loads(progress.json())) for progress in self._jsq.recentProgress()]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        last = self._jsq.lastProgress()
        return self._merged(json.loads(last.json())) if last else None

    def _merged(self, progress: dict[str, Any]) -> StreamingQueryProgress:
        return StreamingQueryProgress.fromJson(
            with_figures(progress, self._loop.figures.get(progress["batchId"]))
        )
