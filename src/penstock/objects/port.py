"""Port of an object store: immutable objects under keys, written whole, read in ranges.

Keys are relative, `/`-separated, of `[A-Za-z0-9._=-]`. A key is used for one write only, because a
request that timed out may still take effect. One contract suite (`tests/objects/`) tests all
implementations: memory, a directory, S3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

LIST_PAGE_OBJECTS: Final = 1000
"""Objects per step of a listing (S3's own page)."""

Buffer = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """Stored object. `modified_ms` is the store's own time."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectReader(Protocol):
    """Read access to objects by key.

    Every method may raise `StoreUnavailable` (a timeout, a lost connection, a 5xx: the outcome of a
    write is unknown), its subclass `StoreThrottled` (the store demands fewer requests) and
    `StoreRefused` (credentials, bucket, configuration: a retry cannot succeed).
    """

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        """Read exactly [start, start + size_bytes); the caller owns the bytes.

        Raises:
            ObjectNotFound: no object has this key.
            ObjectTruncated: the object ends before the range does.
        """
        ...

    async def close(self) -> None:
        """End requests and connections. Idempotent."""
        ...


class ObjectStore(ObjectReader, Protocol):
    """Read and write access to objects by key; errors as of `ObjectReader`."""

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Write a new object of these pieces; durable and whole when this returns.

        The store has verified length and checksum. The pieces must not change during the call.

        Raises:
            ObjectExists: an object has this key.
        """
        ...

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """Write a new object from streamed pieces; return its size.

        The object is durable, whole and of this size when this returns; after an error, also one of
        `pieces`, it is missing or must not be read. A few pieces are held in memory at a time.

        Raises:
            ObjectExists: an object has this key, if the store detects it.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return an object's size and time; raises ObjectNotFound."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose key begins with `prefix` and is above `after`, sorted by key."""
        ...
