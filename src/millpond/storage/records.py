"""The records of the slot log, as JSON that a person can read, in an envelope with version and checksum."""

from __future__ import annotations

import hashlib

import msgspec

from millpond.errors import CorruptState
from millpond.semantics.operator import OperatorSpec

__all__ = ["FORMAT_VERSION", "CommitRecord", "LogRecord", "OwnerRecord", "decode", "encode"]

FORMAT_VERSION = 1


class OwnerRecord(msgspec.Struct, frozen=True, tag="owner", forbid_unknown_fields=True):
    """A driver takes the query. Whatever an earlier owner still tries to append finds its slot taken."""

    slot: int
    query_id: str
    run_id: str
    driver: str
    """Host and process, for messages."""
    operators: tuple[OperatorSpec, ...]
    shard_starts: tuple[int, ...]
    taken_at_ms: int


class CommitRecord(msgspec.Struct, frozen=True, tag="commit", forbid_unknown_fields=True):
    """A batch is done: its state is what the manifest reaches, and its output is in the sink."""

    slot: int
    owner_slot: int
    query_id: str
    batch_id: int
    offsets_digest: str
    input_rows: int
    watermark_us_before: int | None
    watermark_us: int | None
    manifest: str
    committed_at_ms: int


LogRecord = OwnerRecord | CommitRecord
_DECODER: msgspec.json.Decoder[LogRecord] = msgspec.json.Decoder(LogRecord)


class _Version(msgspec.Struct):
    millpond: int


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    millpond: int
    checksum: str
    record: msgspec.Raw


def encode(record: LogRecord) -> bytes:
    body = msgspec.json.encode(record)
    return msgspec.json.encode(_Envelope(FORMAT_VERSION, _checksum(body), msgspec.Raw(body)))


def decode(data: bytes, where: str) -> LogRecord:
    """`where` names the file in messages."""
    try:
        version = msgspec.json.decode(data, type=_Version).millpond
        if version > FORMAT_VERSION:
            raise newer_format(where, version, FORMAT_VERSION)
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.record)
        if version != FORMAT_VERSION or envelope.checksum != _checksum(body):
            raise damaged(where, "its checksum does not match")
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(where, str(error)) from error


def damaged(where: str, why: str) -> CorruptState:
    return CorruptState(
        f"{where} is damaged ({why}): restore it from a copy, or start with a new checkpoint and an empty "
        "state "
        "directory"
    )


def newer_format(where: str, found: int, known: int) -> CorruptState:
    return CorruptState(
        f"{where} was written by a newer Millpond (format {found}, this one reads up to {known}): upgrade "
        "Millpond"
    )


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=8).hexdigest()
