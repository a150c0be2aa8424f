"""Errors of diskless topics, each with Kafka's error code."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import (
    FencedError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)


class WriteBacklog(RetriableError):
    """Too many appends wait for their objects, so this append was rejected."""

    code: ClassVar[str] = "kafka_storage_error"


class WriteTimedOut(RetriableError):
    """An object was not committed within `diskless.write.timeout.ms`. Its outcome is unknown."""

    code: ClassVar[str] = "request_timed_out"


class WriteFailed(UnavailableError):
    """The object store or the control plane rejected an object permanently."""

    code: ClassVar[str] = "kafka_storage_error"


class EarlierWriteFailed(RetriableError):
    """An earlier append of the producer to the partition failed.

    The producer must retry that one first.
    """

    code: ClassVar[str] = "kafka_storage_error"


class MarkerRefused(RetriableError):
    """The control plane rejected a transaction marker. The transaction coordinator retries it."""

    code: ClassVar[str] = "not_leader_or_follower"


class WriterStopped(FencedError):
    """The writer has stopped. Clients must use another broker."""

    code: ClassVar[str] = "not_leader_or_follower"


class MixedBatches(InvalidError):
    """The batches of one append come from several producers, so they cannot succeed together."""

    code: ClassVar[str] = "invalid_record"


class SubmissionTooLarge(InvalidError):
    """An append has more batches than one object may have."""

    code: ClassVar[str] = "record_list_too_large"


class DatabaseRestored(FencedError):
    """The object store has newer objects than the metadata database, which was restored."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, *, marked_id: int, highest_id: int, key: str) -> None:
        super().__init__(
            f"the control plane has leased object ids up to {highest_id}, but {key} in the object"
            f" store records id {marked_id}: the database is older than the store. Restore the"
            " newest copy of the database; docs/guides/diskless.md describes how to recover"
            " without one"
        )
        self.marked_id = marked_id
        self.highest_id = highest_id
        self.key = key


class StoreMismatch(InvalidError):
    """The object store is not the one that the control plane has stored.

    Other brokers would not find objects that this broker writes.
    """

    code: ClassVar[str] = "inconsistent_cluster_id"


class StoreOfAnotherCluster(StoreMismatch):
    """The object store belongs to another cluster.

    This cluster would treat the objects in it as orphans, and delete them.
    """

    def __init__(self, *, found: str, expected: str, key: str, store: str) -> None:
        super().__init__(
            f"{key} in {store} names cluster {found!r}, but this cluster is {expected!r}:"
            " diskless.storage.url must name a separate location for each cluster. If the control"
            f" plane of {found!r} is lost, restore a copy of it; see docs/guides/diskless.md"
        )
        self.found = found
        self.expected = expected


# Errors of fetches from diskless partitions.
#
# Consumers retry only a few errors of a fetch. The Java client stops permanently at others. All
# other errors therefore become `Unreadable`.


class PartitionGone(RetriableError):
    """The control plane does not have the partition, because its topic was deleted."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class Unreadable(RetriableError):
    """The records at an offset cannot be read for now. The message has the cause."""

    code: ClassVar[str] = "kafka_storage_error"


_CONSUMER_ERRORS: Final = {
    "offset_out_of_range",
    "unknown_topic_or_partition",
    "kafka_storage_error",
}


def for_consumers(error: PenstockError) -> PenstockError:
    """Return an error that consumers retry: the error itself, or `Unreadable` with its text."""
    return error if error.code in _CONSUMER_ERRORS else Unreadable(str(error))
