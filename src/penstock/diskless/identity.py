"""Verification that the object store is the one that belongs to the control plane.

A broker with a wrong URL would acknowledge records that no other broker can read. Therefore an
empty store gets an object with a random id. The control plane stores the id of the first store that
it adopts. A broker compares both ids:

| id in the control plane | id in the store       | result                                         |
|-------------------------|-----------------------|------------------------------------------------|
| present                 | the same              | accepted                                       |
| present                 | another one, or none  | rejected: other location, or emptied store     |
| none                    | of another cluster    | rejected: the store has others' objects        |
| none                    | of this cluster       | adopted: a broker stopped before adopting it   |
| none                    | none                  | an id is written and adopted, unless the store |
|                         |                       | lacks all sampled committed objects            |

The store is written before the control plane, so brokers that start at the same time agree. If they
use one store, one of them writes the id, and all adopt it. If they use several stores, one is
adopted.

`StoreGuard` checks the store at a start and before any deletion. `GuardedStore` checks it again
before the next write, after a request has failed in a way that suggests another store.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from penstock.archive.errors import CorruptObject
from penstock.control.values.diskless import StoreIdentity
from penstock.diskless.errors import StoreMismatch, StoreOfAnotherCluster
from penstock.objects import (
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectTruncated,
    StoreFull,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.control.operations.diskless import DisklessPlane
    from penstock.objects import Buffer, ObjectStore


# Format of `store.properties`: the identity of an object store, written once into an empty store.
#
# Text, in the manner of Kafka's `meta.properties`:
#
#     version=1\n
#     cluster.id=<the id of the cluster that owns the objects>\n
#     store.id=<a random UUID>\n
#
# It has no checksum, so that an administrator can write it by hand. Any other text is rejected.


KEY: Final = "store.properties"
STORE_PROPERTIES_BYTES_MAX: Final = 4096

_TEXT: Final = re.compile(
    r"version=1\ncluster\.id=([^\n]{1,1024})\nstore\.id=([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\n?"
)


class StoreProperties(NamedTuple):
    cluster_id: str
    store_id: UUID


def encode_store_properties(properties: StoreProperties) -> bytes:
    cluster_id, store_id = properties
    return f"version=1\ncluster.id={cluster_id}\nstore.id={store_id}\n".encode()


def decode_store_properties(data: bytes) -> StoreProperties:
    found = _TEXT.fullmatch(data.decode(errors="replace"))
    if found is None:
        raise CorruptObject(
            f"{KEY}: {len(data)} bytes that begin with {data[:40]!r} are not a store's identity"
        )
    return StoreProperties(found[1], UUID(found[2]))


LISTED_ROWS_MAX: Final = 1_000
"""Rows of the control plane that are compared with one page of a listing."""
ADOPTION_SAMPLE_OBJECTS: Final = 16
"""Committed objects that are looked up in a store without an id before its adoption."""

logger = logging.getLogger(__name__)

_GUIDE = "docs/guides/diskless.md describes how to recover from a moved or lost store"


def judge_store(
    kept: StoreIdentity | None, found: StoreProperties | None, *, cluster_id: str, store: str
) -> None:
    """Reject a store that does not belong to the control plane. `store` is its name in messages.

    Raises:
        StoreMismatch: the control plane has an id, and the store has another one or none.
        StoreOfAnotherCluster: the control plane has no id, and the store is another cluster's.
    """
    if kept is None:
        if found is not None and found.cluster_id != cluster_id:
            key = f"{KEY} (store.id={found.store_id})"
            raise StoreOfAnotherCluster(
                found=found.cluster_id, expected=cluster_id, key=key, store=store
            )
    elif found is None or found.store_id != kept.store_id:
        seen = "has no identity" if found is None else f"has the identity {found.store_id}"
        cause = "" if found is not None else " It was emptied, or this is another place."
        raise StoreMismatch(
            f"{store} {seen} ({KEY}), but cluster {cluster_id!r} keeps its objects in the store"
            f" {kept.store_id}, first opened as {kept.place or 'a store without a URL'}.{cause}"
            f" Every broker needs the diskless.storage.url of that store; {_GUIDE}"
        )


class StoreGuard:
    """Comparison of one store with the control plane. Any broker may repeat all methods."""

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        cluster_id: str,
        randomness: Randomness,
        place: str = "",
    ) -> None:
        """`place` is the store's location for messages, from `penstock.objects.place_of`."""
        self.cluster_id = cluster_id
        self.mismatch: StoreMismatch | None = None
        """Mismatch that the last check found, or None."""
        self._doubts = self._checked = 0
        self._plane = plane
        self._store = store
        self._randomness = randomness
        self._place = place
        self._kept: StoreIdentity | None = None

    @property
    def name(self) -> str:
        return f"the object store {self._place}".rstrip()

    @property
    def doubted(self) -> bool:
        """Whether the store must be checked again before the next write."""
        return self._doubts != self._checked

    async def check(self) -> StoreProperties | None:
        """Compare the store with the control plane, with one GET; return the store's identity.

        Returns None if neither has an identity.

        Raises:
            StoreMismatch: the store is not the control plane's.
            PenstockError: the store or the control plane cannot be read.
        """
        if self._kept is None:
            self._kept = await self._plane.store_identity()
        doubts = self._doubts
        try:
            found = await self._properties()
            self._judge(found)
        except StoreMismatch as error:
            self.mismatch = error
            self.doubt()
            raise
        self.mismatch, self._checked = None, doubts
        return found

    async def adopt(self, found: StoreProperties | None) -> None:
        """Adopt the store if the control plane has none. `found` is the result of `check`.

        Raises:
            StoreMismatch: the store has none of the control plane's objects, or another broker has
                adopted another store.
        """
        if self._kept is not None:
            return
        if found is None:
            await self._check_index()
            mine = StoreProperties(self.cluster_id, self._randomness.uuid())
            with suppress(ObjectExists):  # another broker wrote it
                await self._store.put(KEY, [encode_store_properties(mine)])
            found = await self.check() or mine
        self._kept = await self._plane.adopt_store(StoreIdentity(found.store_id, self._place))
        self._judge(found)

    def doubt(self) -> None:
        """Record a failed request, which may mean that the store was replaced."""
        self._doubts += 1

    def _judge(self, found: StoreProperties | None) -> None:
        judge_store(self._kept, found, cluster_id=self.cluster_id, store=self.name)

    async def _properties(self) -> StoreProperties | None:
        try:
            data = await self._store.get(KEY, 0, STORE_PROPERTIES_BYTES_MAX)
        except ObjectNotFound:
            return None
        except ObjectTruncated as error:
            data = error.content or memoryview(b"")
        try:
            return decode_store_properties(bytes(data))
        except CorruptObject as error:
            unread = f"{self.name} cannot be identified: {error}; {_GUIDE}"
            raise StoreMismatch(unread) from None

    async def _check_index(self) -> None:
        """Reject a store without an identity that lacks all sampled committed objects."""
        keys = await self._committed_keys()
        there = await asyncio.gather(*map(self._has, keys))
        missing = [key for key, found in zip(keys, there, strict=True) if not found]
        if keys and len(missing) == len(keys):
            raise StoreMismatch(
                f"{self.name} has no identity ({KEY}) and none of the objects that cluster"
                f" {self.cluster_id!r} has written, such as {keys[0]}. It was emptied, or"
                f" diskless.storage.url names another location than before; {_GUIDE}"
            )
        if missing:
            logger.warning(
                "%s was adopted, but lacks %d of %d sampled objects, such as %s. A broker"
                " with another diskless.storage.url may have written them.",
                self.name, len(missing), len(keys), missing[0],
            )  # fmt: skip

    async def _committed_keys(self) -> list[str]:
        """Return a sample of keys of committed objects, from the first page of rows with any."""
        after, rows = "", await self._plane.referenced_keys(after="", limit=LISTED_ROWS_MAX)
        while rows:
            keys = [lease.key for state, lease in rows if state == "committed"]
            if keys:
                return keys[:: -(-len(keys) // ADOPTION_SAMPLE_OBJECTS)]
            after = rows[-1][1].key
            rows = await self._plane.referenced_keys(after=after, limit=LISTED_ROWS_MAX)
        return []

    async def _has(self, key: str) -> bool:
        try:
            await self._store.head(key)
        except ObjectNotFound:
            return False
        return True


class GuardedStore:
    """An object store that rejects writes with `StoreMismatch` if it is not the control plane's.

    After a failed request, the store is checked before the next write. If a request fails during a
    write, the store is also checked before that write counts as successful.
    """

    def __init__(self, inner: ObjectStore, guard: StoreGuard) -> None:
        self._inner = inner
        self._guard = guard

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self._guard.doubted:
            await self._guard.check()
        try:
            with self._watched():
                await self._inner.put(key, pieces)
        except asyncio.CancelledError:  # it took too long for the caller
            self._guard.doubt()
            raise
        if self._guard.doubted:
            await self._guard.check()

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        if self._guard.doubted:
            await self._guard.check()
        with self._watched():
            size_bytes = await self._inner.upload(key, pieces)
        if self._guard.doubted:
            await self._guard.check()
        return size_bytes

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        with self._watched():
            return await self._inner.get(key, start, size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        with self._watched():
            return await self._inner.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        if self._guard.doubted:
            await self._guard.check()
        with self._watched():
            await self._inner.delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        with self._watched():
            async for info in self._inner.list(prefix, after=after):
                yield info

    async def close(self) -> None:
        await self._inner.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (StoreUnavailable, StoreRefused) as error:
            if not isinstance(error, (StoreThrottled, StoreFull)):  # busy, but there
                self._guard.doubt()
            raise
