"""Object-id markers: objects in the store that reveal a restored database.

A database that was restored from an older copy lacks the rows of the newest objects. Its jobs would
treat these objects as orphans, or as never committed, and delete them. Jobs that delete, and
starting brokers, therefore check the markers first.

The markers are listed before the highest id is read from the control plane. Ids only rise, so a
listed id that is higher proves that the database was restored.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.archive.errors import CorruptObject
from penstock.base.crc import crc32c
from penstock.base.metrics import Metrics, counter, gauge
from penstock.control.operations.diskless import DisklessPlane
from penstock.diskless.errors import DatabaseRestored, StoreOfAnotherCluster
from penstock.diskless.identity import StoreGuard
from penstock.objects import ObjectExists, ObjectInfo, ObjectStore

# Format of `marks/<id>`: an object that records the highest object id leased so far.
#
# Text, in the manner of Kafka's `meta.properties`:
#
#     version=1\n
#     cluster.id=<the cluster's id>\n
#     object.id=<the id>\n
#     crc32c=<of all lines before, eight hexadecimal digits>\n
#
# The key has the id in 20 digits, so the last key of a listing has the highest id.


PREFIX: Final = "marks/"
MARK_BYTES_MAX: Final = 4096

_KEY: Final = re.compile(r"marks/([0-9]{20})", re.ASCII)
_TEXT: Final = re.compile(
    rb"version=1\ncluster\.id=([^\n]{1,1024})\nobject\.id=([0-9]{1,19})\ncrc32c=([0-9a-f]{8})\n"
)
_CRC_LINE_BYTES: Final = len("crc32c=00000000\n")


class Mark(NamedTuple):
    """The highest object id that a cluster had leased when the marker was written."""

    cluster_id: str
    object_id: int


def mark_key(object_id: int) -> str:
    return f"{PREFIX}{object_id:020d}"


def marked_id(key: str) -> int | None:
    found = _KEY.fullmatch(key)
    return None if found is None else int(found[1])


def encode_mark(mark: Mark) -> bytes:
    text = f"version=1\ncluster.id={mark.cluster_id}\nobject.id={mark.object_id}\n".encode()
    return text + f"crc32c={crc32c(text):08x}\n".encode()


def decode_mark(data: bytes) -> Mark:
    """Decode a marker.

    Raises:
        CorruptObject: the data is truncated, has another version or checksum, or is not a marker.
    """
    found = _TEXT.fullmatch(data)
    if found is None:
        raise CorruptObject(f"{len(data)} bytes that begin with {data[:40]!r} are not a marker")
    actual = crc32c(data[:-_CRC_LINE_BYTES])
    if actual != int(found[3], 16):
        raise CorruptObject(f"the marker has checksum {actual:08x}, not {found[3].decode()}")
    try:
        return Mark(found[1].decode(), int(found[2]))
    except UnicodeDecodeError as error:
        raise CorruptObject(f"the cluster id in a marker is not UTF-8: {error}") from None


class CollectionCounters(Metrics, prefix="penstock_diskless_"):
    swept_objects = counter("swept_objects_total", "Objects deleted by the sweeper.")
    swept_bytes = counter("swept_bytes_total", "Bytes of objects deleted by the sweeper.")
    failures = counter("collection_failures_total", "Passes of all these jobs that failed.")
    orphans_deleted = counter("orphans_deleted_total", "Deleted orphans.")
    orphans = gauge("orphans", "Objects without a row, by the last comparison.")
    orphan_bytes = gauge("orphan_bytes", "Bytes of objects without a row.")
    dropped_extents = counter("retention_dropped_extents_total", "Extents that retention dropped.")
    dropped_bytes = counter("retention_dropped_bytes_total", "Bytes that retention dropped.")
    retention_failures = counter(
        "retention_failures_total", "Partitions whose retention failed in a pass."
    )
    partitions_forgotten = counter("forgotten_partitions_total", "Deleted rows of deleted topics.")
    producers_forgotten = counter("forgotten_producers_total", "Deleted idle producers.")
    marked_object_id = gauge(
        "marked_object_id", "Highest object id that this broker recorded in the store."
    )


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
