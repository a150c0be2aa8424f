"""Rules of leader epochs, and of restored databases: pure functions.

The rules of epochs are the effects and rejections of claims and openings.

A replicated partition has one row with its highest reserved epoch and its claimant, and one row for
each opened epoch. The partition is in one of two states:

    RECOVERING   reserved > newest opened epoch: the claimant determines the end of the open epoch
    OPEN         reserved = newest opened epoch, which has a leader and no end

Older epochs are SEALED: such an epoch has an end, at which the next one starts.

| a claim finds                                              | result                              |
|------------------------------------------------------------|-------------------------------------|
| the claim's `above` is higher than the reserved epoch      | rejected: an older database copy    |
| the same process reserved an epoch above it, unopened      | that epoch again                    |
| anything else                                              | reserved + 1                        |

| an opening finds                                           | result                              |
|------------------------------------------------------------|-------------------------------------|
| the newest epoch equals the epoch to open                  | success: the call is a repetition   |
| another epoch or process is reserved                       | rejected: a newer claim fenced it   |
| the reserved epoch is open, with other values              | rejected: an end is set once        |
| the end is below the start of the open epoch ¹             | rejected: starts never fall         |
| its replicas are those of a cancelled reassignment         | rejected: their copies may be gone  |
| anything else                                              | seals the old epoch, opens the new  |

¹ except for an unclean election, after which epochs end at the end of the remaining log.

Epochs begin at 0, as Kafka's leader epochs do; -1 means none. The first epoch is open when the
topic is created. The process of the leader that was registered then leads it, and must claim a new
one after a restart. Partitions with one replica, and partitions of diskless topics, have no rows
here. The partition of a promoted topic begins with the epochs of its log, which another cluster has
written; they come with the first claim (`docs/decisions/0076`).

Source: fencing and quorums of BookKeeper's ledger recovery; Kafka's leader epochs (KIP-101).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import is_not
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.rules.metadata import with_topics
from penstock.control.values.diskless import PartitionKey
from penstock.control.values.epochs import (
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    PartitionEpoch,
    Reassignment,
    Reservation,
    Resignation,
)
from penstock.control.values.errors import (
    EPOCH_PARTITIONS_PER_CALL_MAX,
    DatabaseSetBack,
    InvalidPartitions,
    InvalidQuorum,
    InvalidReplicas,
    NotReassigned,
    NotReplica,
    NotReplicated,
    StaleEpoch,
    TooLarge,
)
from penstock.control.values.topics import Broker, MetadataImage, Partition, Topic


def is_diskless(topic: Topic) -> bool:
    return topic.configs.get(DISKLESS_CONFIG) == "true"


def may_have_epochs(topic: Topic) -> bool:
    """Return whether a topic is not diskless, and has or had replicated partitions."""
    return any([partition.has_epochs for partition in topic.partitions]) and not is_diskless(topic)


def ack_quorum(replicas: int, min_insync_replicas: int) -> int:
    """Return the number of replicas that must have a record before it is committed.

    This is `min.insync.replicas`, but at least a majority.

    Raises:
        InvalidQuorum: `min.insync.replicas` exceeds the number of replicas.
    """
    if min_insync_replicas > replicas:
        raise InvalidQuorum(
            f"min.insync.replicas = {min_insync_replicas} is above the replication factor"
            f" {replicas}, so no record could be committed"
        )
    return max(min_insync_replicas, replicas // 2 + 1)


def first_epoch(
    image: MetadataImage, partition: Partition, min_insync_replicas: int
) -> PartitionEpoch:
    leader = image.broker(partition.leader)
    return PartitionEpoch(
        epoch=partition.leader_epoch,
        start_offset=0,
        end_offset=None,
        replicas=partition.replicas,
        ack_quorum=ack_quorum(len(partition.replicas), min_insync_replicas),
        leader=partition.leader,
        incarnation=None if leader is None else leader.incarnation,
    )


def adopted(claim: EpochClaim, broker_id: int) -> tuple[PartitionEpoch, ...]:
    """Return the epochs of a claimant's log as epochs of the partition; the last one is open."""
    ends = [*[start for _, start in claim.history[1:]], None]
    return tuple(
        [
            PartitionEpoch(epoch, start, end, (broker_id,), 1, broker_id, None)
            for (epoch, start), end in zip(claim.history, ends, strict=True)
        ]
    )


def check_call(keys: Collection[PartitionKey]) -> None:
    if len(keys) > EPOCH_PARTITIONS_PER_CALL_MAX:
        raise TooLarge(
            f"{len(keys)} partitions in one call, the limit is {EPOCH_PARTITIONS_PER_CALL_MAX}"
        )
    if len(set(keys)) != len(keys):
        raise InvalidPartitions("a partition is named twice in one call")


def reserve(
    claim: EpochClaim,
    found: Reservation | None,
    newest: PartitionEpoch | None,
    *,
    broker_id: int,
    incarnation: UUID,
) -> int | PenstockError:
    """Return the epoch that a claim reserves, or why it is rejected.

    A repeated claim gets the epoch that is already reserved. `newest` is the newest opened epoch.
    """
    if found is None or newest is None:
        return NotReplicated(*claim.key)
    if broker_id not in newest.replicas:
        return NotReplica(*claim.key, broker_id, newest.replicas)
    if claim.above > found.reserved:
        return DatabaseSetBack(
            f"the claim of partition {claim.partition} of topic {claim.topic_id} names epoch"
            f" {claim.above}, but the highest reserved epoch in the database is {found.reserved}."
            " The database is an older copy: restore the newest one."
        )
    own = (found.claimant, found.incarnation) == (broker_id, incarnation)
    if own and found.reserved > max(newest.epoch, claim.above):
        return found.reserved
    return found.reserved + 1


def open_epoch(
    opening: EpochOpening,
    found: Reservation | None,
    newest: PartitionEpoch | None,
    *,
    broker_id: int,
    incarnation: UUID,
    move: int = 0,
) -> PartitionEpoch | PenstockError:
    """Return the epoch that an opening opens, or why it is rejected.

    A repeated opening returns `newest`, the newest opened epoch. `move` is the number of the
    partition's reassignment, or 0.
    """
    if found is None or newest is None:
        return NotReplicated(*opening.key)
    made = PartitionEpoch(
        epoch=opening.epoch,
        start_offset=opening.end_offset,
        end_offset=None,
        replicas=tuple(opening.replicas),
        ack_quorum=opening.ack_quorum,
        leader=broker_id,
        incarnation=incarnation,
    )
    if made == newest:
        return newest
    own = (found.reserved, found.claimant, found.incarnation)
    if own != (opening.epoch, broker_id, incarnation):
        return StaleEpoch(*opening.key, opening.epoch, f"epoch {found.reserved} is reserved")
    if found.reserved <= newest.epoch:
        return StaleEpoch(*opening.key, opening.epoch, "it is already open with other values")
    if opening.end_offset < newest.start_offset and not opening.unclean:
        return StaleEpoch(
            *opening.key,
            opening.epoch,
            f"it would start at offset {opening.end_offset}, below the start"
            f" {newest.start_offset} of the epoch before it",
        )
    if opening.move not in (0, move):
        reason = f"reassignment {opening.move} to replicas {opening.replicas} was cancelled"
        return StaleEpoch(*opening.key, opening.epoch, reason)
    return _refusal(opening, broker_id) or made


def opened(
    row: Partition, made: PartitionEpoch, opening: EpochOpening, version: int
) -> dict[str, Any]:
    """Return the partition's new values in the image after the opening of an epoch.

    `version` is the image's new version. An unclean election excludes replicas. They become the
    target of a reassignment numbered `version`, which makes new copies on them.
    """
    values: dict[str, Any] = {
        "leader": made.leader,
        "leader_epoch": made.epoch,
        "replicas": made.replicas,
        "isr": tuple(opening.isr),
    }
    if row.move and set(row.target) == set(made.replicas):
        values |= {"target": (), "move": 0}
    elif opening.unclean and set(row.replicas) != set(made.replicas):
        values |= {"target": row.target or row.replicas, "move": version}
    return values


def reassign(asked: Reassignment, row: Partition, move: int) -> dict[str, Any] | PenstockError:
    """Return the partition's new values in the image after a reassignment, or why it is rejected.

    The same replicas in another order take effect at once. `move` is the number of the
    reassignment.
    """
    replicas = asked.replicas
    if replicas is None:
        return {"target": (), "move": 0} if row.move else NotReassigned(*asked.key)
    if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
        return InvalidReplicas(f"replicas {replicas[:16]} must be broker ids without repetition")
    if set(replicas) == set(row.replicas):
        isr = tuple([replica for replica in replicas if replica in row.isr])
        return {"replicas": replicas, "isr": isr, "target": (), "move": 0}
    return {} if replicas == row.target else {"target": replicas, "move": move}


def _refusal(opening: EpochOpening, leader: int) -> PenstockError | None:
    replicas, quorum = opening.replicas, opening.ack_quorum
    if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
        return InvalidReplicas(f"replicas {replicas[:16]} must be broker ids without repetition")
    if not len(replicas) // 2 < quorum <= len(replicas):
        return InvalidQuorum(
            f"the ack quorum {quorum} must be more than half of the {len(replicas)} replicas"
        )
    if leader not in replicas:
        return NotReplica(*opening.key, leader, replicas)
    return _not_in_sync(opening.key, opening.isr, replicas, leader)


def _not_in_sync(
    key: PartitionKey, isr: Sequence[int], replicas: Sequence[int], leader: int
) -> PenstockError | None:
    unique = set(isr)
    if leader not in unique or len(unique) != len(isr) or not unique <= set(replicas):
        return InvalidReplicas(
            f"the in-sync replicas {tuple(isr[:16])} of partition {key[1]} must be replicas of the"
            f" placement {tuple(replicas)}, without repetition, and include the leader {leader}"
        )
    return None


def check_in_sync(
    change: InSyncReplicas,
    newest: PartitionEpoch | None,
    *,
    broker_id: int,
    incarnation: UUID,
) -> PenstockError | None:
    if newest is None:
        return NotReplicated(*change.key)
    if (newest.epoch, newest.leader, newest.incarnation) != (change.epoch, broker_id, incarnation):
        return StaleEpoch(
            *change.key, change.epoch, f"epoch {newest.epoch} of broker {newest.leader} is open"
        )
    return _not_in_sync(change.key, change.isr, newest.replicas, broker_id)


def resign(
    asked: Resignation, image: MetadataImage, row: Partition | None, *, broker_id: int
) -> dict[str, Any] | PenstockError:
    """Return the partition's new values in the image after a resignation, or why it is rejected."""
    if row is None or not row.has_epochs:
        return NotReplicated(*asked.key)
    if (row.leader, row.leader_epoch) != (broker_id, asked.epoch):
        reason = f"broker {row.leader} leads the partition in epoch {row.leader_epoch}"
        return StaleEpoch(*asked.key, asked.epoch, reason)
    if (
        asked.successor == broker_id
        or asked.successor not in row.replicas
        or not image.broker(asked.successor)
    ):
        return NotReplica(*asked.key, asked.successor, row.replicas)
    return {"leader": asked.successor}


def with_partitions(
    image: MetadataImage, topics: Iterable[Topic], changes: Mapping[PartitionKey, dict[str, Any]]
) -> MetadataImage:
    """Return the image with changed partitions, in one new version.

    Returns the same image if nothing differs.
    """
    by_topic: dict[UUID, dict[int, dict[str, Any]]] = {}
    for (topic_id, number), values in changes.items():
        by_topic.setdefault(topic_id, {})[number] = values
    changed = []
    for topic in topics:
        values_of = by_topic[topic.topic_id]
        made = [
            _with(partition, values_of.get(partition.index, {})) for partition in topic.partitions
        ]
        if any(map(is_not, made, topic.partitions)):
            changed.append(replace(topic, partitions=tuple(made)))
    return with_topics(image, changed) if changed else image


def _with(partition: Partition, values: dict[str, Any]) -> Partition:
    made = replace(partition, **values) if values else partition
    return partition if made == partition else made


# Detection of a metadata database that was restored from an older copy.
#
# An older copy lacks reserved epochs and topics. With it, brokers would reserve the same epochs
# again, and would delete the logs of the missing topics. Each broker therefore stores, in a file of
# its directory, the state of the database that it has seen and the promises of its replicas. It
# compares them before it serves requests and before it uses an image.
#
# | compared values                        | detects a copy that was made            |
# |----------------------------------------|-----------------------------------------|
# | version, cluster epoch                 | before the newest stored state ¹        |
# | the broker's own epoch and incarnation | before the broker's last registration   |
# | promises against reservations          | before a promise of its replicas ²      |
#
# ¹ unless other brokers have raised the copy's values beyond the stored ones. ² unless other
# brokers have claimed as many epochs in the copy.
#
# The state is stored at a registration, and periodically. Later changes are not detected. A missing
# topic is no evidence: it may have been deleted.
#
# The opposite is detected, too. The database may have more registrations of this broker than its
# directory records (`is_older`). Then the directory is an older copy, or another process had the
# broker's id meanwhile.


class SeenDatabase(NamedTuple):
    """State of the metadata database when this broker last stored it in its directory.

    `broker_epoch` and `incarnation` are the broker's own registration. `begun` counts the
    registrations that it has begun since. `refused` is the reason why it rejects the database;
    empty if it accepts the database.
    """

    cluster_id: str
    version: int
    cluster_epoch: int
    broker_epoch: int
    incarnation: UUID
    begun: int = 0
    refused: str = ""


def check(seen: SeenDatabase, image: MetadataImage) -> None:
    """Check that an image comes from the seen database, in the seen state or a later one.

    Raises:
        DatabaseSetBack: the image comes from another database, or from an older copy.
    """
    if seen.refused:
        raise DatabaseSetBack(seen.refused)
    if image.cluster_id != seen.cluster_id:
        raise DatabaseSetBack(
            f"the control plane is that of cluster {image.cluster_id!r}; this broker's directory"
            f" belongs to cluster {seen.cluster_id!r}"
        )
    for what, found, kept in (
        ("version", image.version, seen.version),
        ("cluster epoch", image.cluster_epoch, seen.cluster_epoch),
    ):
        if found < kept:
            raise _set_back(f"its {what} is {found}, but was {kept} before")


def is_older(seen: SeenDatabase, own: Broker) -> bool:
    """Return whether the broker's directory is an older copy than the database.

    This is so if its id was registered more often than the directory records. Another process may
    also have used the id meanwhile.
    """
    return own.epoch > seen.broker_epoch + seen.begun


def look(seen: SeenDatabase | None, image: MetadataImage, own: Broker) -> SeenDatabase:
    """Check the database against the stored state; return the state to store instead.

    `seen` is the stored state, or None in a new directory. `own` is the broker's registration.

    Raises:
        DatabaseSetBack: the database is another one, or an older copy.
    """
    if seen is not None:
        _compare(seen, image, own)
    return SeenDatabase(
        image.cluster_id, image.version, image.cluster_epoch, own.epoch, own.incarnation
    )


def _compare(seen: SeenDatabase, image: MetadataImage, own: Broker) -> None:
    check(seen, image)
    if own.epoch < seen.broker_epoch:
        raise _set_back(
            f"its epoch of broker {own.broker_id} is {own.epoch}, but was {seen.broker_epoch}"
            " before"
        )
    if own.epoch == seen.broker_epoch and own.incarnation != seen.incarnation:
        raise _set_back(f"it has given epoch {own.epoch} of broker {own.broker_id} twice")


def _set_back(how: str) -> DatabaseSetBack:
    return DatabaseSetBack(
        f"the control plane was set back: {how}; restore the newest copy of its database"
    )


def set_back(
    promised: Mapping[PartitionKey, int], reserved: Mapping[PartitionKey, Reservation]
) -> list[PartitionKey]:
    """Return the partitions that prove that the database is an older copy.

    A replica on this broker has promised an epoch of them that is higher than the reserved one.
    """
    return [
        key for key, epoch in promised.items() if key in reserved and epoch > reserved[key].reserved
    ]
