"""The part of the control plane that keeps the epochs of replicated partitions.

Every change is one transaction for all partitions of a call, and a compare-and-set for each: one
that is refused does not hold up the others. All may be repeated: whether COMMIT took effect may be
unknown, and the same call again gets the first answer or is made.
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
    ClaimedEpochs,
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    OwedEpoch,
    PartitionChain,
    PartitionLoss,
    Reassignment,
    Reservation,
    Resignation,
)
from penstock.control.limits import LOSSES_MAX, OWED_EPOCHS_MAX
from penstock.control.metadata.plane import Metadata

_BEFORE_ALL = (UUID(int=0), -1, -1)


class ReplicatedPartitions(Metadata):
    """Methods of `ControlPlane`, over either database.

    Each takes at most `EPOCH_PARTITIONS_PER_CALL_MAX` partitions, each once, and raises TooLarge or
    InvalidPartitions otherwise. Partitions without several replicas are refused, or left out.
    """

    async def claim_epochs(
        self, claims: Sequence[EpochClaim], *, broker_id: int, incarnation: UUID
    ) -> ClaimedEpochs:
        """Reserve for a process an epoch above all that were ever reserved, of each partition.

        The answer has each partition's newest `CHAIN_EPOCHS_MAX` epochs, of which the last is the
        one to be recovered: with its own placement and quorum. A claim that is repeated gets the
        same epoch as long as nobody else has claimed since.

        Refused for a partition: NotReplica, NotReplicated, and DatabaseSetBack where an epoch is
        known that the database does not know.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([one.key for one in claims])
        return await self._database.change(
            partial(operations.claim, claims, broker_id=broker_id, incarnation=incarnation)
        )

    async def open_epochs(
        self, openings: Sequence[EpochOpening], *, broker_id: int, incarnation: UUID
    ) -> Mapping[PartitionKey, PenstockError]:
        """Seal open epochs and open reserved ones, which this process leads; what was refused.

        Leaders, leader epochs, replicas and in-sync replicas of the image change with it. An epoch
        is opened if it is the highest one reserved, and by this process: who is refused with
        StaleEpoch must stop. Other refusals: NotReplica, NotReplicated, InvalidReplicas,
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
        """Order other replicas of partitions, or cancel that; what was refused.

        The image has the orders; leaders carry them out (`open_epochs`). Refusals: NotReplicated
        for what is not there or diskless, InvalidReplicas, and NotReassigned for a cancellation.
        """
        rules.check_call([one.key for one in asked])
        return await self._apply(partial(operations.reassign, self._images, asked))

    async def set_isr(
        self, changes: Sequence[InSyncReplicas], *, broker_id: int, incarnation: UUID
    ) -> Mapping[PartitionKey, PenstockError]:
        """Store which replicas are in sync, where this process leads the open epoch; refusals.

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
        """Have other replicas claim what this process leads by the image; what was refused.

        Refusals: StaleEpoch where it does not lead in that epoch, NotReplica for an heir that is
        no other registered replica, NotReplicated.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([one.key for one in asked])
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
        """Reservations, and of each partition the newest `CHAIN_EPOCHS_MAX` epochs below one."""
        rules.check_call(keys)
        return await self._database.change(
            partial(operations.chains, keys, below), lock=Lock.SNAPSHOT
        )

    async def highest_reserved(
        self, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, Reservation]:
        """The highest epochs ever reserved: what a replica that lost its disk promises first."""
        rules.check_call(keys)
        return await self._database.read(partial(operations.reservations, keys))

    async def partition_losses(self, limit: int = LOSSES_MAX) -> list[PartitionLoss]:
        """What unclean elections gave up of topics that there are, the newest first."""
        return await self._database.read(partial(operations.losses, min(limit, LOSSES_MAX)))

    async def owed_epochs(
        self, broker_id: int, *, after: OwedEpoch | None = None, limit: int = OWED_EPOCHS_MAX
    ) -> list[OwedEpoch]:
        """The epochs, open and sealed, in whose placements a broker is; at most `limit`.

        They come by topic, partition and epoch, from the one behind `after` on: it is the last one
        of the page before. A page that is not full is the last one.
        """
        place = _BEFORE_ALL if after is None else (*after[:2], after.epoch.epoch)
        rows = min(limit, OWED_EPOCHS_MAX)
        return await self._database.read(partial(operations.owed, broker_id, place, rows))
