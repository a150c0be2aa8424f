"""The object-store port: immutable objects under keys, written whole, read in ranges.

Keys are relative, `/`-separated, of `[A-Za-z0-9._=-]`, and are written once: a key that has been
tried is never written again, because a request that timed out may yet take effect. One contract
suite (`tests/objects/`) holds all forms: memory, a directory, S3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """An object that is there. `modified_ms` is the store's own time."""

    key: str
    size_bytes: int
    modified_ms: int


class ObjectReader(Protocol):
    """Bytes under keys, to be read.

    Every method may raise `StoreUnavailable` (a timeout, a lost connection, a 5xx: the outcome of
    a write is unknown), `StoreThrottled` (of that kind: the store asks for fewer requests) and
    `StoreRefused` (credentials, bucket, configuration: it will not succeed as it is).
    """

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        """Read exactly [start, start + size_bytes); the bytes are the caller's.

        Raises:
            ObjectNotFound: there is no such object.
            ObjectTruncated: it ends before the range does.
        """
        ...

    async def close(self) -> None:
        """End requests and connections. Idempotent."""
        ...


class ObjectStore(ObjectReader, Protocol):
    """Bytes under keys; errors as an `ObjectReader` has them."""

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        """Write a new object of these pieces, durable and whole when this returns.

        The store has verified length and checksum. The pieces must not change meanwhile.

        Raises:
            ObjectExists: there is an object of this key.
        """
        ...

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """Write a new object of pieces that are made meanwhile; returns its bytes.

        It is durable, whole and of this length when this returns, and not there, or never read,
        if it raises; so it does with what `pieces` raises. A few pieces are held at a time.

        Raises:
            ObjectExists: there is an object of this key, as far as the store says so.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """What is known of an object; raises ObjectNotFound."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there do not matter."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in the order of keys, those above `after`."""
        ...
