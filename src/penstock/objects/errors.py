"""What can go wrong with objects, each with Kafka's name for it on the wire.

Three answers matter to a caller of a store: try again (`StoreUnavailable`: the outcome of a write
is unknown, so a write is tried again under another key), do not try again (`StoreRefused`), and
what is said of one object (`ObjectNotFound`, `ObjectExists`, `ObjectTruncated`).
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
"""Of HTTP: too many requests."""


class StoreUnavailable(RetriableError):
    """The store did not answer, or not with a result; a write may have taken effect or not."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreThrottled(StoreUnavailable):
    """The store asks for fewer requests."""


class StoreFull(StoreUnavailable):
    """The store has no room; nothing of the object is visible."""


class StoreRefused(UnavailableError):
    """The store will not do it as it is set up: credentials, bucket, permissions."""

    code: ClassVar[str] = "kafka_storage_error"


class StoreFailed(StoreRefused):
    """A sync failed: what the disk holds is unknown, and the store takes no more objects."""


class StoreClosed(FencedError):
    """The store, or the fetch paths over it, have been closed."""

    code: ClassVar[str] = "kafka_storage_error"


class InvalidKey(InvalidError):
    """A key that no object can have."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object key {key[:80]!r}: {reason}")
        self.key = key
        self.reason = reason


class InvalidRange(InvalidError):
    """A range that no object can have."""

    def __init__(self, key: str, start: int, size_bytes: int) -> None:
        super().__init__(
            f"object {key}: {size_bytes} bytes from byte {start} are no range; "
            "a range has at least one byte and starts at byte 0 or above"
        )
        self.key = key


class ObjectNotFound(InvalidError):
    """There is no object of this key; keys are written once, so there will be none."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class ObjectExists(InvalidError):
    """There is an object of this key, and objects are never replaced."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is an object {key}, and objects are written once")
        self.key = key


class ObjectTruncated(CorruptError):
    """An object ends before a range that it should hold.

    `content` is what it has of the range, where some of it came with the store's answer.
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
            f"and [{start}, {start + size_bytes}) was asked of it"
        )
        self.key = key
        self.start = start
        self.size_bytes = size_bytes
        self.object_size_bytes = object_size_bytes
        self.content = content


class LaggingConsumerRejected(RetriableError):
    """The queue of the cold path is full, or the paths are closing; the consumer backs off."""

    code: ClassVar[str] = "kafka_storage_error"
