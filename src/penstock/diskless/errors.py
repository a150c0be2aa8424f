"""What can go wrong with diskless topics, each with Kafka's name for it on the wire."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import (
    FencedError,
    InvalidError,
    RetriableError,
    UnavailableError,
)


class WriteBacklog(RetriableError):
    """More is submitted and not answered than a limit allows; nothing was taken in."""

    code: ClassVar[str] = "kafka_storage_error"


class WriteTimedOut(RetriableError):
    """An object was not written and committed within `diskless.write.timeout.ms`.

    Whether it was is unknown: an idempotent producer that sends the same again is told.
    """

    code: ClassVar[str] = "request_timed_out"


class WriteFailed(UnavailableError):
    """The object store or the control plane refused an object, and would refuse it again."""

    code: ClassVar[str] = "kafka_storage_error"


class EarlierWriteFailed(RetriableError):
    """What a producer sent to a partition before this was not written; it goes first."""

    code: ClassVar[str] = "kafka_storage_error"


class MarkerRefused(RetriableError):
    """The control plane did not place the end of a transaction; its coordinator tries again."""

    code: ClassVar[str] = "not_leader_or_follower"


class WriterStopped(FencedError):
    """The writer has been stopped; another broker serves the partition."""

    code: ClassVar[str] = "not_leader_or_follower"


class MixedBatches(InvalidError):
    """Batches that are to succeed or fail together come from several producers."""

    code: ClassVar[str] = "invalid_record"


class SubmissionTooLarge(InvalidError):
    """More batches in one submission than an object may have."""

    code: ClassVar[str] = "record_list_too_large"


class DatabaseRestored(FencedError):
    """The object store knows of newer objects than the control plane: it was set back."""

    code: ClassVar[str] = "kafka_storage_error"

    def __init__(self, *, marked_id: int, highest_id: int, key: str) -> None:
        super().__init__(
            f"the control plane has given out object ids up to {highest_id}, but {key} in the"
            f" object store says that {marked_id} was given out: the database is older than the"
            " store. Restore the newest copy of the database; docs/guides/diskless.md says what"
            " to do without one"
        )
        self.marked_id = marked_id
        self.highest_id = highest_id
        self.key = key


class StoreMismatch(InvalidError):
    """The object store is not the control plane's: what is written there, nobody finds."""

    code: ClassVar[str] = "inconsistent_cluster_id"


class StoreOfAnotherCluster(StoreMismatch):
    """The object store belongs to another cluster, whose objects would be taken for orphans."""

    def __init__(self, *, found: str, expected: str, key: str, store: str) -> None:
        super().__init__(
            f"{key} in {store} names cluster {found!r}, this one is {expected!r}:"
            " diskless.storage.url must name a place of its own for every cluster. If the control"
            f" plane of {found!r} is lost, restore a copy of it; docs/guides/diskless.md says more"
        )
        self.found = found
        self.expected = expected
