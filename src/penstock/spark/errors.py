"""Errors of the Spark source and of the sinks, as users of a pipeline see them.

Spark prints the message of a Python error to the user. Each message therefore names the option,
topic or partition, the value found, and the remedy. After `CommitUnfinished` the same batch may be
written again; `StagingRefused` and `CommitRefused` are permanent.
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
    """Option of the source or a sink that is unknown, malformed or contradicts another option."""

    subject: ClassVar[str] = "option"


class OffsetBeyondEnd(InvalidOption):
    """Option with an offset beyond the end of its partition."""

    def __init__(self, option: str, offset: int, topic: str, reason: str) -> None:
        super().__init__(option, offset, reason)
        self.topic = topic


class NotPenstock(InvalidError):
    """Response from the admin address that is not from a Penstock broker."""

    code: ClassVar[str] = "unsupported_version"

    def __init__(self, admin_url: str, found: str) -> None:
        super().__init__(
            f"the admin address {admin_url} does not belong to a Penstock broker with this sink"
            f" ({found}). The sink commits through the admin address: set penstock.admin.url. For"
            " Apache Kafka use Spark's own Kafka sink, which delivers at least once"
        )


class UnknownTopics(InvalidError):
    """Requested topic or partition that does not exist."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class TopicRecreated(InvalidError):
    """Topic that was deleted and created again: its id differs from the one in the checkpoint."""

    code: ClassVar[str] = "inconsistent_topic_id"

    def __init__(self, topic: str, expected_id: str, actual_id: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created again: the checkpoint has topic id "
            f"{expected_id}, but the broker now has {actual_id}. The checkpoint's offsets do not "
            "apply to the new topic. Start with a new checkpoint"
        )
        self.topic = topic


class OffsetWentBack(CorruptError):
    """Partition that now ends before the offset up to which it was already read."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic: str, partition: int, read_to: int, log_end: int) -> None:
        super().__init__(
            f"{topic}-{partition} ends at offset {log_end}, but was already read up to {read_to}. "
            "The log lost records or was replaced. Find the cause, then start with a new checkpoint"
        )
        self.topic = topic
        self.partition = partition


class DataLoss(InvalidError):
    """Deletion of records from the log before they were read."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, topic: str, partition: int, start: int, log_start: int) -> None:
        super().__init__(
            f"{topic}-{partition}: offsets {start} to {log_start - 1} were deleted (by retention "
            f"or a DeleteRecords request) before they were read; the log starts at {log_start}. "
            f"Set failOnDataLoss=false to continue from {log_start}"
        )
        self.topic = topic
        self.partition = partition
        self.start = start
        self.log_start = log_start


class ExtentsUnavailable(UnavailableError):
    """Failure of a request for a partition's extents."""

    code: ClassVar[str] = "broker_not_available"


class NotServed(UnavailableError):
    """Fetch response that lacks records which should be in the log."""

    code: ClassVar[str] = "kafka_storage_error"


class TableMismatch(InvalidError):
    """Batch that does not match the schema or the rules of its table."""

    code: ClassVar[str] = "invalid_config"


class InvalidRows(InvalidError):
    """Rows that cannot become records; a task finds them, and the driver raises the error."""

    code: ClassVar[str] = "invalid_record"


class StagingRefused(InvalidError):
    """Rejection of a staged blob by the broker."""


class CommitRefused(InvalidError):
    """Permanent rejection of a commit by the broker; `broker_code` is the broker's error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.broker_code = code


class SinkOwnerChanged(FencedError):
    """Commit under an application name whose earlier commits came from another query.

    The query's checkpoint was copied or replaced, so the batch numbers cannot be compared.
    """

    code: ClassVar[str] = "producer_fenced"


class CommitUnfinished(RetriableError):
    """Commit that did not finish in time; the same batch may be written again."""

    code: ClassVar[str] = "request_timed_out"
