"""Control-plane interface of the epochs of replicated partitions.

Every change is one transaction for all partitions of a call, and a compare-and-set for each: a
rejected partition does not affect the others. All methods may be repeated: after an unknown outcome
the same call gets the first answer, or is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control.batch_index.values import PartitionKey
from penstock.control.drivers.statements import Lock
from penstock.control.epochs import operations, rules
from penstock.control.epochs.values import (
    AssignedEpoch,
    ClaimedEpochs,
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    PartitionChain,
    PartitionLoss,
    Reassignment,
    Reservation,
    Resignation,
)
from penstock.control.limits import ASSIGNED_EPOCHS_MAX, LOSSES_MAX
from penstock.control.metadata.operations import Metadata

_BEFORE_ALL = (UUID(int=0), -1, -1)


class ReplicatedPartitions(Metadata):
    """Methods of `ControlPlane` for replicated partitions.

    Each takes at most `EPOCH_PARTITIONS_PER_CALL_MAX` partitions, each once, and raises TooLarge or
    InvalidPartitions otherwise. Partitions without several replicas are rejected, or left out.
    """

    async def claim_epochs(
        self, claims: Sequence[EpochClaim], *, broker_id: int, incarnation: UUID
    ) -> ClaimedEpochs:
        """Reserve for a process an epoch above all reserved ones, for each partition.

        The answer has each partition's newest `CHAIN_EPOCHS_MAX` epochs, of which the last is the
        one to recover, with its own placement and quorum. A repeated claim gets the same epoch
        unless another process has claimed since. A partition is rejected with NotReplica,
        NotReplicated, or DatabaseSetBack if the claim names an epoch that the database does not
        know.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([claim.key for claim in claims])
        return await self._database.change(
            partial(operations.claim, claims, broker_id=broker_id, incarnation=incarnation)
        )

    async def open_epochs(
        self, openings: Sequence[EpochOpening], *, broker_id: int, incarnation: UUID
    ) -> Mapping[PartitionKey, PenstockError]:
        """Seal open epochs and open reserved ones, which this process leads; return the rejections.

        Also changes leaders, leader epochs, replicas and in-sync replicas of the image. An epoch is
        opened if it is the highest reserved one, and reserved by this process; a process that gets
        StaleEpoch must stop. Other rejections: NotReplica, NotReplicated, InvalidReplicas,
        InvalidQuorum.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([opening.key for opening in openings])
        return await self._apply(
            partial(
                operations.open_epochs,
                self._images,
                openings,
                broker_id=broker_id,
                incarnation=incarnation,
            )
        )

    async def reassign(self, asked: Sequence[Reassignment]) -> Mapping[PartitionKey, PenstockError]:
        """Order other replicas of partitions, or cancel an order; return the rejections.

        The image has the orders; leaders carry them out (`open_epochs`). Rejections: NotReplicated
        for a missing or diskless partition, InvalidReplicas, and NotReassigned for a cancellation.
        """
        rules.check_call([reassignment.key for reassignment in asked])
        return await self._apply(partial(operations.reassign, self._images, asked))

    async def set_isr(
        self, changes: Sequence[InSyncReplicas], *, broker_id: int, incarnation: UUID
    ) -> Mapping[PartitionKey, PenstockError]:
        """Store in-sync replicas of open epochs that this process leads; return the rejections.

        They are StaleEpoch, NotReplicated or InvalidReplicas.
        """
        rules.check_call([change.key for change in changes])
        return await self._apply(
            partial(
                operations.set_isr,
                self._images,
                changes,
                broker_id=broker_id,
                incarnation=incarnation,
            )
        )

    async def resign(
        self, asked: Sequence[Resignation], *, broker_id: int, incarnation: UUID
    ) -> Mapping[PartitionKey, PenstockError]:
        """Name successors, which claim the partitions that this process leads; return the
        rejections.

        They are StaleEpoch if it does not lead in that epoch, NotReplicated, and NotReplica for a
        successor that is not another registered replica.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([resignation.key for resignation in asked])
        return await self._apply(
            partial(
                operations.resign,
                self._images,
                asked,
                broker_id=broker_id,
                incarnation=incarnation,
            )
        )

    async def partition_chains(
        self, keys: Sequence[PartitionKey], *, below: int = operations.ANY_EPOCH
    ) -> Mapping[PartitionKey, PartitionChain]:
        """Return reservations, and the newest `CHAIN_EPOCHS_MAX` epochs below `below`."""
        rules.check_call(keys)
        return await self._database.change(
            partial(operations.chains, keys, below), lock=Lock.SNAPSHOT
        )

    async def highest_reserved(
        self, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, Reservation]:
        """Return the highest reserved epochs, which a replica that lost its disk promises first."""
        rules.check_call(keys)
        return await self._database.read(partial(operations.reservations, keys))

    async def partition_losses(self, limit: int = LOSSES_MAX) -> list[PartitionLoss]:
        """Return the losses of unclean elections in existing topics, the newest first."""
        return await self._database.read(partial(operations.losses, min(limit, LOSSES_MAX)))

    async def assigned_epochs(
        self,
        broker_id: int,
        *,
        after: AssignedEpoch | None = None,
        limit: int = ASSIGNED_EPOCHS_MAX,
    ) -> list[AssignedEpoch]:
        """Return up to `limit` epochs, open and sealed, whose placement includes a broker.

        They are ordered by topic, partition and epoch, and follow `after`, the last of the page
        before. A page that is not full is the last one.
        """
        place = _BEFORE_ALL if after is None else (*after[:2], after.epoch.epoch)
        rows = min(limit, ASSIGNED_EPOCHS_MAX)
        return await self._database.read(partial(operations.assigned, broker_id, place, rows))
