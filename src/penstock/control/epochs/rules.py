"""Rules of epochs: effects and rejections of claims and openings. Pure functions.

A partition has a row with the highest reserved epoch and its claimant, and one for each opened
epoch:

    RECOVERING   reserved > newest opened epoch: its claimant determines the end of the open one
    OPEN         reserved = newest opened epoch: it has no end, and a leader
    SEALED       an epoch with an end, at which the next one starts

| state found by a claim                                     | result                              |
|------------------------------------------------------------|-------------------------------------|
| the claim's `above` is higher than the reserved epoch      | rejected: the database was set back |
| the same process reserved an epoch above it, unopened      | that epoch again                    |
| anything else                                              | reserved + 1                        |

| state found by an opening                                  | result                              |
|------------------------------------------------------------|-------------------------------------|
| the newest epoch equals the one to open                    | success: a repetition               |
| the reservation is another epoch or process                | rejected: a newer claim fenced it   |
| the reserved epoch is open, with other values              | rejected: an end is set once        |
| the end is below the start of the open epoch ¹             | rejected: starts never fall         |
| it has other replicas, of a cancelled order                | rejected: their copies may be gone  |
| anything else                                              | seals and opens, together           |

¹ except for an unclean election, after which epochs end at the end of the remaining log.

Epochs begin at 0, as Kafka's leader epochs do; -1 is none. The first one is open from the creation
of the topic on, for the leader's process that was registered then; after a restart it must claim.
Partitions with one replica, or of a diskless topic, have no rows here.

Source: fencing and quorums of BookKeeper's ledger recovery; Kafka's leader epochs (KIP-101).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import is_not
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.control.batch_index.rules import DISKLESS_CONFIG
from penstock.control.batch_index.values import PartitionKey
from penstock.control.epochs.values import (
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    PartitionEpoch,
    Reassignment,
    Reservation,
    Resignation,
)
from penstock.control.errors import (
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
from penstock.control.limits import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.control.metadata.rules import with_topics
from penstock.control.values import MetadataImage, Partition, Topic


def is_diskless(topic: Topic) -> bool:
    return topic.configs.get(DISKLESS_CONFIG) == "true"


def may_have_epochs(topic: Topic) -> bool:
    """Return whether a topic has partitions with several replicas, or had them."""
    return any([partition.has_epochs for partition in topic.partitions]) and not is_diskless(topic)


def ack_quorum(replicas: int, min_insync_replicas: int) -> int:
    """Return how many replicas must have a record: `min.insync.replicas`, and at least a majority.

    Raises:
        InvalidQuorum: `min.insync.replicas` exceeds the number of replicas.
    """
    if min_insync_replicas > replicas:
        raise InvalidQuorum(
            f"min.insync.replicas = {min_insync_replicas} is above the replication factor"
            f" {replicas}: nothing could be acknowledged"
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
    """Return the epoch that a claim gets (the reserved one if it is repeated), or a rejection."""
    if found is None or newest is None:
        return NotReplicated(*claim.key)
    if broker_id not in newest.replicas:
        return NotReplica(*claim.key, broker_id, newest.replicas)
    if claim.above > found.reserved:
        return DatabaseSetBack(
            f"epoch {claim.above} of partition {claim.partition} of topic {claim.topic_id} was"
            f" reserved, and the highest that the database knows of is {found.reserved}"
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
    """Return the opened epoch (the newest if repeated), or a rejection; `move` is ordered."""
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
        return StaleEpoch(*opening.key, opening.epoch, f"{found.reserved} is reserved")
    if found.reserved <= newest.epoch:
        return StaleEpoch(*opening.key, opening.epoch, "it is open, with other values")
    if opening.end_offset < newest.start_offset and not opening.unclean:
        return StaleEpoch(
            *opening.key,
            opening.epoch,
            f"it would start at {opening.end_offset}, the one before did at {newest.start_offset}",
        )
    if opening.move not in (0, move):
        reason = f"the order {opening.move} of replicas {opening.replicas} was cancelled"
        return StaleEpoch(*opening.key, opening.epoch, reason)
    return _refusal(opening, broker_id) or made


def opened(
    row: Partition, made: PartitionEpoch, opening: EpochOpening, version: int
) -> dict[str, Any]:
    """Return the image's values of a partition whose next epoch was opened in a version.

    Replicas that an unclean election excluded are ordered again: they return as new copies.
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
    """Return the image's values of a partition with ordered replicas, or a rejection.

    The same replicas in another order take effect at once. `move` numbers the order.
    """
    replicas = asked.replicas
    if replicas is None:
        return {"target": (), "move": 0} if row.move else NotReassigned(*asked.key)
    if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
        return InvalidReplicas(f"replicas {replicas[:16]}: must be broker ids, each once")
    if set(replicas) == set(row.replicas):
        isr = tuple([replica for replica in replicas if replica in row.isr])
        return {"replicas": replicas, "isr": isr, "target": (), "move": 0}
    return {} if replicas == row.target else {"target": replicas, "move": move}


def _refusal(opening: EpochOpening, leader: int) -> PenstockError | None:
    replicas, quorum = opening.replicas, opening.ack_quorum
    if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
        return InvalidReplicas(f"replicas {replicas[:16]}: must be broker ids, each once")
    if not len(replicas) // 2 < quorum <= len(replicas):
        return InvalidQuorum(
            f"ack quorum {quorum} of {len(replicas)} replicas: must be more than half of them"
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
            f"in-sync replicas {tuple(isr[:16])} of partition {key[1]}: must be of the placement"
            f" {tuple(replicas)}, each once, and the leader {leader} among them"
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
    """Return the image's values of a partition whose leader resigns, or a rejection."""
    if row is None or not row.has_epochs:
        return NotReplicated(*asked.key)
    if (row.leader, row.leader_epoch) != (broker_id, asked.epoch):
        reason = f"broker {row.leader} leads in epoch {row.leader_epoch}"
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
    """Return the image with changed partitions, in one version; the same if nothing differs."""
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
