"""Errors of fetches from diskless partitions.

Consumers know few errors of a fetch and stop permanently at others (Java's does), so all other
errors become `Unreadable`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import PenstockError, RetriableError


class PartitionGone(RetriableError):
    """The control plane does not know the partition; its topic was deleted."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class Unreadable(RetriableError):
    """The records at an offset cannot be read for now; the message has the cause."""

    code: ClassVar[str] = "kafka_storage_error"


_CONSUMER_ERRORS: Final = {
    "offset_out_of_range",
    "unknown_topic_or_partition",
    "kafka_storage_error",
}


def for_consumers(error: PenstockError) -> PenstockError:
    """Return the error as consumers understand it."""
    return error if error.code in _CONSUMER_ERRORS else Unreadable(str(error))
