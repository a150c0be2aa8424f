"""Orphans: objects in the store without a row in the control plane.

An orphan results from a PUT that takes effect after its key was swept. The store is listed in
pages. After each page, the control plane's rows of the same range of keys are read. A row exists
from before its object is written until after the object is deleted, so a listed object without a
row is an orphan.

Orphans are reported. Those older than a grace period are deleted. Their age is measured from the
object's time to that of the newest object-id marker, both by the store's clock. It is therefore
never overestimated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.control.operations.diskless import DisklessPlane
from penstock.diskless.gc.id_markers import CollectionCounters, ObjectIdMarkers
from penstock.diskless.identity import LISTED_ROWS_MAX
from penstock.diskless.settings import DisklessSettings
from penstock.objects import ObjectInfo, ObjectStore

ORPHANS_DELETED_MAX: Final = 1_000
"""Orphans that one pass deletes."""
ORPHANS_NAMED_MAX: Final = 20
"""Orphans whose keys one pass logs."""

logger = logging.getLogger(__name__)

OBJECT_PREFIXES: Final = ("archive/", "wal/")
"""Key prefixes of sealed segments and write-ahead objects."""


class Compared(NamedTuple):
    """Result of a comparison of the store with the control plane. `due` has the keys to delete."""

    objects: int
    orphans: list[ObjectInfo]
    orphan_count: int
    orphan_bytes: int
    due: list[str]


class Comparison:
    """The core of a comparison: takes pages of listed objects, and the keys that have rows."""

    def __init__(self, *, grace_ms: int, store_now_ms: int) -> None:
        self._grace_ms = grace_ms
        self._store_now_ms = store_now_ms
        self._named: list[ObjectInfo] = []
        self._due: list[str] = []
        self._count = self._bytes = self._objects = 0

    def page(self, listed: Iterable[ObjectInfo], known: set[str]) -> None:
        """Add a page of listed objects. `known` has the keys of all rows in its range of keys."""
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
    """The shell: compares the store with the control plane, reports orphans, deletes old ones."""

    def __init__(
        self,
        settings: DisklessSettings,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        id_markers: ObjectIdMarkers,
        counters: CollectionCounters,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._store = store
        self._id_markers = id_markers
        self._counters = counters

    async def collect(self) -> Compared:
        """Compare the whole store with the control plane; delete orphans after their grace period.

        Raises:
            StoreMismatch: the store is not the control plane's; nothing was deleted.
            DatabaseRestored: the database was restored and lacks rows; nothing was deleted.
            PenstockError: the store or the control plane failed; the next pass starts over.
        """
        standing = await self._id_markers.check()
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
                "%d objects of %d bytes in the store are unknown to the control plane: %s",
                compared.orphan_count,
                compared.orphan_bytes,
                names,
            )
        if compared.due:
            # The database may have been restored, and have lost rows, during the listing.
            await self._id_markers.check()
            await self._store.delete(compared.due)
            self._counters.orphans_deleted += len(compared.due)
            self._counters.orphans -= len(compared.due)
            logger.warning(
                "deleted %d orphaned objects after their grace period (diskless.orphan.grace.ms)",
                len(compared.due),
            )
        return compared
