"""Manifests: which byte ranges of which packs make up the state after a batch.

A manifest is written with every batch, so the names of packs, which most runs share, are kept once.
"""

from __future__ import annotations

import hashlib

import msgspec

from millpond.storage.records import damaged, newer_format

__all__ = ["Manifest", "RunRef", "SliceState", "StoreState", "decode", "encode"]

FORMAT_VERSION = 1
_MAGIC = b"MPMANIF\n"
_VERSION_BYTES = 4
_CHECKSUM_BYTES = 8
_HEADER_BYTES = len(_MAGIC) + _VERSION_BYTES + _CHECKSUM_BYTES


class RunRef(msgspec.Struct, frozen=True):
    """A run: a byte range of a pack."""

    pack: str
    offset: int
    length: int
    rows: int


class SliceState(msgspec.Struct, frozen=True):
    """One table of a store; its runs oldest first."""

    slice: int
    rows: int
    runs: tuple[RunRef, ...]


class StoreState(msgspec.Struct, frozen=True):
    """The state of one operator in one shard."""

    operator: int
    shard: int
    slices: tuple[SliceState, ...]


class Manifest(msgspec.Struct, frozen=True):
    """The whole state of the query after a batch."""

    batch_id: int
    stores: tuple[StoreState, ...]

    def packs(self) -> frozenset[str]:
        return frozenset(self.live_bytes())

    def live_bytes(self) -> dict[str, int]:
        """Bytes of each pack that runs point at. A range that shards share counts once."""
        ranges = {
            (run.pack, run.offset): run.length
            for store in self.stores
            for part in store.slices
            for run in part.runs
        }
        live: dict[str, int] = {}
        for (pack, _), length in ranges.items():
            live[pack] = live.get(pack, 0) + length
        return live


_WireRun = tuple[int, int, int, int]
_WireSlice = tuple[int, int, list[_WireRun]]
_WireStore = tuple[int, int, list[_WireSlice]]


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    batch_id: int
    packs: list[str]
    stores: list[_WireStore]


def encode(manifest: Manifest) -> bytes:
    packs = sorted(manifest.packs())
    position = {pack: index for index, pack in enumerate(packs)}
    stores: list[_WireStore] = [
        (
            store.operator,
            store.shard,
            [
                (
                    part.slice,
                    part.rows,
                    [(position[run.pack], run.offset, run.length, run.rows) for run in part.runs],
                )
                for part in store.slices
            ],
        )
        for store in manifest.stores
    ]
    body = msgspec.msgpack.encode(_Wire(manifest.batch_id, packs, stores))
    return _MAGIC + FORMAT_VERSION.to_bytes(_VERSION_BYTES, "little") + _checksum(body) + body


def decode(data: bytes, where: str) -> Manifest:
    """`where` names the file in messages."""
    if len(data) < _HEADER_BYTES or not data.startswith(_MAGIC):
        raise damaged(where, "it does not begin like a manifest")
    version = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + _VERSION_BYTES], "little")
    if version > FORMAT_VERSION:
        raise newer_format(where, version, FORMAT_VERSION)
    body = data[_HEADER_BYTES:]
    if version != FORMAT_VERSION or data[_HEADER_BYTES - _CHECKSUM_BYTES : _HEADER_BYTES] != _checksum(body):
        raise damaged(where, "its checksum does not match")
    try:
        wire = msgspec.msgpack.decode(body, type=_Wire)
        stores = tuple(_store(wire.packs, store) for store in wire.stores)
    except (msgspec.MsgspecError, IndexError) as error:
        raise damaged(where, str(error)) from error
    return Manifest(wire.batch_id, stores)


def _store(packs: list[str], wire: _WireStore) -> StoreState:
    operator, shard, slices = wire
    return StoreState(
        operator,
        shard,
        tuple(
            SliceState(
                slice_,
                rows,
                tuple(RunRef(packs[pack], offset, length, n) for pack, offset, length, n in runs),
            )
            for slice_, rows, runs in slices
        ),
    )


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
