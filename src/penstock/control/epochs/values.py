"""The values of replicated partitions: reservations, epochs, and what changes them.

Offsets count records, `end_offset` is the one after the last. Placements are broker ids, each once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import PartitionKey

FIRST_EPOCH: Final = 0


class PartitionEpoch(NamedTuple):
    """One epoch of a partition: the offsets from `start_offset` on, until `end_offset`.

    It is open while it has no end, and sealed from then on. `replicas` is its placement; a record
    is committed once `ack_quorum` of them have it. The process of `incarnation` leads it and no
    other one ever does; None, where the leader was not registered when the topic was created.
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
        """So many replicas share one with every ack quorum."""
        return len(self.replicas) - self.ack_quorum + 1


class Reservation(NamedTuple):
    """The highest epoch that was ever reserved for a partition, by whom, and the newest opened."""

    reserved: int
    claimant: int
    incarnation: UUID | None
    opened: int

    @property
    def is_recovering(self) -> bool:
        """Whether the reserved epoch is still to be opened."""
        return self.reserved > self.opened


class PartitionChain(NamedTuple):
    """A partition's reservation and its newest epochs, rising; the last one is open.

    A log whose newest epoch is older than all of these must not be cut by them: where it parts from
    the chain is said by older ones, which are read with `below`.
    """

    reservation: Reservation
    epochs: tuple[PartitionEpoch, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it reaches back to the partition's first epoch."""
        return bool(self.epochs) and self.epochs[0].epoch == FIRST_EPOCH


class EpochClaim(NamedTuple):
    """Asks for an epoch above all that were reserved.

    `above` is the highest epoch of the partition that the claimant knows of: an earlier claim of
    its own, a promise, or the image's leader epoch. A repeated claim names the same one again.
    """

    topic_id: UUID
    partition: int
    above: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class ClaimedEpochs(NamedTuple):
    """What became of claims: `chains`, whose `reservation.reserved` is the claimant's epoch."""

    chains: Mapping[PartitionKey, PartitionChain]
    refused: Mapping[PartitionKey, PenstockError]


class EpochOpening(NamedTuple):
    """Seals a partition's open epoch at `end_offset`, and opens a reserved one there.

    The records below the end are durable on an ack quorum of the epoch that is sealed. `isr` are
    those of the new placement that hold all of them, as far as the leader knows. `move` is the
    order for another placement that this one comes of, 0 where it is that of the epoch before.
    `unclean`: replicas that are none any more were not asked, and what only they hold is given up.
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
    """What an unclean election gave up: records of epoch `sealed` from an offset on, if any.

    `broker` opened `epoch` without having asked the replicas that are `missing`.
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
    """Asks for other replicas of a partition, the preferred leader first; None: not any more."""

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...] | None

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class InSyncReplicas(NamedTuple):
    """The replicas that keep up, as the leader of an epoch sees them."""

    topic_id: UUID
    partition: int
    epoch: int
    isr: tuple[int, ...]

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class Resignation(NamedTuple):
    """Has another replica lead what the image says a broker leads in an epoch.

    The epoch stays open until the heir has claimed the next one.
    """

    topic_id: UUID
    partition: int
    epoch: int
    heir: int

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class OwedEpoch(NamedTuple):
    """An epoch in whose placement a broker is."""

    topic_id: UUID
    partition: int
    epoch: PartitionEpoch
