"""Rules by which a diskless topic becomes replicated: pure functions of three steps.

| step   | partitions in the image                   | batch index                                 |
|--------|-------------------------------------------|---------------------------------------------|
| order  | `target` has the future replicas          | unchanged                                   |
| fence  | `move` is set, too                        | commits are rejected                        |
| switch | have replicas and the next leader epoch   | is dropped                                  |

The brokers of `target` copy the records into logs, as batches of the next leader epoch: the *epoch
of the copies*. No earlier log has that epoch, as diskless topics begin above all reserved epochs.
Once all copies are complete and durable, the switch opens that epoch, as in a new topic. The first
claim of a leader therefore finds the copies on all replicas, and they end where the index ended.

Deleting the request cancels the order and the fence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

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
"""The future replicas of each partition, by partition index; the preferred leader is first."""


class ReplicationPlan(NamedTuple):
    """Changes of the switch. `epochs` is empty if the switch was committed before."""

    image: MetadataImage
    topic: Topic
    epochs: Mapping[PartitionKey, PartitionEpoch]


def epoch_of_copies(row: Partition) -> int:
    """Return the leader epoch of the batches that brokers copy into a partition's logs."""
    return row.leader_epoch + 1


def order(image: MetadataImage, request: MigrationRequest, targets: Targets) -> MetadataImage:
    """Return the image with the target replicas; removes the fence of an earlier attempt.

    Raises:
        StaleTopic: the topic's number of partitions differs from `targets`.
        InvalidReplicas: a target is empty, or names a broker twice.
    """
    topic = _topic(image, request)
    if len(targets) != len(topic.partitions):
        raise StaleTopic(topic.name, "partitions", len(targets), len(topic.partitions))
    for target in targets:
        if not target or len(set(target)) != len(target) or min(target) < 0:
            raise InvalidReplicas(f"replicas {target[:16]} must be broker ids without repetition")
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
    """Return the image with the fenced topic. Raises the errors of `DisklessPlane.fence_topic`."""
    topic = _topic(image, request)
    if found != request:
        raise StaleMigration(request.topic_id)
    _check_targets(topic)
    check_sinks(topic, sinks)
    if all([row.move for row in topic.partitions]):
        return image
    rows = [replace(row, move=image.version + 1) for row in topic.partitions]
    return with_topics(image, [replace(topic, partitions=tuple(rows))])


def without_order(image: MetadataImage, request: MigrationRequest) -> MetadataImage:
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
    for sink in sinks:
        if sink.state == "intent" and any(
            [target.topic_id == topic.topic_id for target in sink.targets]
        ):
            raise MigrationRefused(
                f"topic {topic.name!r}: query {sink.query_id!r} has not finished its commit of"
                f" batch {sink.batch_id}. Retry after the commit."
            )


def plan_replication(
    image: MetadataImage,
    replication: TopicReplication,
    found: MigrationRequest | None,
    participants: Sequence[MigrationParticipant],
    sinks: Iterable[SinkCommit],
) -> ReplicationPlan:
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
    """Return brokers with complete copies. A restarted process has discarded its copies."""
    return {
        participant.broker_id
        for participant in participants
        if participant.state == "fenced"
        and (owner := image.broker(participant.broker_id)) is not None
        and owner.incarnation == participant.incarnation
    }


def _check_copies(topic: Topic, holders: Collection[int]) -> None:
    for row in topic.partitions:
        missing = [broker_id for broker_id in row.target if broker_id not in holders]
        if missing:
            raise MigrationRefused(
                f"{topic.name}-{row.index}: brokers {missing} of the target replicas {row.target}"
                " do not have a complete copy of the log. Retry the migration."
            )


def _check_targets(topic: Topic) -> None:
    without = [row.index for row in topic.partitions if not row.target]
    if without:
        raise StaleTopic(topic.name, "the list of partitions without target replicas", [], without)


def _topic(image: MetadataImage, request: MigrationRequest) -> Topic:
    check_incarnation(image, broker_id=request.broker_id, incarnation=request.incarnation)
    topic = image.topic_by_id(request.topic_id)
    if topic is None:
        raise UnknownTopic(request.topic_id)
    if not is_diskless(topic):
        raise StaleTopic(topic.name, DISKLESS_CONFIG, "true", "false")
    return topic
