"""Whether the object store is the one that the control plane's objects lie in.

An empty store gets an object with a random id (`formats/store_properties.py`), and the control
plane keeps the id of the first store that it adopts, by compare-and-set. A broker that was given
another place would otherwise acknowledge what no other broker can read.

| the plane keeps | the store has             | then                                               |
|-----------------|---------------------------|----------------------------------------------------|
| an id           | the same                  | it is the plane's                                  |
| an id           | another one, or none      | refused: another place, or emptied                 |
| none            | one of another cluster    | refused: it has the objects of another plane       |
| none            | one of this cluster       | adopted: whoever wrote it was stopped before       |
| none            | none                      | written and adopted, if the plane knows of no      |
|                 |                           | committed objects or the store has some of them    |

The order, store first, lets brokers that start at once agree: of those at one store one writes
the object, and all adopt its id; of those at several stores one wins in the plane.

`StoreGuard` looks at a start and before anything is deleted. `GuardedStore` looks again before
the next write after a request has failed in a way in which a store does that is replaced behind
its address. While nothing fails, that costs no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.archive.errors import CorruptObject
from penstock.control.batch_index.values import StoreIdentity
from penstock.diskless.errors import StoreMismatch, StoreOfAnotherCluster
from penstock.diskless.formats.store_properties import (
    KEY,
    STORE_PROPERTIES_BYTES_MAX,
    StoreProperties,
    decode_store_properties,
    encode_store_properties,
)
from penstock.diskless.limits import ADOPTION_SAMPLE_OBJECTS, LISTED_ROWS_MAX
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
    from penstock.control.batch_index.plane import DisklessPlane
    from penstock.objects import Buffer, ObjectStore

logger = logging.getLogger(__name__)

_GUIDE = "docs/guides/diskless.md says what to do where a store was moved or is lost"


def judge_store(
    kept: StoreIdentity | None, found: StoreProperties | None, *, cluster_id: str, store: str
) -> None:
    """Refuse a store that is not the plane's, as the table says; `store` is its name in errors.

    Raises:
        StoreMismatch: the plane keeps an id, and the store has another one or none.
        StoreOfAnotherCluster: the plane keeps none, and the store is another cluster's.
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
    """The identity of one store for one control plane; all of it may be repeated, by any broker."""

    def __init__(
        self,
        *,
        plane: DisklessPlane,
        store: ObjectStore,
        cluster_id: str,
        randomness: Randomness,
        place: str = "",
    ) -> None:
        """`place` is where the store is, as `penstock.objects.place_of` says it."""
        self.cluster_id = cluster_id
        self.mismatch: StoreMismatch | None = None
        """What the last look found wrong."""
        self._doubts = self._settled = 0
        self._plane = plane
        self._store = store
        self._randomness = randomness
        self._place = place
        self._kept: StoreIdentity | None = None

    @property
    def name(self) -> str:
        """What errors call the store."""
        return f"the object store {self._place}".rstrip()

    @property
    def doubted(self) -> bool:
        """Whether to look again before the next write."""
        return self._doubts != self._settled

    async def check(self) -> StoreProperties | None:
        """Compare store and plane: one GET, and until a store is adopted a look at the plane.

        What the store has; nothing is written.

        Raises:
            StoreMismatch: the store is not the plane's.
            PenstockError: store or plane cannot be asked.
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
        self.mismatch, self._settled = None, doubts
        return found

    async def adopt(self, found: StoreProperties | None) -> None:
        """Make the store the plane's, if the plane has none; `found` is what `check` has found.

        Raises:
            StoreMismatch: the plane names objects, and the store has none of them; or another
                broker was quicker, with another store.
        """
        if self._kept is not None:
            return
        if found is None:
            await self._check_index()
            mine = StoreProperties(self.cluster_id, self._randomness.uuid())
            with suppress(ObjectExists):  # another broker was quicker
                await self._store.put(KEY, [encode_store_properties(mine)])
            found = await self.check() or mine
        self._kept = await self._plane.adopt_store(StoreIdentity(found.store_id, self._place))
        self._judge(found)

    def doubt(self) -> None:
        """A request has failed, and after it another store may be there."""
        self._doubts += 1

    def _judge(self, found: StoreProperties | None) -> None:
        judge_store(self._kept, found, cluster_id=self.cluster_id, store=self.name)

    async def _properties(self) -> StoreProperties | None:
        """What the store says of itself; None where it says nothing."""
        try:
            data = await self._store.get(KEY, 0, STORE_PROPERTIES_BYTES_MAX)
        except ObjectNotFound:
            return None
        except ObjectTruncated as error:  # as ever: one request, whatever the size
            data = error.content or memoryview(b"")
        try:
            return decode_store_properties(bytes(data))
        except CorruptObject as error:
            unread = f"{self.name} cannot be told from others: {error}; {_GUIDE}"
            raise StoreMismatch(unread) from None

    async def _check_index(self) -> None:
        """Refuse a store without an identity that has nothing of what the plane has committed.

        The installation is from before stores had one, or the database was set back.
        """
        keys = await self._committed_keys()
        there = await asyncio.gather(*map(self._has, keys))
        missing = [key for key, found in zip(keys, there, strict=True) if not found]
        if keys and len(missing) == len(keys):
            raise StoreMismatch(
                f"{self.name} has no identity ({KEY}) and nothing of what cluster"
                f" {self.cluster_id!r} has written, such as {keys[0]}. It was emptied, or"
                f" diskless.storage.url names another place than before; {_GUIDE}"
            )
        if missing:
            logger.warning(
                "%s is adopted, but %d of %d objects looked for are not in it, such as %s: a broker"
                " with another diskless.storage.url may have written them",
                self.name, len(missing), len(keys), missing[0],
            )  # fmt: skip

    async def _committed_keys(self) -> list[str]:
        """Some keys of committed objects, spread over the first page that has any."""
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
    """An object store that is written to only while it is known to be the right one.

    Raises what the store does, and `StoreMismatch` from writes. A write that succeeds while
    another request fails counts only after a look.
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
