"""Interface of an object store: immutable objects under keys, written whole, read in ranges.

Keys are relative paths of parts of `[A-Za-z0-9._=-]`, separated by `/`. Each key is used for one
write only, because a write that timed out may still take effect. One contract suite
(`tests/objects/`) tests all implementations: memory, a directory, S3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

LIST_PAGE_OBJECTS: Final = 1000
"""Objects per page of a listing, which is S3's own page size."""

Buffer = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """A stored object. `modified_ms` is the time of its write, by the store's clock."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectReader(Protocol):
    """Read access to objects by key.

    Every method may raise `StoreUnavailable`, after a timeout, a lost connection or a 5xx response;
    the outcome of a write is then unknown. `StoreThrottled`, a subclass, means that the store
    demands fewer requests. `StoreRefused` means that a retry cannot succeed (credentials, bucket,
    configuration).
    """

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        """Return exactly the bytes [start, start + size_bytes). The caller owns them.

        Raises:
            ObjectNotFound: no object has this key.
            ObjectTruncated: the object ends before the range does.
        """
        ...

    async def close(self) -> None:
        """Stop requests and close connections. Idempotent."""
        ...


class ObjectStore(ObjectReader, Protocol):
    """Read and write access to objects by key. Raises errors as `ObjectReader` does."""

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Write a new object of these pieces. It is durable and complete when this returns.

        The store has verified its length and checksum. The pieces must not change during the call.

        Raises:
            ObjectExists: an object has this key.
        """
        ...

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """Write a new object from streamed pieces; return its size in bytes.

        The object is durable and complete when this returns. After an error, also one raised by
        `pieces`, it is missing or must not be read. Only a few pieces are in memory at a time.

        Raises:
            ObjectExists: an object has this key, if the store detects it.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return the size and time of an object. Raises ObjectNotFound."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Missing ones are ignored."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix` and are above `after`, sorted by key."""
        ...
