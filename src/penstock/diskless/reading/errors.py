"""What a fetch from a diskless partition may end with.

A consumer knows only some errors of a fetch and stops for good at others (Java's does), so whatever
else goes wrong is told as `Unreadable`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.base.errors import PenstockError, RetriableError


class PartitionGone(RetriableError):
    """The control plane does not know the partition; its topic was deleted."""

    code: ClassVar[str] = "unknown_topic_or_partition"


class Unreadable(RetriableError):
    """What a partition holds at an offset cannot be read for now; the message has the cause."""

    code: ClassVar[str] = "kafka_storage_error"


_TOLD: Final = {"offset_out_of_range", "unknown_topic_or_partition", "kafka_storage_error"}


def told(error: PenstockError) -> PenstockError:
    """The error as consumers understand it."""
    return error if error.code in _TOLD else Unreadable(str(error))
