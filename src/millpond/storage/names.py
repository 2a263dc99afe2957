"""The names of all durable objects. What `parse` does not know is not ours and is never touched.

The name of a pack or manifest carries the slot of the owner that wrote it: collection needs to know whose
garbage it sees without reading it.
"""

from __future__ import annotations

import re

import msgspec

__all__ = [
    "LOG",
    "MANIFESTS",
    "PACKS",
    "LogName",
    "ManifestName",
    "Name",
    "PackName",
    "log_name",
    "manifest_name",
    "pack_name",
    "parse",
]

LOG = "log/"
MANIFESTS = "manifests/"
PACKS = "packs/"

_NUMBER = r"(\d{20})"
_LOG = re.compile(rf"log/{_NUMBER}", re.ASCII)
_MANIFEST = re.compile(rf"manifests/{_NUMBER}-{_NUMBER}-(0|[1-9]\d*)", re.ASCII)
_PACK = re.compile(rf"packs/{_NUMBER}-{_NUMBER}-([0-9a-z.]+)", re.ASCII)
_SEQ = re.compile(r"[0-9a-z.]+", re.ASCII)


class LogName(msgspec.Struct, frozen=True):
    slot: int


class ManifestName(msgspec.Struct, frozen=True):
    owner_slot: int
    batch_id: int
    attempt: int


class PackName(msgspec.Struct, frozen=True):
    owner_slot: int
    batch_id: int
    seq: str


Name = LogName | ManifestName | PackName


def log_name(slot: int) -> str:
    return f"{LOG}{_number(slot)}"


def manifest_name(owner_slot: int, batch_id: int, attempt: int) -> str:
    return f"{MANIFESTS}{_number(owner_slot)}-{_number(batch_id)}-{attempt}"


def pack_name(owner_slot: int, batch_id: int, seq: int | str) -> str:
    """`seq` sets the packs of a batch apart; with several writers or tries it names them, as in `2.0.17`."""
    text = str(seq)
    if not _SEQ.fullmatch(text):
        raise ValueError(f"{text!r} can't stand in a pack's name: only 0-9, a-z and dots can")
    return f"{PACKS}{_number(owner_slot)}-{_number(batch_id)}-{text}"


def parse(name: str) -> Name | None:
    if found := _LOG.fullmatch(name):
        return LogName(int(found[1]))
    if found := _MANIFEST.fullmatch(name):
        return ManifestName(int(found[1]), int(found[2]), int(found[3]))
    if found := _PACK.fullmatch(name):
        return PackName(int(found[1]), int(found[2]), found[3])
    return None


def _number(value: int) -> str:
    if value < 0:
        raise ValueError(f"{value} can't stand in a name: slots and batches count from 0")
    return f"{value:020d}"
