"""Errors of replicated partitions, as clients see them."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
from penstock.base.ids import TopicPartition


class LeadershipOver(FencedError):
    """This broker no longer leads the partition; the outcome of appends in flight is unknown."""

    code: ClassVar[str] = "not_leader_or_follower"

    def __init__(self, where: TopicPartition, epoch: int) -> None:
        super().__init__(
            f"{where}: the leadership in epoch {epoch} has ended; appends in flight may or may not"
            " be committed"
        )


class NotLeading(FencedError):
    """This broker does not lead the partition, or its log is still incomplete."""

    code: ClassVar[str] = "not_leader_or_follower"

    @classmethod
    def of(cls, partition: TopicPartition) -> NotLeading:
        return cls(f"this broker does not lead {partition}, or its log is still incomplete")


class TooFewReplicas(RetriableError):
    """Fewer replicas can be reached than must acknowledge an append."""

    code: ClassVar[str] = "not_enough_replicas"


class NotAsAnnounced(InvalidError):
    """Another broker sent other batches than it announced."""

    code: ClassVar[str] = "corrupt_message"


class BeingMended(UnavailableError):
    """Records are damaged here, and are requested from another replica."""

    code: ClassVar[str] = "kafka_storage_error"
