"""The rules by which a diskless topic gets replicas: who is to have them, a fence, the switch.

Pure functions, as in `rules.py`.

| step  | a partition's row                         | its batch index                            |
|-------|-------------------------------------------|--------------------------------------------|
| order | `target`: who is to have its log          | as always                                  |
| fence | `move` too                                | has its end: commits are refused           |
| switch| has replicas, and the next leader epoch   | is dropped                                 |

Brokers of the target copy what the index has into logs, with batches of the leader epoch that is to
come: the *epoch of the copies*, which no log of before has, as diskless topics begin above all that
were reserved. Once all have all of it durably, the epochs begin with that one, open and empty of
leaders, as those of a new topic do. So the first claim fences copies that have been acknowledged
by all of them, and finds its end where the index ended.

The order goes with the request, and so does the fence: who deletes the request calls both off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.control.batch_index.migration_values import (
    MigrationParticipant,
    MigrationRequest,
    TopicReplication,
)
from penstock.control.batch_index.rules import DISKLESS_CONFIG
from penstock.control.batch_index.values import PartitionKey
from penstock.control.epochs.rules import first_epoch, is_diskless
from penstock.control.epochs.values import PartitionEpoch
from penstock.control.errors import (
    InvalidReplicas,
    MigrationRefused,
    StaleMigration,
    StaleTopic,
    UnknownTopic,
)
from penstock.control.metadata.rules import check_incarnation, with_topics
from penstock.control.values import MetadataImage, Partition, SinkCommit, Topic

Targets = Sequence[tuple[int, ...]]
"""By partition, the brokers that are to have its log, the preferred leader first."""


class ReplicationPlan(NamedTuple):
    """What the switch writes; without `epochs` it was made already."""

    image: MetadataImage
    topic: Topic
    epochs: Mapping[PartitionKey, PartitionEpoch]


def epoch_of_copies(row: Partition) -> int:
    """The leader epoch of all batches of a diskless partition that is copied into logs."""
    return row.leader_epoch + 1


def order(image: MetadataImage, request: MigrationRequest, targets: Targets) -> MetadataImage:
    """The image in which a topic is to have replicas; a fence of an earlier attempt goes.

    Raises:
        StaleTopic: it has another number of partitions.
        InvalidReplicas: a target is none.
    """
    topic = _topic(image, request)
    if len(targets) != len(topic.partitions):
        raise StaleTopic(topic.name, "partitions", len(targets), len(topic.partitions))
    for target in targets:
        if not target or len(set(target)) != len(target) or min(target) < 0:
            raise InvalidReplicas(f"replicas {target[:16]}: must be broker ids, each once")
    rows = [
        replace(row, target=tuple(target), move=0)
        for row, target in zip(topic.partitions, targets, strict=True)
    ]
    return with_topics(image, [replace(topic, partitions=tuple(rows))])


def fence(
    image: MetadataImage,
    request: MigrationRequest,
    found: MigrationRequest | None,
    sinks: Iterable[SinkCommit],
) -> MetadataImage:
    """The image in which nothing is appended to a topic any more; the same one if it is so.

    Raises as `DisklessPlane.fence_topic`.
    """
    topic = _topic(image, request)
    if found != request:
        raise StaleMigration(request.topic_id)
    _check_targets(topic)
    check_sinks(topic, sinks)
    if all([row.move for row in topic.partitions]):
        return image
    rows = [replace(row, move=image.version + 1) for row in topic.partitions]
    return with_topics(image, [replace(topic, partitions=tuple(rows))])


def called_off(image: MetadataImage, request: MigrationRequest) -> MetadataImage:
    """The image without order and fence of a topic, if it has them still."""
    topic = image.topic_by_id(request.topic_id)
    if (
        topic is None
        or not is_diskless(topic)
        or not any([partition.target for partition in topic.partitions])
    ):
        return image
    rows = [replace(row, target=(), move=0) for row in topic.partitions]
    return with_topics(image, [replace(topic, partitions=tuple(rows))])


def check_sinks(topic: Topic, sinks: Iterable[SinkCommit]) -> None:
    """Raise MigrationRefused for an exactly-once sink with an unfinished commit to a topic."""
    for sink in sinks:
        if sink.state == "intent" and any(
            [target.topic_id == topic.topic_id for target in sink.targets]
        ):
            raise MigrationRefused(
                f"topic {topic.name!r}: query {sink.query_id!r} has not finished its commit of"
                f" batch {sink.batch_id}; ask again when it is done"
            )


def plan_replication(
    image: MetadataImage,
    replication: TopicReplication,
    found: MigrationRequest | None,
    participants: Sequence[MigrationParticipant],
    sinks: Iterable[SinkCommit],
) -> ReplicationPlan:
    """What the switch changes; raises as `DisklessPlane.replicate_topic`."""
    check_incarnation(image, broker_id=replication.broker_id, incarnation=replication.incarnation)
    topic = image.topic_by_id(replication.topic_id)
    if topic is None:
        raise UnknownTopic(replication.topic_id)
    if not is_diskless(topic):
        return ReplicationPlan(image, topic, {})
    fenced = all([row.move for row in topic.partitions])
    if found is None or found.migration_id != replication.migration_id or not fenced:
        raise StaleMigration(replication.topic_id)
    if dict(topic.configs) != dict(replication.expected):
        raise StaleTopic(topic.name, "the config", dict(replication.expected), dict(topic.configs))
    check_sinks(topic, sinks)
    _check_copies(topic, {replication.broker_id, *_holders(image, participants)})
    rows = tuple([_switched(row) for row in topic.partitions])
    changed = replace(topic, configs=dict(replication.configs), partitions=rows)
    epochs = {
        (topic.topic_id, row.index): first_epoch(image, row, replication.min_insync_replicas)
        for row in rows
    }
    return ReplicationPlan(with_topics(image, [changed]), changed, epochs)


def _switched(row: Partition) -> Partition:
    return replace(
        row,
        leader=row.target[0],
        leader_epoch=epoch_of_copies(row),
        replicas=row.target,
        isr=row.target,
        target=(),
        move=0,
    )


def _holders(image: MetadataImage, participants: Sequence[MigrationParticipant]) -> set[int]:
    """The brokers that have all they are to hold; a process that came later has thrown it away."""
    return {
        participant.broker_id
        for participant in participants
        if participant.state == "fenced"
        and (owner := image.broker(participant.broker_id)) is not None
        and owner.incarnation == participant.incarnation
    }


def _check_copies(topic: Topic, holders: Collection[int]) -> None:
    for row in topic.partitions:
        missing = [one for one in row.target if one not in holders]
        if missing:
            raise MigrationRefused(
                f"{topic.name}-{row.index}: brokers {missing} of {row.target}, which are to have"
                " its log, have not all of it; ask again"
            )


def _check_targets(topic: Topic) -> None:
    without = [row.index for row in topic.partitions if not row.target]
    if without:
        raise StaleTopic(topic.name, "partitions without an order", [], without)


def _topic(image: MetadataImage, request: MigrationRequest) -> Topic:
    """The topic, which must be diskless; raises UnknownTopic or StaleTopic."""
    check_incarnation(image, broker_id=request.broker_id, incarnation=request.incarnation)
    topic = image.topic_by_id(request.topic_id)
    if topic is None:
        raise UnknownTopic(request.topic_id)
    if not is_diskless(topic):
        raise StaleTopic(topic.name, DISKLESS_CONFIG, "true", "false")
    return topic
