"""Object-id markers: objects in the store that reveal a restored database.

A database that was restored from an older copy lacks the rows of the newest objects. Its jobs would
treat these objects as orphans, or as never committed, and delete them. Jobs that delete, and
starting brokers, therefore check the markers first.

The markers are listed before the highest id is read from the control plane. Ids only rise, so a
listed id that is higher proves that the database was restored.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.archive.errors import CorruptObject
from penstock.control.batch_index.operations import DisklessPlane
from penstock.diskless.errors import DatabaseRestored, StoreOfAnotherCluster
from penstock.diskless.formats.mark import (
    MARK_BYTES_MAX,
    PREFIX,
    Mark,
    decode_mark,
    encode_mark,
    mark_key,
    marked_id,
)
from penstock.diskless.gc.counters import CollectionCounters
from penstock.diskless.identity import StoreGuard
from penstock.objects import ObjectExists, ObjectInfo, ObjectStore

ID_MARKERS_KEPT: Final = 4
"""Object-id markers in the store. Older ones are deleted when a new one is written."""
ID_MARKERS_READ_MAX: Final = 10_000
"""Object-id markers kept of one listing. There are few, unless their deletion fails."""

logger = logging.getLogger(__name__)


class IdComparison(NamedTuple):
    """Highest object ids of the control plane and of the markers.

    `store_now_ms` is the newest time of a marker, by the store's clock. It and `marked_id` are 0
    without a marker.
    """

    highest_id: int
    marked_id: int
    store_now_ms: int


class ObjectIdMarkers:
    """The object-id markers of one cluster in its store. Any broker may repeat all methods."""

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        guard: StoreGuard,
        counters: CollectionCounters | None = None,
    ) -> None:
        self._plane = plane
        self._store = store
        self._guard = guard
        self._counters = counters or CollectionCounters()

    async def check(self) -> IdComparison:
        """Compare the control plane with the store. Call it before any deletion of objects.

        Raises:
            StoreMismatch: the store is not the control plane's.
            DatabaseRestored: the store has a higher object id than the control plane.
        """
        await self._guard.check()
        return compare_ids(await self._listed(), await self._plane.highest_object_id())

    async def claim(self) -> IdComparison:
        """Check the store at a broker's start, and adopt it if the control plane has none.

        Raises:
            StoreOfAnotherCluster: the newest marker names another cluster.
            StoreMismatch, DatabaseRestored: as in `check` and `StoreGuard.adopt`.
        """
        found = await self._guard.check()
        listed = await self._listed()
        if listed:
            await self._check_cluster(listed[-1])
        standing = compare_ids(listed, await self._plane.highest_object_id())
        await self._guard.adopt(found)
        if not listed:
            await self._write(standing.highest_id)
        return standing

    async def note(self) -> None:
        """Write a marker if ids were leased since the last one, and delete old markers.

        Raises:
            StoreMismatch, DatabaseRestored: as in `check`.
        """
        await self._guard.check()
        listed = await self._listed()
        standing = compare_ids(listed, await self._plane.highest_object_id())
        if not listed or standing.highest_id > standing.marked_id:
            await self._write(standing.highest_id)
        if len(listed) > ID_MARKERS_KEPT:
            await self._store.delete([info.key for info in listed[:-ID_MARKERS_KEPT]])

    async def _write(self, highest_id: int) -> None:
        mark = encode_mark(Mark(self._guard.cluster_id, highest_id))
        with suppress(ObjectExists):  # another broker wrote it
            await self._store.put(mark_key(highest_id), [mark])
        self._counters.marked_object_id = highest_id

    async def _listed(self) -> list[ObjectInfo]:
        listed: list[ObjectInfo] = []
        async for info in self._store.list(PREFIX):
            if marked_id(info.key) is not None:
                listed.append(info)
            if len(listed) > ID_MARKERS_READ_MAX:
                del listed[: -ID_MARKERS_KEPT - 1]
        return listed

    async def _check_cluster(self, newest: ObjectInfo) -> None:
        size_bytes = min(newest.size_bytes, MARK_BYTES_MAX)
        if not size_bytes:
            raise CorruptObject(f"{newest.key} is empty")
        mark = decode_mark(bytes(await self._store.get(newest.key, 0, size_bytes)))
        if mark.cluster_id != self._guard.cluster_id:
            raise StoreOfAnotherCluster(
                found=mark.cluster_id,
                expected=self._guard.cluster_id,
                key=newest.key,
                store=self._guard.name,
            )


def compare_ids(listed: list[ObjectInfo], highest_id: int) -> IdComparison:
    """Compare the newest marker with `highest_id`, the highest object id in the database.

    The caller must read the id after the listing.

    Raises:
        DatabaseRestored: the marker has a higher id than the database.
    """
    if not listed:
        return IdComparison(highest_id, 0, 0)
    newest = listed[-1]
    marked = marked_id(newest.key) or 0
    if marked > highest_id:
        raise DatabaseRestored(marked_id=marked, highest_id=highest_id, key=newest.key)
    return IdComparison(highest_id, marked, max(info.modified_ms for info in listed))
