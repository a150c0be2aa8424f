"""Values of replicated partitions: reservations, epochs, and their changes.

Offsets count records; `end_offset` follows the last one. Placements are broker ids, each once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import PartitionKey

FIRST_EPOCH: Final = 0


class PartitionEpoch(NamedTuple):
    """An epoch of a partition: the offsets from `start_offset` to `end_offset`.

    An open epoch has no end. `replicas` is its placement; a record is committed once `ack_quorum`
    of them have it. Only the process of `incarnation` leads it; None if the leader was not
    registered when the topic was created.
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
        """Number of replicas that intersects every ack quorum."""
        return len(self.replicas) - self.ack_quorum + 1


class Reservation(NamedTuple):
    """The highest reserved epoch of a partition, its claimant, and the newest opened epoch."""

    reserved: int
    claimant: int
    incarnation: UUID | None
    opened: int

    @property
    def is_recovering(self) -> bool:
        return self.reserved > self.opened


class PartitionChain(NamedTuple):
    """A partition's reservation and its newest epochs, in ascending order; the last one is open.

    A log whose newest epoch is older than all of these must not be truncated by them: read older
    epochs with `below` to find where it diverges.
    """

    reservation: Reservation
    epochs: tuple[PartitionEpoch, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it includes the partition's first epoch."""
        return bool(self.epochs) and self.epochs[0].epoch == FIRST_EPOCH


class EpochClaim(NamedTuple):
    """A claim of an epoch above all reserved ones.

    `above` is the highest epoch of the partition that the claimant knows: an earlier claim of its
    own, a promise, or the image's leader epoch. A repeated claim has the same value.
    """

    topic_id: UUID
    partition: int
    above: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class ClaimedEpochs(NamedTuple):
    """Results of claims; the claimant's epoch is the `reservation.reserved` of a chain."""

    chains: Mapping[PartitionKey, PartitionChain]
    refused: Mapping[PartitionKey, PenstockError]


class EpochOpening(NamedTuple):
    """An order to seal a partition's open epoch at `end_offset`, and to open a reserved one there.

    The records below the end are durable on an ack quorum of the sealed epoch. `isr` are the
    replicas of the new placement that hold all of them, as far as the leader knows. `move` is the
    order that the new placement comes from, 0 if the placement does not change. `unclean` if
    unavailable replicas were not asked; records that only they hold are lost.
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
    """Records of epoch `sealed` from an offset on that an unclean election lost, if there were any.

    `broker` opened `epoch` without asking the `missing` replicas.
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
    """An order that another replica leads the partition that a broker leads in an epoch.

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
    """An epoch whose placement includes a broker."""

    topic_id: UUID
    partition: int
    epoch: PartitionEpoch
