"""Object store in memory, for tests, simulations and trials."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.objects.errors import ObjectExists, ObjectNotFound, ObjectTruncated
from penstock.objects.keys import check_key, check_prefix, check_range
from penstock.objects.port import Buffer, ObjectInfo


class MemoryStore:
    """A dictionary with the interface of a store. All users of an instance share its objects."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        check_key(key)
        if key in self._objects:
            raise ObjectExists(key)
        self._objects[key] = (b"".join(pieces), self._clock.now_ms())

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        content = [bytes(piece) async for piece in pieces]
        await self.put(key, content)
        return sum(map(len, content))

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        check_range(key, start, size_bytes)
        content = self._content(key)[0]
        if start + size_bytes > len(content):
            left = memoryview(content)[start:] or None
            raise ObjectTruncated(key, start, size_bytes, len(content), content=left)
        return memoryview(content)[start : start + size_bytes]

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        content, modified_ms = self._content(key)
        return ObjectInfo(key, len(content), modified_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        keys = sorted(key for key in self._objects if key.startswith(prefix))
        for key in keys[bisect_right(keys, after) :]:
            found = self._objects.get(key)
            if found is not None:
                yield ObjectInfo(key, len(found[0]), found[1])

    async def close(self) -> None:
        """Do nothing. Other users of the store keep its objects."""

    def _content(self, key: str) -> tuple[bytes, int]:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key)
        return found
