"""Values of replicated partitions: reservations, epochs, and their changes.

An `end_offset` is exclusive: the offset after the last record. A placement is a tuple of broker ids
without repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control.values.diskless import PartitionKey

FIRST_EPOCH: Final = 0


class PartitionEpoch(NamedTuple):
    """A leader epoch of a partition, with the offsets from `start_offset` to `end_offset`.

    An open epoch has no end. `replicas` is its placement. A record is committed once `ack_quorum`
    of the replicas have it. Only the process `incarnation` of broker `leader` leads the epoch; None
    if that broker was not registered when the topic was created.
    """

    epoch: int
    start_offset: int
    end_offset: int | None
    replicas: tuple[int, ...]
    ack_quorum: int
    leader: int
    incarnation: UUID | None

    @property
    def fence_quorum(self) -> int:
        """Smallest number of replicas that shares a replica with every ack quorum."""
        return len(self.replicas) - self.ack_quorum + 1


class Reservation(NamedTuple):
    """A partition's highest reserved epoch, its claimant, and its newest opened epoch."""

    reserved: int
    claimant: int
    incarnation: UUID | None
    opened: int

    @property
    def is_recovering(self) -> bool:
        return self.reserved > self.opened


class PartitionChain(NamedTuple):
    """A partition's reservation and its newest epochs, in ascending order. The last epoch is open.

    A log whose newest epoch is older than all of these must not be truncated by them. Read older
    epochs with the argument `below` of `partition_chains`, to find where the log diverges.
    """

    reservation: Reservation
    epochs: tuple[PartitionEpoch, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the chain includes the partition's first epoch."""
        return bool(self.epochs) and self.epochs[0].epoch == FIRST_EPOCH


class EpochClaim(NamedTuple):
    """A claim of leadership, which reserves an epoch above all reserved ones.

    `above` is the highest epoch of the partition that the claimant knows: from an earlier claim of
    its own, a promise, or the image. A repeated claim has the same value.

    `history` has the epochs of the claimant's log with their start offsets, if another cluster has
    written the log. They become the partition's first epochs, unless it was led here before.
    """

    topic_id: UUID
    partition: int
    above: int
    history: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class ClaimedEpochs(NamedTuple):
    """Results of claims, by partition.

    A partition's claimed epoch is the `reservation.reserved` of its chain.
    """

    chains: Mapping[PartitionKey, PartitionChain]
    refused: Mapping[PartitionKey, PenstockError]


class EpochOpening(NamedTuple):
    """A request to seal a partition's open epoch at `end_offset` and open a reserved epoch.

    The records below the end are durable on an ack quorum of the sealed epoch. `isr` has the
    replicas of the new placement that hold all of them, as far as the leader knows. `move` is the
    number of the reassignment that gave the new placement, or 0 if the placement does not change.
    `unclean` means that unavailable replicas were not consulted: records that only they hold are
    lost.
    """

    topic_id: UUID
    partition: int
    epoch: int
    end_offset: int
    replicas: tuple[int, ...]
    ack_quorum: int
    isr: tuple[int, ...]
    move: int = 0
    unclean: bool = False

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class PartitionLoss(NamedTuple):
    """Records that an unclean election may have lost: of epoch `sealed`, from `from_offset` on.

    `broker` opened `epoch` without consulting the `missing` replicas.
    """

    topic_id: UUID
    partition: int
    epoch: int
    sealed: int
    from_offset: int
    broker: int
    missing: tuple[int, ...]
    at_ms: int


class Reassignment(NamedTuple):
    topic_id: UUID
    partition: int
    replicas: tuple[int, ...] | None

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class InSyncReplicas(NamedTuple):
    topic_id: UUID
    partition: int
    epoch: int
    isr: tuple[int, ...]

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class Resignation(NamedTuple):
    """A request that replica `successor` leads a partition, by the broker that leads it in `epoch`.

    The epoch stays open until the successor has claimed the next one.
    """

    topic_id: UUID
    partition: int
    epoch: int
    successor: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class AssignedEpoch(NamedTuple):
    """An epoch of a partition, returned for a broker that its placement includes."""

    topic_id: UUID
    partition: int
    epoch: PartitionEpoch
