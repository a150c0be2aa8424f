"""Jobs beside the data path: sweeping, orphans, retention, consolidation, what topics left.

Each is a chain of steps of one broker over the network; when the broker dies, or a step fails, it
ends there, whatever it has done, and another one begins some time later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.archive.assembly import Result, assemble
from penstock.archive.planning import trim
from penstock.base.errors import PenstockError
from penstock.control import Backlog, ControlUnavailable, ObjectLease, PartitionKey, SegmentSwap
from penstock.diskless.gc.jobs import (
    DeleteObjects,
    ForgetObjects,
    MarkForDeletion,
    Sweep,
    SweepStep,
)
from penstock.diskless.gc.orphans import Comparison
from penstock.objects import ObjectInfo
from penstock.records.extents import Extent
from sim.diskless.ledger import ALL

if TYPE_CHECKING:
    from sim.diskless.broker import Broker
    from sim.diskless.world import World

_DAY_MS = 86_400_000
ORPHAN_GRACE_MS = 700
SWAPS_MAX = 4


def _ended(_: PenstockError) -> None:
    """The job ends here."""


class SweepRun:
    """One pass of the sweeper."""

    def __init__(self, world: World, broker: Broker) -> None:
        self.world = world
        self.broker = broker
        self.core = Sweep(objects_max=4, rounds_max=3)
        self._go_on(self.core.begin())

    def _go_on(self, step: SweepStep | None) -> None:
        world, core, here = self.world, self.core, self.broker.here
        match world.plants.sweep(world, step):
            case MarkForDeletion(limit):
                world.line.call(
                    lambda: world.plane.mark_for_deletion(
                        pending_grace_ms=world.pending_grace_ms,
                        unreferenced_grace_ms=world.unreferenced_grace_ms,
                        limit=limit,
                    ),
                    here(lambda objects: self._go_on(core.condemned(objects))),
                    _ended,
                )
            case DeleteObjects(keys):
                world.store.delete(keys, here(lambda: self._go_on(core.deleted())), _ended)
            case ForgetObjects(object_ids):
                world.line.call(
                    lambda: world.plane.forget_objects(object_ids),
                    here(lambda _: self._go_on(core.forgotten())),
                    _ended,
                )
            case None:
                self._forget()

    def _forget(self) -> None:
        world = self.world
        world.line.call(lambda: world.plane.forget_partitions(limit=5), lambda _: None, _ended)
        world.line.call(
            lambda: world.plane.forget_producers(idle_ms=_DAY_MS, limit=5), lambda _: None, _ended
        )


class OrphanRun:
    """One comparison of the store with the plane: first the listing, then the rows."""

    def __init__(self, world: World, broker: Broker) -> None:
        self.world = world
        self.listed = [
            ObjectInfo(key, len(stored.data), int(stored.landed_ms))
            for key, stored in sorted(world.store.objects.items())
        ]
        world.line.call(
            lambda: world.plane.referenced_keys(after="", limit=ALL),
            broker.here(self._compare),
            _ended,
        )

    def _compare(self, rows: list[tuple[str, ObjectLease]]) -> None:
        world = self.world
        comparison = Comparison(grace_ms=ORPHAN_GRACE_MS, store_now_ms=int(world.now_ms))
        comparison.page(self.listed, {lease.key for _, lease in rows})
        due = comparison.result().due
        if due:
            world.ledger.seen["orphan"] += len(due)
            world.store.delete(due, lambda: None, _ended)


def retain(world: World, broker: Broker) -> None:
    """Retention of one partition by size, or a deletion of its first records."""
    random = world.random
    key = random.choice(world.partitions)
    truth = world.ledger.truths.get(key)
    if random.random() < 0.4 and truth is not None and truth.next_offset:
        before = random.choice((-1, random.randrange(truth.next_offset + 1)))
        world.note("delete", key[1], before)
        world.line.call(lambda: world.ledger.delete_records(key, before), lambda _: None, _ended)
    else:
        max_bytes = random.choice((0, 300, 1_000, 3_000))
        world.note("retain", key[1], max_bytes)
        world.line.call(lambda: world.ledger.retain(key, max_bytes, 2), lambda _: None, _ended)


class Consolidation:
    """One segment: read some extents of a partition, write them anew, swap the rows."""

    def __init__(self, world: World, broker: Broker) -> None:
        self.world = world
        self.broker = broker
        self.replaced: list[Extent] = []
        self._results: dict[int, Result] = {}
        self._swaps = 0
        self.key: PartitionKey = world.partitions[0]
        world.line.call(
            lambda: world.plane.backlogs(min_extents=2, limit=3),
            broker.here(self._chosen),
            _ended,
        )

    def _chosen(self, backlogs: list[Backlog]) -> None:
        if not backlogs:
            return
        world, random = self.world, self.world.random
        backlog = random.choice(backlogs)
        self.key = (backlog.topic_id, backlog.partition)
        key, limit = self.key, random.randint(2, 6)
        world.line.call(
            lambda: world.plane.extents(*key, start=0, end=ALL, limit=limit),
            self.broker.here(self._read),
            _ended,
        )

    def _read(self, extents: list[Extent]) -> None:
        first = self.world.random.choice((0, 0, 1))
        self.replaced = extents[first:]
        for index, extent in enumerate(self.replaced):
            self._get(index, extent)

    def _get(self, index: int, extent: Extent) -> None:
        def got(result: Result) -> None:
            self._results[index] = result
            if len(self._results) == len(self.replaced):
                self._lease()

        self.world.store.get(
            extent.key, extent.byte_offset, extent.size_bytes, self.broker.here(got)
        )

    def _lease(self) -> None:
        world, base_offset = self.world, self.replaced[0].base_offset
        world.line.call(
            lambda: world.plane.lease_segment(*self.key, base_offset=base_offset),
            self.broker.here(self._write),
            _ended,
        )

    def _write(self, lease: ObjectLease) -> None:
        replaced = self.replaced
        pieces = trim(replaced, replaced[0].base_offset, max_bytes=ALL, at_least_one=True)
        results = [self._results[index] for index in range(len(replaced))]
        run, failure = assemble(pieces, results)
        if run is None or failure is not None:
            return
        data = bytes(run.data)
        extent = Extent(
            *lease, "segment", 0, len(data), run.base_offset, run.next_offset,
            max([extent.max_timestamp for extent in replaced]), -1,
            b"".join([extent.layout for extent in replaced]),
        )  # fmt: skip
        swap = SegmentSwap(
            topic_id=self.key[0],
            partition=self.key[1],
            object_id=lease.object_id,
            size_bytes=len(data),
            replaced=tuple(replaced),
            extents=(extent,),
        )
        self.world.store.put(lease.key, [data], self.broker.here(lambda: self._swap(swap)), _ended)

    def _swap(self, swap: SegmentSwap) -> None:
        self._swaps += 1
        world = self.world

        def failed(error: PenstockError) -> None:
            world.note("swap", swap.object_id, type(error).__name__)
            world.ledger.seen[f"swap: {type(error).__name__}"] += 1
            if isinstance(error, ControlUnavailable) and self._swaps < SWAPS_MAX:
                self._swap(swap)

        world.line.call(
            lambda: world.ledger.swap_extents(swap), lambda _: None, self.broker.here(failed)
        )
