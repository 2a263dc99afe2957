"""The served state of one query: batches begin, are staged, sealed, saved and committed or aborted here.

One driver talks to it, one step at a time, except that `save` runs beside the reading of outputs and that tasks
stage rows in parallel. Shards are sealed in parallel, each by one thread.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from millpond._kernel import BUCKETS, PackWriter
from millpond.errors import Conflict, InternalError
from millpond.policy.compaction import Limits, Merge, PackUse, decide_rewrite, is_behind, staggered
from millpond.service.compactor import Compaction, Compactor
from millpond.service.messages import (
    BatchTry,
    CommitReply,
    OpenRequest,
    OutputKey,
    SaveReply,
    SealReply,
    SealRequest,
    StageKey,
    StatsReply,
)
from millpond.service.spent import Spent, Stopwatch
from millpond.service.spool import Budget, Spool
from millpond.service.staging import Staging
from millpond.service.trace import TraceWriter
from millpond.state.opening import open_shard
from millpond.state.shard import FlushedRun, OperatorShard, Place
from millpond.storage.delayed import waited_ns
from millpond.storage.manifest import Manifest
from millpond.storage.names import pack_name
from millpond.storage.protocol import publish_manifest, publish_pack, read_manifest
from millpond.storage.store import Storage, open_storage

__all__ = ["ServedQuery"]


class ServedQuery:
    def __init__(self, request: OpenRequest, spool_directory: Path, trace_file: Path | None = None) -> None:
        self._settings = request.settings
        self._owner_slot = request.owner_slot
        self._operators = request.operators
        self._storage: Storage = open_storage(request.location, request.settings.storage_latency_ms)
        self._spool_directory = spool_directory
        self._budget = Budget(request.settings.staging_bytes)
        self._instance = secrets.token_hex(4)
        self._pack_numbers = itertools.count()
        self._naming = threading.Lock()
        self._unreferenced: set[str] = set()
        """Packs that no manifest names, yet must not be collected."""
        self._flushed: set[str] = set()
        """Those that the running batch wrote."""
        self._adopted: set[str] = set()
        """Those of merges that the next manifest names, or, where the state they are of ends with its batch, none."""
        self._aborts = 0
        self._pack_bytes: dict[str, int] = {}
        """Lengths of the packs that the committed state is in."""
        self._stores = self._open_stores(request)
        self._trace = None if trace_file is None else TraceWriter(trace_file, request.operators)
        if self._trace is not None:
            for store in itertools.chain.from_iterable(self._stores):
                store.record(self._trace.listener(store.operator))
        self._next_batch = 0
        if request.commit is not None:
            self._next_batch = request.commit.batch_id + 1
            self._restore(read_manifest(self._storage, request.commit))
        self._pool = ThreadPoolExecutor(
            max_workers=max(1, min(len(request.shard_starts), os.cpu_count() or 1)),
            thread_name_prefix="shard",
        )
        self._compactor = Compactor(self._work_path, self._publish)
        self._at: BatchTry | None = None
        self._staging = Staging(self._budget, spool_directory)
        self._outputs: dict[tuple[int, int], Spool] = {}
        self._written_bytes = 0
        self._saved_packs: frozenset[str] = frozenset()

    def _open_stores(self, request: OpenRequest) -> list[list[OperatorShard]]:
        starts = (*request.shard_starts, BUCKETS)
        shards = len(request.shard_starts)
        memory = request.settings.memory_bytes // (shards * len(request.operators))
        ratio = request.settings.read_batch_ratio
        read_delay_us = round(request.settings.storage_latency_ms * 1_000)
        observed = request.settings.observed_bytes // shards
        return [
            [
                open_shard(
                    Place(
                        operator,
                        shard,
                        starts[shard],
                        starts[shard + 1],
                        memory,
                        ratio,
                        read_delay_us,
                        observed,
                    ),
                    spec,
                )
                for shard in range(shards)
            ]
            for operator, spec in enumerate(request.operators)
        ]

    def _restore(self, manifest: Manifest) -> None:
        paths: dict[str, str] = {}
        for pack in sorted(manifest.packs()):
            self._storage.get(pack, 0, 1)  # says which one is missing, and what to do
            paths[pack] = self._readable(pack)
        for state in manifest.stores:
            self._stores[state.operator][state.shard].restore(state, paths)
        self._pack_uses()

    # The batch

    def begin(self, at: BatchTry) -> None:
        if at.batch != self._next_batch:
            # A commit that never arrived here would otherwise be undone by the next batch.
            raise Conflict(f"batch {at.batch} can't begin: the state is that before batch {self._next_batch}")
        if self._at is not None:
            self.abort(self._at)
        self._at = at

    def stage(self, key: StageKey, schema: pa.Schema, rows: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        self._check(key.at)
        self._staging.put(key, schema, rows)

    def stage_file(self, key: StageKey, name: str) -> None:
        self._check(key.at)
        self._staging.adopt(key, name)

    def seal(self, request: SealRequest) -> SealReply:
        """Applies the winners' rows in task order, fires what is due, and keeps the outputs until the batch ends."""
        self._check(request.at)
        started = time.perf_counter()
        stores = self._stores[request.operator]
        futures = [self._pool.submit(self._seal_shard, store, request) for store in stores]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        self._staging.release(request.operator)
        sealed = [future.result() for future in futures]
        spent = sum((spent for _, spent in sealed), Spent())
        return SealReply(
            output_rows=tuple(rows for rows, _ in sealed),
            spent=spent.within((time.perf_counter() - started) * 1_000),
        )

    def _seal_shard(self, store: OperatorShard, request: SealRequest) -> tuple[int, Spent]:
        watch = Stopwatch()
        lookups_before, removals_before = store.spent_ns
        buffer_bytes = self._settings.write_buffer_bytes // len(self._stores[0]) // len(self._stores)
        outputs = Spool(store.spec.output_schema, self._budget, self._spool_directory)
        self._outputs[store.operator, store.shard] = outputs
        for rows in self._staging.take(store.operator, store.shard, request.receipts):
            with watch.on("state_write"):
                store.apply(rows)
                for batch in store.ready():
                    outputs.append(batch)
            if store.dirty_bytes > buffer_bytes:
                self._flush([store], watch)
        watch.move("state_write", "state_read", store.spent_ns[0] - lookups_before)
        with watch.on("state_read"):
            for batch in store.fire(request.mode, request.before_us, request.watermark_us):
                outputs.append(batch)
            outputs.finish()
        watch.move("state_read", "removal", store.spent_ns[1] - removals_before)
        return outputs.rows, watch.spent()

    def outputs(self, key: OutputKey) -> Spool:
        self._check(key.at)
        spool = self._outputs.get((key.operator, key.shard))
        if spool is None:
            raise Conflict(f"operator {key.operator}, shard {key.shard}: not sealed in {key.at}")
        return spool

    def save(self, at: BatchTry) -> SaveReply:
        """Makes the sealed batch durable: packs, then the manifest that names them. It counts once the driver
        has written its commit record."""
        self._check(at)
        self._written_bytes = 0
        watch = Stopwatch()
        every = [store for stores in self._stores for store in stores]
        # Window-bound and long-lived state end at different times, so they do not share files.
        for bound in (True, False):
            self._flush([store for store in every if (store.spec.time is not None) == bound], watch)
        manifest = Manifest(batch_id=at.batch, stores=tuple(store.version() for store in every))
        with watch.on_files("state_write"):
            name = publish_manifest(self._storage, manifest, owner_slot=self._owner_slot, attempt=at.number)
        self._saved_packs = manifest.packs()
        return SaveReply(manifest=name, written_bytes=self._written_bytes, spent=watch.spent())

    def _flush(self, stores: list[OperatorShard], watch: Stopwatch) -> None:
        if not any(store.dirty_bytes for store in stores):
            return
        path = self._work_path()
        writer = PackWriter(str(path))
        try:
            with watch.on("state_write"):
                flushed: list[tuple[OperatorShard, list[FlushedRun]]] = [
                    (store, store.flush(writer)) for store in stores
                ]
                length = writer.finish()
        except BaseException:
            writer.discard()
            raise
        if length == 0:
            return
        self._written_bytes += length
        with watch.on_files("state_write"):
            name, readable = self._publish(path)
        self._flushed.add(name)
        with watch.on("state_write"):
            for store, runs in flushed:
                store.add_pending(runs, name, readable)

    def commit(self, at: BatchTry) -> CommitReply:
        """The driver has written the commit record: the batch's changes are the state."""
        self._check(at)
        self._at = None
        self._close_batch()
        watch = Stopwatch()
        for store in itertools.chain.from_iterable(self._stores):
            removals_before = store.spent_ns[1]
            with watch.on("state_write"):
                store.commit()
            watch.move("state_write", "removal", store.spent_ns[1] - removals_before)
        if self._trace is not None:
            self._trace.commit(at.batch)
        with self._naming:
            self._next_batch = at.batch + 1
            self._unreferenced -= self._saved_packs | self._flushed | self._adopted
        self._flushed.clear()
        self._adopted.clear()
        with watch.on("compaction"):
            merged_cpu_ns = self._maintain()
        watch.add_cpu("compaction", merged_cpu_ns)
        with self._naming:
            return CommitReply(
                stats=tuple(self.stats()),
                in_flight=tuple(self._unreferenced | {ref.pack for ref in self._compactor.inputs}),
                spent=watch.spent(),
                storage_wait_ns=waited_ns(self._storage),
            )

    def abort(self, at: BatchTry) -> None:
        self._check(at)
        self._at = None
        self._close_batch()
        for store in itertools.chain.from_iterable(self._stores):
            store.abort()
        with self._naming:
            self._unreferenced -= self._flushed
        self._flushed.clear()
        self._aborts += 1
        if self._trace is not None:
            self._trace.abort()

    def _check(self, at: BatchTry) -> None:
        if at != self._at:
            raise Conflict(f"{at} is not the running batch of this service ({self._at})")

    def _close_batch(self) -> None:
        self._staging.close()
        self._staging = Staging(self._budget, self._spool_directory)
        outputs, self._outputs = self._outputs, {}
        for spool in outputs.values():
            spool.close()

    # Beside the batch

    def _maintain(self) -> int:
        """Adopts finished merges and decides on new ones; gives the CPU time of the finished ones."""
        self._adopt()
        limits = Limits(
            max_space_amplification=self._settings.max_space_amplification, max_runs=self._settings.max_runs
        )
        is_idle = not self._compactor.inputs
        due = self._due_compactions(limits)
        started = due[: staggered(len(due))]
        self._compactor.start(started)
        # The one that is merged at once may read ahead in the same scan.
        scanned = started[0].store if started and is_idle and started[0].store.merges_read_ahead else None
        self._compactor.read_ahead(
            [
                store.read_ahead
                for store in itertools.chain.from_iterable(self._stores)
                if store.reads_ahead and store is not scanned
            ]
        )
        self._wait_for_room(limits)
        return self._compactor.take_cpu_ns()

    def _adopt(self) -> None:
        for done in self._compactor.collect():
            spec = done.spec
            is_valid = spec.aborts == self._aborts
            if is_valid and spec.store.replace(spec.slice, spec.inputs, done.output, done.path):
                self._adopted.add(done.output.pack)
            else:
                with self._naming:
                    self._unreferenced.discard(done.output.pack)

    def _wait_for_room(self, limits: Limits) -> None:
        """Keeps the bound on garbage where merges can't keep up with the batches."""
        before_bytes = None
        while is_behind(packs := self._pack_uses(), limits):
            total_bytes = sum(use.total_bytes for use in packs.values())
            if before_bytes is not None and total_bytes >= before_bytes:
                return  # What is live was taken for garbage: nothing more is to be had.
            before_bytes = total_bytes
            self._compactor.start(self._due_compactions(limits))
            self._compactor.wait()
            self._adopt()

    def _due_compactions(self, limits: Limits) -> list[Compaction]:
        due: list[Compaction] = []
        taken = set(self._compactor.inputs)
        chosen = set(decide_rewrite(self._pack_uses(), limits))
        for store in itertools.chain.from_iterable(self._stores):
            for slice_, refs in store.committed_runs().items():
                merges: list[Merge] = []
                match store.due_merge(slice_, limits):
                    case Merge() as merge:
                        merges.append(merge)
                # Runs that pin packs of which much is garbage.
                merges += [
                    store.rewrite_of(slice_, position)
                    for position, ref in enumerate(refs)
                    if ref.pack in chosen
                ]
                for merge in merges:
                    inputs = refs[merge.first : merge.first + merge.count]
                    if taken.isdisjoint(inputs):
                        taken.update(inputs)
                        run = store.merge_of(slice_, merge.first, merge.count)
                        due.append(Compaction(store, slice_, inputs, run, self._aborts))
        return due

    def _pack_uses(self) -> dict[str, PackUse]:
        """The packs that the committed state is in. What is live of a pack is what is live of its runs."""
        live: dict[tuple[str, int], int] = {}
        for store in itertools.chain.from_iterable(self._stores):
            for slice_, refs in store.committed_runs().items():
                for ref, use in zip(refs, store.run_uses(slice_) if refs else (), strict=True):
                    # Shards may share a run.
                    place = ref.pack, ref.offset
                    live[place] = min(live.get(place, 0) + use.live_bytes, ref.length)
        used: dict[str, int] = {}
        for (pack, _), bytes_ in live.items():
            used[pack] = used.get(pack, 0) + bytes_
        self._pack_bytes = {
            pack: self._pack_bytes.get(pack) or Path(self._readable(pack)).stat().st_size for pack in used
        }
        return {pack: PackUse(used[pack], length) for pack, length in self._pack_bytes.items()}

    def stats(self) -> list[StatsReply]:
        replies = []
        unused = self._unused_bytes()
        for stores in self._stores:
            totals: dict[str, int] = {"run_bytes": unused[stores[0].operator]}
            for store in stores:
                for name, value in store.stats().items():
                    totals[name] = totals.get(name, 0) + value
            replies.append(StatsReply(**{name: totals.get(name, 0) for name in StatsReply.__struct_fields__}))
        return replies

    def _unused_bytes(self) -> list[int]:
        """What no run needs of the packs that each operator's runs are in; of shared packs by their shares."""
        needed: dict[str, list[int]] = {}
        for operator, stores in enumerate(self._stores):
            for store in stores:
                for ref in itertools.chain.from_iterable(store.committed_runs().values()):
                    needed.setdefault(ref.pack, [0] * len(self._stores))[operator] += ref.length
        unused = [0] * len(self._stores)
        for pack, length in self._pack_bytes.items():
            shares = needed.get(pack, [])
            rest = max(0, length - sum(shares))
            for operator, share in enumerate(shares):
                unused[operator] += rest * share // max(1, sum(shares))
        return unused

    def close(self) -> None:
        self._compactor.stop()
        self._pool.shutdown(wait=True)
        self._close_batch()
        if self._trace is not None:
            self._trace.close()

    # Files

    def _work_path(self) -> Path:
        return self._storage.work_directory() / f"{self._instance}.{next(self._pack_numbers)}"

    def _publish(self, path: Path) -> tuple[str, str]:
        with self._naming:
            # Collection spares packs of batches that are not committed yet; what outlives its batch unreferenced,
            # as a merged run does until the next manifest, is spared by name.
            name = pack_name(self._owner_slot, self._next_batch, path.name)
            self._unreferenced.add(name)
        publish_pack(self._storage, name, path)
        return name, self._readable(name)

    def _readable(self, pack: str) -> str:
        path = self._storage.path(pack)
        if path is None:
            raise InternalError(f"{pack}: the storage has no local path for it")
        return str(path)
