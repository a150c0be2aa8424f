"""Errors of object stores, each with Kafka's error name.

There are three kinds. `StoreUnavailable` may be retried; the outcome of a failed write is unknown,
so it is retried under another key. `StoreRefused` must not be retried. `ObjectNotFound`,
`ObjectExists` and `ObjectTruncated` concern one object.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)

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
