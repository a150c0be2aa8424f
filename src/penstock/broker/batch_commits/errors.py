"""What the exactly-once sink refuses, and why."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)


class InvalidCommit(InvalidError):
    """A commit that cannot be carried out: its manifest, or what is staged for it, is wrong."""

    code: ClassVar[str] = "invalid_request"


class ManifestTooLarge(InvalidError):
    """A manifest beyond its limit: commit in smaller batches, or with fewer blobs."""

    code: ClassVar[str] = "message_too_large"


class InconsistentTopicId(FencedError):
    """The topic was deleted and made anew after the blobs were staged."""

    code: ClassVar[str] = "inconsistent_topic_id"


class SinkOwnerChanged(FencedError):
    """The query's commits belong to another owner: a copied or replaced checkpoint."""

    code: ClassVar[str] = "producer_fenced"

    def __init__(self, query: str, owner: str, found: str) -> None:
        super().__init__(
            f"query {query!r} belongs to {found!r}, the commit comes from {owner!r}: its checkpoint"
            " was replaced or copied. Name the query differently, or have it forgotten by DELETE"
            " /v1/sinks/{query} if it starts anew on purpose"
        )
        self.query = query


class CommitUnderWay(FencedError):
    """The query has a commit that is not finished."""

    code: ClassVar[str] = "concurrent_transactions"


class UnknownSink(InvalidError):
    """No commit of this query is known."""

    code: ClassVar[str] = "resource_not_found"


class BlobExists(FencedError):
    """A blob of this name is staged already."""

    code: ClassVar[str] = "duplicate_resource"


class BlobTooLarge(InvalidError):
    """An upload is larger than a blob may be."""

    code: ClassVar[str] = "message_too_large"


class StagingFull(UnavailableError):
    """There is no room for more staged blobs."""

    code: ClassVar[str] = "kafka_storage_error"


class StagingUnavailable(UnavailableError):
    """Blobs cannot be staged here."""

    code: ClassVar[str] = "kafka_storage_error"


class CorruptBlob(CorruptError):
    """A staged blob is missing, cut, or no whole record batches."""

    code: ClassVar[str] = "corrupt_message"


class NotFinished(RetriableError):
    """The commit is recorded but not finished; it is driven on, and the same post waits for it."""

    code: ClassVar[str] = "request_timed_out"


class TargetBehind(RetriableError):
    """A partition's log ends before the commit that was said to be in it; a core's signal."""
