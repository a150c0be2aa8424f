"""Errors of object stores, each with Kafka's error name.

Callers distinguish three kinds: retry (`StoreUnavailable`: the outcome of a write is unknown, so it
is retried under another key), do not retry (`StoreRefused`), and errors of one object
(`ObjectNotFound`, `ObjectExists`, `ObjectTruncated`).
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
"""HTTP status codes of too many requests."""


class StoreUnavailable(RetriableError):
    """The store did not respond, or failed; a write may have taken effect."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreThrottled(StoreUnavailable):
    """The store demands fewer requests."""


class StoreFull(StoreUnavailable):
    """The store is full; nothing of the object is visible."""


class StoreRefused(UnavailableError):
    """The store rejects the request because of its setup: credentials, bucket, permissions."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreFailed(StoreRefused):
    """A sync failed: the disk's content is unknown, and the store accepts no objects."""


class StoreClosed(FencedError):
    """The store, or the fetch paths over it, are closed."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidKey(InvalidError):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object key {key[:80]!r}: {reason}")
        self.key = key
        self.reason = reason


class InvalidRange(InvalidError):
    def __init__(self, key: str, start: int, size_bytes: int) -> None:
        super().__init__(
            f"object {key}: {size_bytes} bytes from byte {start} are not a valid range; "
            "a range has at least one byte and starts at byte 0 or above"
        )
        self.key = key


class ObjectNotFound(InvalidError):
    """No object has this key; keys are written once, so none will."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class ObjectExists(InvalidError):
    """An object with this key exists, and objects are never replaced."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is an object {key}, and objects are written once")
        self.key = key


class ObjectTruncated(CorruptError):
    """An object ends before the end of the requested range.

    `content` holds the existing part of the range, if the store returned it.
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
            f"and [{start}, {start + size_bytes}) was requested"
        )
        self.key = key
        self.start = start
        self.size_bytes = size_bytes
        self.object_size_bytes = object_size_bytes
        self.content = content


class LaggingConsumerRejected(RetriableError):
    """The cold path's queue is full, or the paths are closing; the consumer should back off."""

    code: ClassVar[str] = "kafka_storage_error"
