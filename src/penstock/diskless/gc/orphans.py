"""Orphans: objects in the store that the control plane does not know.

They come from a PUT that took effect after its key had been swept. The store is listed by pages;
after each the plane is asked for its rows of the same keys. A row is there before its object is
written and until after it is deleted, so an object that was listed and has no row when the plane
is asked after that belongs to nobody.

They are reported, and deleted when they are older than a grace by the store's own time: that of
the newest mark, which lies in the past, so that ages come out too low and never too high.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.control.batch_index.plane import DisklessPlane
from penstock.diskless.gc.counters import CollectionCounters
from penstock.diskless.gc.marks import ObjectMarks
from penstock.diskless.limits import LISTED_ROWS_MAX, ORPHANS_DELETED_MAX, ORPHANS_NAMED_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectInfo, ObjectStore

logger = logging.getLogger(__name__)

OBJECT_PREFIXES: Final = ("archive/", "wal/")
"""What keys begin with that the plane reserves: sealed segments and write-ahead objects."""


class Compared(NamedTuple):
    """What a comparison of the store with the plane found. `due` are to be deleted."""

    objects: int
    orphans: list[ObjectInfo]
    orphan_count: int
    orphan_bytes: int
    due: list[str]


class Comparison:
    """The core: takes pages of a listing with the keys that have rows."""

    def __init__(self, *, grace_ms: int, store_now_ms: int) -> None:
        self._grace_ms = grace_ms
        self._store_now_ms = store_now_ms
        self._named: list[ObjectInfo] = []
        self._due: list[str] = []
        self._count = self._bytes = self._objects = 0

    def page(self, listed: Iterable[ObjectInfo], known: set[str]) -> None:
        """Objects that were listed, and the keys of all rows between the first and the last."""
        for info in listed:
            self._objects += 1
            if info.key not in known:
                self._orphan(info)

    def result(self) -> Compared:
        return Compared(self._objects, self._named, self._count, self._bytes, self._due)

    def _orphan(self, info: ObjectInfo) -> None:
        self._count += 1
        self._bytes += info.size_bytes
        if len(self._named) < ORPHANS_NAMED_MAX:
            self._named.append(info)
        age_ms = self._store_now_ms - info.modified_ms
        if 0 <= self._grace_ms <= age_ms and len(self._due) < ORPHANS_DELETED_MAX:
            self._due.append(info.key)


async def compare(plane: DisklessPlane, store: ObjectStore, comparison: Comparison) -> None:
    """Feed a comparison with all objects of the store."""
    for prefix in OBJECT_PREFIXES:
        await _compare_below(prefix, plane, store, comparison)


async def _compare_below(
    prefix: str, plane: DisklessPlane, store: ObjectStore, comparison: Comparison
) -> None:
    page: list[ObjectInfo] = []
    before = prefix
    async for info in store.list(prefix):
        page.append(info)
        if len(page) == LISTED_ROWS_MAX:
            comparison.page(page, await known_keys(plane, before, page[-1].key))
            before, page = page[-1].key, []
    if page:
        comparison.page(page, await known_keys(plane, before, page[-1].key))


async def known_keys(plane: DisklessPlane, after: str, last: str) -> set[str]:
    """The keys of rows above `after`, up to `last`."""
    known: set[str] = set()
    while True:
        rows = await plane.referenced_keys(after=after, limit=LISTED_ROWS_MAX)
        for _, lease in rows:
            if lease.key > last:
                return known
            known.add(lease.key)
        if len(rows) < LISTED_ROWS_MAX:
            return known
        after = rows[-1][1].key


class OrphanCollector:
    """The shell: compares, reports, deletes."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        marks: ObjectMarks,
        counters: CollectionCounters,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._store = store
        self._marks = marks
        self._counters = counters

    async def collect(self) -> Compared:
        """Compare the whole store with the plane, and delete the orphans that are due.

        Raises:
            StoreMismatch, DatabaseRestored: nothing was deleted: the store is not the plane's, or
                the database may not know what it needs.
            PenstockError: store or plane failed; the next pass begins anew.
        """
        standing = await self._marks.check()
        comparison = Comparison(
            grace_ms=self._settings.orphan_grace_ms, store_now_ms=standing.store_now_ms
        )
        await compare(self._plane, self._store, comparison)
        compared = comparison.result()
        self._counters.orphans = compared.orphan_count
        self._counters.orphan_bytes = compared.orphan_bytes
        if compared.orphan_count:
            names = ", ".join(info.key for info in compared.orphans)
            logger.warning(
                "%d objects of %d bytes in the store are not known to the control plane: %s",
                compared.orphan_count,
                compared.orphan_bytes,
                names,
            )
        if compared.due:
            # Rows may have gone with a restored database while the listing ran.
            await self._marks.check()
            await self._store.delete(compared.due)
            self._counters.orphans_deleted += len(compared.due)
            self._counters.orphans -= len(compared.due)
            logger.warning("%d of them were deleted, older than their grace", len(compared.due))
        return compared
