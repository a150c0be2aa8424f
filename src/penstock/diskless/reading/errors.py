"""Errors of fetches from diskless partitions.

Consumers retry only a few errors of a fetch. The Java client stops permanently at others. All other
errors therefore become `Unreadable`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import PenstockError, RetriableError


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
