"""Methods of the control plane for the leader epochs of replicated partitions.

A method changes many partitions in one transaction, with a compare-and-set for each. A rejected
partition does not affect the others. All methods may be repeated: after an unknown outcome, the
same call returns the first result, or makes the change.

**Locks.** Claims and openings lock the reservations of their partitions, in the order of the keys,
before they read epochs. Concurrent changes therefore wait for each other. An opening locks metadata
first, because it changes leaders in the image; a claim does not.

**Round trips** do not grow with the number of partitions: a claim has four between BEGIN and
COMMIT, or seven with epochs of copied logs, an opening eight, three of them for the image.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from penstock.base.errors import BugError, PenstockError
from penstock.control.drivers.statements import Lock, Operation, operation, query, uuid_of
from penstock.control.operations import images
from penstock.control.operations.images import (
    OverImages,
    StampedImage,
    image_operation,
    read_incarnation,
)
from penstock.control.rules import epochs as rules
from penstock.control.rules.metadata import (
    check_incarnation,
    check_registered,
    is_linked,
    link_epoch,
)
from penstock.control.values.diskless import PartitionKey
from penstock.control.values.epochs import (
    AssignedEpoch,
    ClaimedEpochs,
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    PartitionChain,
    PartitionEpoch,
    PartitionLoss,
    Reassignment,
    Reservation,
    Resignation,
)
from penstock.control.values.errors import InvalidReplicas, NotReplicated
from penstock.control.values.topics import MetadataImage, Partition, Topic

CHAIN_EPOCHS_MAX: Final = 1_000
"""Epochs of a partition that one call returns, the newest ones."""

LOSSES_MAX: Final = 1_000
"""Unclean elections that one call returns, the newest ones."""

ASSIGNED_EPOCHS_MAX: Final = 10_000
"""Epochs of a broker that one call returns."""

Refused = Mapping[PartitionKey, PenstockError]
_ANY_EPOCH: Final = 2**31 - 1
"""Exclusive bound above all epochs."""
_BEFORE_ALL: Final = (UUID(int=0), -1, -1)


class ReplicatedPartitions(OverImages):
    """Methods of `ControlPlane` for replicated partitions.

    Each takes at most `EPOCH_PARTITIONS_PER_CALL_MAX` partitions, without repetition, and raises
    TooLarge or InvalidPartitions otherwise. Changes reject partitions that are not replicated;
    reads omit them.
    """

    @operation()
    def claim_epochs(
        self, claims: Sequence[EpochClaim], *, broker_id: int, incarnation: UUID
    ) -> Operation[ClaimedEpochs]:
        """Claim leadership: reserve an epoch above all reserved ones, for each partition.

        Returns each partition's newest `CHAIN_EPOCHS_MAX` epochs. The last one is open: the
        claimant has to recover it from its replicas before it opens its own epoch. A repeated claim
        gets the same epoch, unless another process has claimed since. A partition is rejected with
        NotReplica, NotReplicated, or, if the claim names an epoch that the database does not know,
        DatabaseSetBack.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([claim.key for claim in claims])
        registered = yield read_incarnation(broker_id)
        check_registered(broker_id, registered and uuid_of(registered), incarnation)
        keys = [asked.key for asked in claims]
        found = yield from reservations(keys, lock=True)
        chains = yield from _epochs(keys, below=_ANY_EPOCH, limit=CHAIN_EPOCHS_MAX)
        yield from _adopt(claims, found, chains, broker_id)
        granted: dict[PartitionKey, PartitionChain] = {}
        refused: dict[PartitionKey, PenstockError] = {}
        reserved: list[tuple[UUID, int, int]] = []
        for asked in claims:
            key, held = asked.key, found.get(asked.key)
            epochs = chains.get(key, ())
            got = rules.reserve(
                asked,
                held,
                epochs[-1] if epochs else None,
                broker_id=broker_id,
                incarnation=incarnation,
            )
            if isinstance(got, PenstockError):
                refused[key] = got
            else:
                reservation = Reservation(got, broker_id, incarnation, epochs[-1].epoch)
                granted[key] = PartitionChain(reservation, epochs)
                if held is None or got != held.reserved:
                    reserved.append((*key, got))
        _check((yield images.reserve(reserved, broker_id, incarnation)), len(reserved))
        return ClaimedEpochs(granted, refused)

    @image_operation
    def open_epochs(
        self, openings: Sequence[EpochOpening], *, broker_id: int, incarnation: UUID
    ) -> Operation[tuple[Refused, StampedImage]]:
        """Seal open epochs and open reserved ones; return the rejections.

        This process then leads the opened epochs. Also changes leaders, leader epochs, replicas and
        in-sync replicas of the image. An epoch is opened if it is the highest reserved one and this
        process has reserved it. A process that gets StaleEpoch must not lead the partition. Other
        rejections: NotReplica, NotReplicated, InvalidReplicas, InvalidQuorum.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([opening.key for opening in openings])
        known = yield from self._images.locked()
        check_incarnation(known.image, broker_id=broker_id, incarnation=incarnation)
        keys = [opening.key for opening in openings]
        found = yield from reservations(keys, lock=True)
        newest = yield from _newest(keys)
        refused: dict[PartitionKey, PenstockError] = {}
        made: dict[PartitionKey, PartitionEpoch] = {}
        moved: dict[PartitionKey, dict[str, Any]] = {}
        lost: list[tuple[Any, ...]] = []
        for opening in openings:
            key, last, row = opening.key, newest.get(opening.key), known.partition(opening.key)
            got = rules.open_epoch(
                opening, found.get(key), last,
                broker_id=broker_id, incarnation=incarnation, move=0 if row is None else row.move,
            )  # fmt: skip
            if isinstance(got, PenstockError):
                refused[key] = got
            elif got is not last:
                made[key] = got
                if row is not None:
                    moved[key] = rules.opened(row, got, opening, known.image.version + 1)
                if opening.unclean and last is not None:
                    missing = json.dumps(
                        [each for each in last.replicas if each not in got.replicas]
                    )
                    lost.append(
                        (*key, got.epoch, last.epoch, opening.end_offset, broker_id, missing)
                    )
        yield images.shorten([(*loss[:2], loss[4]) for loss in lost])
        sealed = [(*key, newest[key].epoch, epoch.start_offset) for key, epoch in made.items()]
        _check((yield images.seal(sealed)), len(made))
        yield images.add_epochs([images.epoch_row(key, epoch) for key, epoch in made.items()])
        yield images.add_losses(lost)
        return refused, (yield from self._images.store(known, _moved(known, moved)))

    @image_operation
    def reassign(self, asked: Sequence[Reassignment]) -> Operation[tuple[Refused, StampedImage]]:
        """Store or cancel reassignments of partitions; return the rejections.

        A reassignment is a row of the image, which the partition's leader carries out
        (`open_epochs`). The rejections are NotReplicated for a missing or diskless partition,
        InvalidReplicas, and NotReassigned for the cancellation of a missing reassignment.
        """
        rules.check_call([reassignment.key for reassignment in asked])
        known = yield from self._images.locked()
        found = yield from reservations([reassignment.key for reassignment in asked], lock=True)
        refused: dict[PartitionKey, PenstockError] = {}
        moved: dict[PartitionKey, dict[str, Any]] = {}
        first: dict[PartitionKey, PartitionEpoch] = {}
        for reassignment in asked:
            topic, row = known.topic(reassignment.topic_id), known.partition(reassignment.key)
            if topic is None or row is None or rules.is_diskless(topic):
                refused[reassignment.key] = NotReplicated(*reassignment.key)
                continue
            got = rules.reassign(reassignment, row, known.image.version + 1)
            if not isinstance(got, PenstockError) and got.get("move") and is_linked(topic):
                got = InvalidReplicas(
                    f"topic {topic.name!r} is linked and has one replica until its promotion: run"
                    " `penstock link promote --replication-factor` for more"
                )
            if isinstance(got, PenstockError):
                refused[reassignment.key] = got
                continue
            moved[reassignment.key] = got
            copied = link_epoch(topic) > 0  # its leader's claim has the first epochs
            if got.get("move") and reassignment.key not in found and not copied:
                first[reassignment.key] = rules.first_epoch(known.image, row, min_insync_replicas=1)
        yield from add_first(first)
        return refused, (yield from self._images.store(known, _moved(known, moved)))

    @image_operation
    def set_isr(
        self, changes: Sequence[InSyncReplicas], *, broker_id: int, incarnation: UUID
    ) -> Operation[tuple[Refused, StampedImage]]:
        """Store the in-sync replicas of open epochs that this process leads; return the rejections.

        The rejections are StaleEpoch, NotReplicated or InvalidReplicas.
        """
        rules.check_call([change.key for change in changes])
        known = yield from self._images.locked()
        newest = yield from _newest([change.key for change in changes])
        refused: dict[PartitionKey, PenstockError] = {}
        stored: dict[PartitionKey, dict[str, Any]] = {}
        for change in changes:
            reason = rules.check_in_sync(
                change, newest.get(change.key), broker_id=broker_id, incarnation=incarnation
            )
            if reason is None:
                stored[change.key] = {"isr": tuple(change.isr)}
            else:
                refused[change.key] = reason
        return refused, (yield from self._images.store(known, _moved(known, stored)))

    @image_operation
    def resign(
        self, asked: Sequence[Resignation], *, broker_id: int, incarnation: UUID
    ) -> Operation[tuple[Refused, StampedImage]]:
        """Resign leadership in favour of named successors; return the rejections.

        A successor then claims the partition. The rejections are StaleEpoch if this process does
        not lead in the named epoch, NotReplicated, and NotReplica if the successor is not another
        registered replica.

        Raises:
            StaleBroker: this incarnation is not registered.
        """
        rules.check_call([resignation.key for resignation in asked])
        known = yield from self._images.locked()
        check_incarnation(known.image, broker_id=broker_id, incarnation=incarnation)
        refused: dict[PartitionKey, PenstockError] = {}
        moved: dict[PartitionKey, dict[str, Any]] = {}
        for resignation in asked:
            got = rules.resign(
                resignation, known.image, known.partition(resignation.key), broker_id=broker_id
            )
            if isinstance(got, PenstockError):
                refused[resignation.key] = got
            else:
                moved[resignation.key] = got
        return refused, (yield from self._images.store(known, _moved(known, moved)))

    @operation(lock=Lock.SNAPSHOT)
    def partition_chains(
        self, keys: Sequence[PartitionKey], *, below: int = _ANY_EPOCH
    ) -> Operation[Mapping[PartitionKey, PartitionChain]]:
        """Return reservations of partitions, and their newest epochs below `below`.

        At most `CHAIN_EPOCHS_MAX` epochs of each partition are returned.
        """
        rules.check_call(keys)
        found = yield from reservations(keys)
        epochs = yield from _epochs(keys, below=below, limit=CHAIN_EPOCHS_MAX)
        return {
            key: PartitionChain(reservation, epochs.get(key, ()))
            for key, reservation in found.items()
        }

    @query
    def highest_reserved(
        self, keys: Sequence[PartitionKey]
    ) -> Operation[Mapping[PartitionKey, Reservation]]:
        """Return the reservations of partitions.

        A replica that has lost its disk promises to reject older epochs than the reserved one,
        before it does anything else.
        """
        rules.check_call(keys)
        return reservations(keys)

    @query
    def partition_losses(self, limit: int = LOSSES_MAX) -> Operation[list[PartitionLoss]]:
        """Return the losses of unclean elections in existing topics, the newest election first."""
        found = yield images.read_losses(min(limit, LOSSES_MAX))
        return list(map(images.loss_of, found))

    @query
    def assigned_epochs(
        self,
        broker_id: int,
        *,
        after: AssignedEpoch | None = None,
        limit: int = ASSIGNED_EPOCHS_MAX,
    ) -> Operation[list[AssignedEpoch]]:
        """Return up to `limit` epochs, open and sealed, whose placement includes a broker.

        They are ordered by topic, partition and epoch. `after` is the last epoch of the previous
        page. A page with fewer than `limit` epochs is the last one.
        """
        place = _BEFORE_ALL if after is None else (*after[:2], after.epoch.epoch)
        rows = min(limit, ASSIGNED_EPOCHS_MAX)
        found = yield images.assigned(*place, broker_id, rows)
        return list(map(images.assigned_of, found))


def reservations(
    keys: Sequence[PartitionKey], *, lock: bool = False
) -> Operation[dict[PartitionKey, Reservation]]:
    """Return the reservations of partitions that have one. `lock` locks them in key order."""
    found = yield (images.lock if lock else images.read)(_placed(keys))
    return {keys[row[0]]: images.reservation_of(row) for row in found}


def open_first(
    image: MetadataImage, topic: Topic, added: Iterable[Partition], min_insync_replicas: int
) -> Operation[None]:
    made = {
        (topic.topic_id, partition.index): rules.first_epoch(image, partition, min_insync_replicas)
        for partition in added
        if len(partition.replicas) > 1 and not rules.is_diskless(topic)
    }
    yield from add_first(made)


def add_first(made: Mapping[PartitionKey, PartitionEpoch]) -> Operation[None]:
    yield images.add_partitions(
        [(*key, epoch.epoch, epoch.leader, epoch.incarnation) for key, epoch in made.items()]
    )
    yield images.add_epochs([images.epoch_row(key, epoch) for key, epoch in made.items()])


def _adopt(
    claims: Sequence[EpochClaim],
    found: dict[PartitionKey, Reservation],
    chains: dict[PartitionKey, tuple[PartitionEpoch, ...]],
    broker_id: int,
) -> Operation[None]:
    """Store the epochs of logs of other clusters as first epochs; update `found` and `chains`.

    A partition without a leader so far may have epochs of an earlier claim, from before a cancelled
    reassignment. They are replaced.
    """
    adopting = [
        claim
        for claim in claims
        if claim.history and all(epoch.incarnation is None for epoch in chains.get(claim.key, ()))
    ]
    if not adopting:
        return
    made = {claim.key: rules.adopted(claim, broker_id) for claim in adopting}
    new = [key for key in made if key not in found]
    yield images.forget_epochs(list(made))
    yield images.add_epochs(
        [images.epoch_row(key, epoch) for key, epochs in made.items() for epoch in epochs]
    )
    for claim in adopting:
        last, before = made[claim.key][-1].epoch, found.get(claim.key)
        reserved = max(last, claim.above, 0 if before is None else before.reserved)
        found[claim.key] = Reservation(reserved, broker_id, None, last)
        chains[claim.key] = made[claim.key][-CHAIN_EPOCHS_MAX:]
    yield images.add_partitions([(*key, found[key].reserved, broker_id, None) for key in new])


def _epochs(
    keys: Sequence[PartitionKey], *, below: int, limit: int
) -> Operation[dict[PartitionKey, tuple[PartitionEpoch, ...]]]:
    """Return each partition's newest epochs below the epoch `below`, in ascending order."""
    found: dict[PartitionKey, list[PartitionEpoch]] = {}
    for row in (yield images.newest_epochs(_placed(keys), below, limit)):
        found.setdefault(keys[row[0]], []).append(images.epoch_of(row))
    return {key: tuple(sorted(epochs)) for key, epochs in found.items()}


def _newest(keys: Sequence[PartitionKey]) -> Operation[dict[PartitionKey, PartitionEpoch]]:
    found = yield from _epochs(keys, below=_ANY_EPOCH, limit=1)
    return {key: epochs[-1] for key, epochs in found.items()}


def _placed(keys: Iterable[PartitionKey]) -> list[tuple[UUID, int, int]]:
    return [(*key, place) for place, key in enumerate(keys)]


def _moved(known: StampedImage, changes: Mapping[PartitionKey, dict[str, Any]]) -> MetadataImage:
    topics = [known.topic(topic_id) for topic_id in dict.fromkeys(key[0] for key in changes)]
    return rules.with_partitions(known.image, filter(None, topics), changes)


def _check(count: int, expected: int) -> None:
    if count != expected:
        raise BugError(f"{count} of {expected} partitions changed while their rows were locked")
