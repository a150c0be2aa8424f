"""Marks: notes in the store of the highest object id, by which a set-back database is found out.

A database that was restored from an older copy does not know the newest objects: it would take
them for orphans, and rows that it still has as PENDING for objects that were never committed. So
what deletes looks at the marks first, and a broker does so at its start.

The marks are listed before the plane is asked: ids only rise, so a mark that stood in the store
before the question names an id that the plane has given out, unless it was set back.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import NamedTuple

from penstock.archive.errors import CorruptObject
from penstock.control.batch_index.plane import DisklessPlane
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
from penstock.diskless.limits import MARKS_KEPT, MARKS_READ_MAX
from penstock.objects import ObjectExists, ObjectInfo, ObjectStore

logger = logging.getLogger(__name__)


class Standing(NamedTuple):
    """How plane and store stand to each other. `store_now_ms` is a time that the store has seen;
    0 without a mark.
    """

    highest_id: int
    marked_id: int
    store_now_ms: int


class ObjectMarks:
    """The marks of one store, of one cluster. Everything here may be repeated, by any broker."""

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

    async def check(self) -> Standing:
        """Compare plane and store, as before anything is deleted.

        Raises:
            StoreMismatch: the store is not the plane's.
            DatabaseRestored: the store knows of a higher id than the plane.
        """
        await self._guard.check()
        return judge(await self._listed(), await self._plane.highest_object_id())

    async def claim(self) -> Standing:
        """As `check`, at a start; an empty store becomes this cluster's.

        Raises:
            StoreOfAnotherCluster: its newest mark names another one.
            StoreMismatch, DatabaseRestored: as `check`, and as `StoreGuard.adopt`.
        """
        found = await self._guard.check()
        listed = await self._listed()
        if listed:
            await self._check_cluster(listed[-1])
        standing = judge(listed, await self._plane.highest_object_id())
        await self._guard.adopt(found)
        if not listed:
            await self._write(standing.highest_id)
        return standing

    async def note(self) -> None:
        """Write a mark if ids were given out since the last one, and delete old ones.

        Raises:
            StoreMismatch, DatabaseRestored: as `check`.
        """
        await self._guard.check()
        listed = await self._listed()
        standing = judge(listed, await self._plane.highest_object_id())
        if not listed or standing.highest_id > standing.marked_id:
            await self._write(standing.highest_id)
        if len(listed) > MARKS_KEPT:
            await self._store.delete([info.key for info in listed[:-MARKS_KEPT]])

    async def _write(self, highest_id: int) -> None:
        mark = encode_mark(Mark(self._guard.cluster_id, highest_id))
        with suppress(ObjectExists):  # another broker was quicker
            await self._store.put(mark_key(highest_id), [mark])
        self._counters.marked_object_id = highest_id

    async def _listed(self) -> list[ObjectInfo]:
        """The marks, the highest last."""
        listed: list[ObjectInfo] = []
        async for info in self._store.list(PREFIX):
            if marked_id(info.key) is not None:
                listed.append(info)
            if len(listed) > MARKS_READ_MAX:
                del listed[: -MARKS_KEPT - 1]
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


def judge(listed: list[ObjectInfo], highest_id: int) -> Standing:
    """What the marks that were listed say of a plane that was asked after that."""
    if not listed:
        return Standing(highest_id, 0, 0)
    newest = listed[-1]
    marked = marked_id(newest.key) or 0
    if marked > highest_id:
        raise DatabaseRestored(marked_id=marked, highest_id=highest_id, key=newest.key)
    return Standing(highest_id, marked, max(info.modified_ms for info in listed))
