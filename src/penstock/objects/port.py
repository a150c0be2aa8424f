"""Interface of an object store: immutable objects under keys, written whole, read in ranges.

The errors of stores, and the rules for keys, are here too.

Keys are relative paths of parts of `[A-Za-z0-9._=-]`, separated by `/`. Each key is used for one
write only, because a write that timed out may still take effect. One contract suite
(`tests/objects/`) tests all implementations: memory, a directory, S3.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)

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


# Errors of object stores, each with Kafka's error name.
#
# There are three kinds. `StoreUnavailable` may be retried; the outcome of a failed write is
# unknown, so it is retried under another key. `StoreRefused` must not be retried. `ObjectNotFound`,
# `ObjectExists` and `ObjectTruncated` concern one object.


THROTTLED_STATUS: Final = frozenset({429, 503})
"""HTTP status codes by which stores reject too many requests."""


class StoreUnavailable(RetriableError):
    """The store did not respond, or failed. A write may have taken effect."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreThrottled(StoreUnavailable):
    """The store, or a queue in front of it, demands fewer requests."""


class StoreFull(StoreUnavailable):
    """The store is full. The object was not written."""


class StoreRefused(UnavailableError):
    """The store rejects the request permanently, because of credentials, bucket or permissions."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreFailed(StoreRefused):
    """A sync failed. The content of the disk is unknown, so the store accepts no objects."""


class StoreClosed(FencedError):
    """The store, or the fetch paths over it, have been closed."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidKey(InvalidError):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object key {key[:80]!r}: {reason}")
        self.key = key
        self.reason = reason


class InvalidRange(InvalidError):
    def __init__(self, key: str, start: int, size_bytes: int) -> None:
        super().__init__(
            f"object {key}: {size_bytes} bytes from byte {start} are not a valid range. "
            "A range has at least one byte and starts at byte 0 or above."
        )
        self.key = key


class ObjectNotFound(InvalidError):
    """No object has this key. Each key is written once, so a deleted object never returns."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class ObjectExists(InvalidError):
    """An object with this key exists, and objects are never replaced."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key} exists already, and objects are never replaced")
        self.key = key


class ObjectTruncated(CorruptError):
    """The object ends before the end of the requested range.

    `content` has the existing part of the range, if the store returned it.
    """

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(
        self,
        key: str,
        start: int,
        size_bytes: int,
        object_size_bytes: int,
        *,
        content: memoryview | None = None,
    ) -> None:
        super().__init__(
            f"object {key} has {object_size_bytes} bytes, "
            f"but bytes [{start}, {start + size_bytes}) were requested"
        )
        self.key = key
        self.start = start
        self.size_bytes = size_bytes
        self.object_size_bytes = object_size_bytes
        self.content = content


class LaggingConsumerRejected(RetriableError):
    """The cold path's queue is full, or the fetch paths are closing.

    The consumer should back off.
    """

    code: ClassVar[str] = "kafka_storage_error"


# Rules for object keys, the same for all stores.
#
# A key is a relative path of parts, separated by `/`. Every part begins with a letter, a digit,
# `_`, `=` or `-`, and continues with these or dots. No part is therefore empty, `.` or `..`, or
# begins with a dot, like the directory `.partial` of a directory store.


KEY_BYTES_MAX: Final = 512
"""Characters of a key. S3 allows 1,024 bytes, including the prefix in the store's URL."""
KEY_NAME_BYTES_MAX: Final = 255
"""Characters of a part of a key, which is a file name in a directory store (NAME_MAX)."""

_PART: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_PREFIX: Final = re.compile(rf"(?:{_PART}/)*(?:{_PART})?", re.ASCII)


def check_key(key: str) -> None:
    """Reject an invalid key. Raises InvalidKey."""
    if len(key) > KEY_BYTES_MAX:
        limit = KEY_BYTES_MAX
        raise InvalidKey(key, f"has {len(key)} characters, the limit is {limit}")
    if _KEY.fullmatch(key) is None:
        raise InvalidKey(key, "must be parts of A-Z a-z 0-9 . _ = - between /, not led by a dot")
    if max(map(len, key.split("/"))) > KEY_NAME_BYTES_MAX:
        limit = KEY_NAME_BYTES_MAX
        raise InvalidKey(key, f"has a part of more than {limit} characters")


def check_prefix(prefix: str) -> None:
    """Reject a prefix with which no key can begin. Raises InvalidKey. It may be empty."""
    if len(prefix) > KEY_BYTES_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidKey(prefix, "cannot be the beginning of a key")


def check_range(key: str, start: int, size_bytes: int) -> None:
    """Reject an invalid key or byte range. Raises InvalidKey or InvalidRange."""
    check_key(key)
    if start < 0 or size_bytes < 1:
        raise InvalidRange(key, start, size_bytes)
