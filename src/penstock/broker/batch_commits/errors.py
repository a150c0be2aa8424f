"""Errors of the exactly-once sink."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import quote

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)


class InvalidCommit(InvalidError):
    code: ClassVar[str] = "invalid_request"


class ManifestTooLarge(InvalidError):
    """The manifest exceeds its limit: commit smaller batches, or fewer blobs."""

    code: ClassVar[str] = "message_too_large"


class InconsistentTopicId(FencedError):
    """The topic was recreated after the blobs were staged."""

    code: ClassVar[str] = "inconsistent_topic_id"


class SinkOwnerChanged(FencedError):
    """The query's commits belong to another owner: its checkpoint was copied or replaced."""

    code: ClassVar[str] = "producer_fenced"

    def __init__(self, query: str, owner: str, found: str) -> None:
        super().__init__(
            f"commits of application {query!r} belong to owner {found!r}, but this one comes from"
            f" owner {owner!r}: the checkpoint was deleted, replaced or copied. Use another"
            " application name, or, to restart this one with the new checkpoint, delete its state:"
            f" DELETE /v1/sinks/{quote(query, safe='')}"
        )
        self.query = query


class CommitUnderWay(FencedError):
    code: ClassVar[str] = "concurrent_transactions"


class UnknownSink(InvalidError):
    code: ClassVar[str] = "resource_not_found"


class BlobExists(FencedError):
    code: ClassVar[str] = "duplicate_resource"


class BlobTooLarge(InvalidError):
    code: ClassVar[str] = "message_too_large"


class StagingFull(UnavailableError):
    """The staging directory or its disk has no room."""

    code: ClassVar[str] = "kafka_storage_error"


class StagingUnavailable(UnavailableError):
    code: ClassVar[str] = "kafka_storage_error"


class CorruptBlob(CorruptError):
    """A staged blob is missing, truncated, or not made of whole record batches."""

    code: ClassVar[str] = "corrupt_message"


class NotFinished(RetriableError):
    """The commit may be recorded, but is not finished. Repeat the post to wait for it."""

    code: ClassVar[str] = "request_timed_out"


class TargetBehind(RetriableError):
    """The log of a partition ends before the commit's first record."""
