"""Errors of the Spark source and of the sinks, as a pipeline's user sees them.

Spark prints the message of a Python error to the user, so each one names the option, topic or
partition, the value found, and what to do about it. `StagingRefused` and `CommitRefused` are
permanent; after `CommitUnfinished` the same batch is safe to repeat.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import (
    CorruptError,
    FencedError,
    InvalidError,
    InvalidSetting,
    RetriableError,
    UnavailableError,
)


class InvalidOption(InvalidSetting):
    """Unknown, malformed or contradictory option of the source or the sink."""

    subject: ClassVar[str] = "option"


class OffsetBeyondEnd(InvalidOption):
    """Offset in an option beyond the end of its partition."""

    def __init__(self, option: str, offset: int, topic: str, reason: str) -> None:
        super().__init__(option, offset, reason)
        self.topic = topic


class NotPenstock(InvalidError):
    """Response from the admin address of something that is not a Penstock broker."""

    code: ClassVar[str] = "unsupported_version"

    def __init__(self, admin_url: str, found: str) -> None:
        super().__init__(
            f"the admin address {admin_url} is not that of a Penstock broker with a sink ({found}):"
            " this sink commits through Penstock's admin address, which Apache Kafka does not"
            " have; set penstock.admin.url, or use Spark's own Kafka sink, which is at least once"
        )


class UnknownTopics(InvalidError):
    """Requested topic or partition that does not exist."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class TopicRecreated(InvalidError):
    """Topic with the same name but another id than in the checkpoint."""

    code: ClassVar[str] = "inconsistent_topic_id"

    def __init__(self, topic: str, expected_id: str, actual_id: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created again: the checkpoint was made from topic id "
            f"{expected_id}, the broker now has {actual_id}. Its offsets mean other records; "
            "start with a new checkpoint"
        )
        self.topic = topic


class OffsetWentBack(CorruptError):
    """Log that now ends before the offset up to which it was read."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic: str, partition: int, read_to: int, log_end: int) -> None:
        super().__init__(
            f"{topic}-{partition} ends at offset {log_end}, but was already read up to {read_to}: "
            "the log lost records or was replaced. Start with a new checkpoint once you know which"
        )
        self.topic = topic
        self.partition = partition


class DataLoss(InvalidError):
    """Deletion of records before they were read."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic: str, partition: int, start: int, log_start: int) -> None:
        super().__init__(
            f"{topic}-{partition}: offsets {start} to {log_start - 1} are to be read, but the log "
            f"starts at {log_start}: they were deleted (retention, or a delete-records call). "
            "Set failOnDataLoss=false to continue from there"
        )
        self.topic = topic
        self.partition = partition
        self.start = start
        self.log_start = log_start


class ExtentsUnavailable(UnavailableError):
    """Failed request for the extents of a partition."""

    code: ClassVar[str] = "broker_not_available"


class NotServed(UnavailableError):
    """Fetch response without records that are in the log."""

    code: ClassVar[str] = "kafka_storage_error"


class TableMismatch(InvalidError):
    """Batch that does not fit the table that it is written to."""

    code: ClassVar[str] = "invalid_config"


class InvalidRows(InvalidError):
    """Rows that cannot become records: found by a task, raised on the driver."""

    code: ClassVar[str] = "invalid_record"


class StagingRefused(InvalidError):
    """Rejection of a blob of staged records by the broker."""


class CommitRefused(InvalidError):
    """Permanent rejection of the commit by the broker."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.broker_code = code


class SinkOwnerChanged(FencedError):
    """Commits of the application by another query: a checkpoint was copied or replaced."""

    code: ClassVar[str] = "producer_fenced"


class CommitUnfinished(RetriableError):
    """Timeout of the commit; the same batch may be written again."""

    code: ClassVar[str] = "request_timed_out"
