"""Spark's own checkpoint of the carrier query: its id, its last committed batch, the offsets of a batch."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from millpond.errors import InvalidQuery
from millpond.spark.jvm import scala_object

__all__ = ["Checkpoint", "offsets_digest", "open_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    location: str
    query_id: str
    last_committed_batch: int | None
    is_new: bool


def open_checkpoint(spark: SparkSession, location: str) -> Checkpoint:
    """Reads the checkpoint; a new one gets its query id now, so that the state can be told whose it is."""
    jvm = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    files = path.getFileSystem(conf)
    streams = scala_object(jvm, "org.apache.spark.sql.execution.streaming.runtime.StreamMetadata")
    metadata_path = jvm.org.apache.hadoop.fs.Path(path, "metadata")
    found = streams.read(metadata_path, conf)
    committed = _last_number(files, jvm.org.apache.hadoop.fs.Path(path, "commits"))
    if found.isDefined():
        return Checkpoint(location, found.get().id(), committed, is_new=False)
    if committed is not None:
        raise InvalidQuery(
            f"the checkpoint {location} has committed batches but no metadata file: restore it, or start with a "
            "new checkpoint and an empty state directory"
        )
    files.mkdirs(path)
    query_id = str(uuid.uuid4())
    streams.write(
        jvm.org.apache.spark.sql.execution.streaming.runtime.StreamMetadata(query_id), metadata_path, conf
    )
    return Checkpoint(location, query_id, None, is_new=True)


def _last_number(files: Any, directory: Any) -> int | None:
    if not files.exists(directory):
        return None
    names = [str(status.getPath().getName()) for status in files.listStatus(directory)]
    return max((int(name) for name in names if name.isdigit()), default=None)


def offsets_digest(stream_execution: Any, batch_id: int) -> str:
    """A digest of where in its sources a batch ends: the same batch replayed has the same."""
    entry = stream_execution.offsetLog().get(batch_id).get()
    offsets = entry.offsets()
    digest = hashlib.blake2b(digest_size=16)
    for i in range(offsets.size()):
        offset = offsets.apply(i)
        digest.update((offset.get().json() if offset.isDefined() else "-").encode())
        digest.update(b"\n")
    return digest.hexdigest()
