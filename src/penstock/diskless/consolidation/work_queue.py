"""Work queue of consolidation for processes outside of brokers, such as Spark jobs.

    backlogs ──> lease: a run and a reserved key ──> (segment is made elsewhere) ──> complete: swap

The queue has no state of its own. The key of an abandoned lease is swept. If several jobs or
brokers take the same run, the first swap wins. A segment is accepted once its complete object is in
the store.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from penstock.base.errors import InvalidError
from penstock.base.system import Clock
from penstock.control.batch_index.operations import DisklessPlane
from penstock.control.batch_index.values import Backlog, ObjectLease, PartitionKey, SegmentSwap
from penstock.diskless.consolidation.choosing import PAGE_EXTENTS, choose
from penstock.diskless.consolidation.consolidator import BACKLOGS_MAX, rules_of
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectNotFound, ObjectStore
from penstock.records.extents import Extent

_END = 2**63 - 1


class SegmentMissing(InvalidError):
    """The object of a completed segment is not in the store, or has another size."""

    code: ClassVar[str] = "invalid_request"


class Work(NamedTuple):
    """A run of extents, and the leased key for its segment.

    `following` is the next offset to read, or None.

    Without work, `run` is empty and `lease` is None.
    """

    run: tuple[Extent, ...]
    lease: ObjectLease | None
    following: int | None


class WorkQueue:
    """Leases runs of extents to other processes, and accepts their segments."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._store = store
        self._clock = clock

    async def backlogs(self) -> list[Backlog]:
        return await self._plane.backlogs(min_extents=1, limit=BACKLOGS_MAX)

    async def lease(self, key: PartitionKey, start: int, *, all_ages: bool) -> Work:
        """Lease the first run from offset `start` on, if the first page of extents has one.

        The broker's settings limit the run. `all_ages` ignores the minimum age and number of
        extents.
        """
        extents = await self._plane.extents(*key, start=start, end=_END, limit=PAGE_EXTENTS)
        rules = rules_of(self._settings, all_ages=all_ages)
        last = len(extents) < PAGE_EXTENTS
        choice = choose(extents, rules=rules, now_ms=self._clock.now_ms(), last=last)
        if not choice.run:
            return Work((), None, choice.following)
        base_offset = choice.run[0].base_offset
        leased = await self._plane.lease_segment(*key, base_offset=base_offset)
        return Work(choice.run, leased, choice.following)

    async def complete(self, swap: SegmentSwap) -> None:
        """Replace the extents of a run by their segment. Idempotent.

        Raises:
            SegmentMissing: the object is not in the store, or has another size.
            StaleExtents, ObjectLeaseLost: as in `DisklessPlane.swap_extents`.
        """
        keys = {extent.key for extent in swap.extents}
        if len(keys) != 1:
            raise SegmentMissing(f"a segment has one object, but the request names {len(keys)}")
        (key,) = keys
        try:
            info = await self._store.head(key)
        except ObjectNotFound:
            raise SegmentMissing(f"there is no object {key}") from None
        if info.size_bytes != swap.size_bytes:
            raise SegmentMissing(
                f"object {key} has {info.size_bytes} bytes, but the request names {swap.size_bytes}"
            )
        await self._plane.swap_extents(swap)
