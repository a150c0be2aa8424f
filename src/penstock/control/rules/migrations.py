"""Rules by which a topic becomes diskless or replicated: pure functions from copied logs to rows
and an image.

All implementations of the control plane share them.

Before the commit, the leaders of the partitions have stopped appends and copied their logs. The
commit checks that nothing was appended since: the incarnations of those brokers must still own
their ids, and the topic's configs, partitions and leader epochs must be unchanged. A commit by a
process that has died is therefore rejected, however late it arrives.

A new leader epoch of a replicated partition may be opened at the same time. If the epoch is opened
first, the commit is rejected. If the commit is first, the opening is rejected, because the
partition has no epochs any more. No record is acknowledged in between.

If several brokers lead partitions, each is stored as participant of a request. Any broker may
delete the request, and a commit without its request is rejected. A broker that has stopped appends
may therefore accept them again once the request is gone and the topic is still local.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.control.rules.diskless import DISKLESS_CONFIG, PartitionRow, adjoin, layout_totals
from penstock.control.rules.epochs import first_epoch, is_diskless
from penstock.control.rules.metadata import check_incarnation, with_topics
from penstock.control.values.diskless import (
    MigratedObject,
    MigratedPartition,
    MigrationParticipant,
    MigrationRequest,
    ObjectState,
    PartitionKey,
    TopicMigration,
    TopicReplication,
)
from penstock.control.values.epochs import PartitionEpoch
from penstock.control.values.errors import (
    InvalidCommit,
    InvalidReplicas,
    MigrationRefused,
    ObjectLeaseLost,
    StaleBroker,
    StaleMigration,
    StaleTopic,
    UnknownTopic,
)
from penstock.control.values.topics import MetadataImage, Partition, SinkCommit, Topic

# Rules by which a diskless topic becomes replicated: pure functions of three steps.
#
# | step   | partitions in the image                   | batch index                               |
# |--------|-------------------------------------------|-------------------------------------------|
# | order  | `target` has the future replicas          | unchanged                                 |
# | fence  | `move` is set, too                        | commits are rejected                      |
# | switch | have replicas and the next leader epoch   | is dropped                                |
#
# The brokers of `target` copy the records into logs, as batches of the next leader epoch: the
# *epoch of the copies*. No earlier log has that epoch, as diskless topics begin above all reserved
# epochs. Once all copies are complete and durable, the switch opens that epoch, as in a new topic.
# The first claim of a leader therefore finds the copies on all replicas, and they end where the
# index ended.
#
# Deleting the request cancels the order and the fence.


Targets = Sequence[tuple[int, ...]]
"""The future replicas of each partition, by partition index; the preferred leader is first."""


class ReplicationPlan(NamedTuple):
    """Changes that make a diskless topic replicated.

    `epochs` has the opened leader epochs. It is empty if the change was committed before.
    """

    image: MetadataImage
    topic: Topic
    epochs: Mapping[PartitionKey, PartitionEpoch]


def epoch_of_copies(row: Partition) -> int:
    """Return the leader epoch of the batches that brokers copy into a partition's logs."""
    return row.leader_epoch + 1


def order(image: MetadataImage, request: MigrationRequest, targets: Targets) -> MetadataImage:
    """Return the image after a request to make a diskless topic replicated.

    Its partitions get their target replicas. The fence of an earlier attempt is removed.

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
    rows = tuple([_made_replicated(row) for row in topic.partitions])
    changed = replace(topic, configs=dict(replication.configs), partitions=rows)
    epochs = {
        (topic.topic_id, row.index): first_epoch(image, row, replication.min_insync_replicas)
        for row in rows
    }
    return ReplicationPlan(with_topics(image, [changed]), changed, epochs)


def _made_replicated(row: Partition) -> Partition:
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


SWITCH_EXTENTS_MAX: Final = 100_000
"""Extents of a topic that becomes diskless (about 400 GB), stored in one transaction."""

SWITCH_PRODUCERS_MAX: Final = 100_000
"""Idempotent producers of a topic that becomes diskless."""

SWITCH_ABORTED_MAX: Final = 100_000
"""Aborted transactions of a topic that becomes diskless."""


class MigrationPlan(NamedTuple):
    """Changes of a migration. `rows` is empty if the migration was committed before."""

    image: MetadataImage
    topic: Topic
    rows: Mapping[PartitionKey, PartitionRow]
    partitions: tuple[MigratedPartition, ...] = ()

    @property
    def is_made(self) -> bool:
        return not self.rows

    @property
    def objects(self) -> list[tuple[int, int, int]]:
        """(id, bytes, number of extents) of each object, in the order of ids."""
        counts = {written.object_id: 0 for written in objects_of(self.partitions)}
        for part in self.partitions:
            for extent in part.extents:
                counts[extent.object_id] += 1
        return [(*written, counts[written.object_id]) for written in objects_of(self.partitions)]


def objects_of(partitions: Iterable[MigratedPartition]) -> list[MigratedObject]:
    return sorted([written for part in partitions for written in part.objects])


def check_request(
    image: MetadataImage,
    request: MigrationRequest,
    found: MigrationRequest | None,
    *,
    diskless: bool = False,
) -> MigrationRequest | None:
    """Return the open request `found` if another live broker owns it, else None.

    Raises the errors of `DisklessPlane.open_migration`.
    """
    check_incarnation(image, broker_id=request.broker_id, incarnation=request.incarnation)
    topic = image.topic_by_id(request.topic_id)
    if topic is None:
        raise UnknownTopic(request.topic_id)
    if is_diskless(topic) is not diskless:
        kinds = ("true", "false") if diskless else ("false", "true")
        raise StaleTopic(topic.name, DISKLESS_CONFIG, *kinds)
    if found is None or found.broker_id == request.broker_id:
        return None
    owner = image.broker(found.broker_id)
    return found if owner is not None and owner.incarnation == found.incarnation else None


def check_participant(
    request: MigrationRequest, found: MigrationRequest | None, participant: MigrationParticipant
) -> None:
    """Check that the request of a participant is open, and that its partitions are valid.

    Raises StaleMigration, and the errors of `check_partitions`.
    """
    if found is None or found.migration_id != request.migration_id:
        raise StaleMigration(request.topic_id)
    check_partitions(request.topic_id, participant.partitions)


def check_partitions(topic_id: UUID, partitions: Sequence[MigratedPartition]) -> None:
    """Check copied partitions.

    Raises MigrationRefused for too many rows, InvalidCommit for an invalid log.
    """
    extents = sum([len(part.extents) for part in partitions])
    if extents > SWITCH_EXTENTS_MAX:
        raise MigrationRefused(
            f"topic {topic_id} has {extents} extents, the limit is {SWITCH_EXTENTS_MAX}"
        )
    producers = sum([len(part.producers) for part in partitions])
    if producers > SWITCH_PRODUCERS_MAX:
        raise MigrationRefused(
            f"topic {topic_id} has {producers} idempotent producers, the limit is"
            f" {SWITCH_PRODUCERS_MAX}"
        )
    aborted = sum([len(part.aborted) for part in partitions])
    if aborted > SWITCH_ABORTED_MAX:
        raise MigrationRefused(
            f"topic {topic_id} has {aborted} aborted transactions, the limit is"
            f" {SWITCH_ABORTED_MAX}"
        )
    for part in partitions:
        flaw = _flaw(part)
        if flaw is not None:
            raise InvalidCommit(f"partition {part.partition} of topic {topic_id}: {flaw}")


def _flaw(part: MigratedPartition) -> str | None:
    start, end = part.log_start_offset, part.high_watermark
    extents = part.extents
    if not 0 <= start <= end:
        return f"the log start {start} is not between 0 and the high watermark {end}"
    if not extents:
        return None if start == end else f"no extent holds the offsets [{start}, {end})"
    held = (extents[0].base_offset, extents[-1].next_offset)
    if held[0] > start or held[1] != end:
        return f"the extents hold the offsets {held}, the log has [{start}, {end})"
    if not adjoin(extents):
        return "the extents do not adjoin"
    sizes = {written.object_id: written.size_bytes for written in part.objects}
    for extent in extents:
        fits = extent.byte_offset + extent.size_bytes <= sizes.get(extent.object_id, -1)
        totals = (extent.size_bytes, extent.next_offset - extent.base_offset)
        if not fits or extent.kind != "segment" or layout_totals(extent.layout) != totals:
            return f"the extent at offset {extent.base_offset} does not match its object"
    return None


def all_participants(
    migration: TopicMigration,
    request: MigrationRequest | None,
    stored: Iterable[MigrationParticipant],
) -> tuple[MigrationParticipant, ...]:
    own = MigrationParticipant(
        broker_id=migration.broker_id,
        incarnation=migration.incarnation,
        state="fenced",
        partitions=migration.partitions,
    )
    if migration.migration_id is None:
        return (own,)
    if request is None or request.migration_id != migration.migration_id:
        return ()
    others = [
        participant
        for participant in stored
        if participant.broker_id != own.broker_id and participant.state == "fenced"
    ]
    return (own, *others)


def plan_migration(
    image: MetadataImage,
    migration: TopicMigration,
    participants: Sequence[MigrationParticipant],
    *,
    states: Mapping[int, ObjectState],
    sinks: Iterable[SinkCommit],
    reserved: Mapping[int, int],
) -> MigrationPlan:
    """Return the changes that make a topic diskless.

    `states` has the states of the written objects that have a row. `reserved` has the highest
    reserved epoch of each replicated partition, by index. The new leader epochs are above these, in
    case the topic becomes replicated again. Raises the errors of `DisklessPlane.migrate_topic`.
    """
    check_incarnation(image, broker_id=migration.broker_id, incarnation=migration.incarnation)
    topic = image.topic_by_id(migration.topic_id)
    if topic is None:
        raise UnknownTopic(migration.topic_id)
    if topic.configs.get(DISKLESS_CONFIG) == "true":
        own = objects_of(migration.partitions)
        if all([states.get(written.object_id) == "committed" for written in own]):
            return MigrationPlan(image, topic, {})
        raise StaleTopic(topic.name, DISKLESS_CONFIG, "false", "true")
    if not participants:
        raise StaleMigration(migration.topic_id)
    _check_participants(image, topic, migration, participants)
    partitions = tuple(
        sorted(
            [part for participant in participants for part in participant.partitions],
            key=_partition,
        )
    )
    check_partitions(topic.topic_id, partitions)
    for written in objects_of(partitions):
        if states.get(written.object_id) != "pending":
            raise ObjectLeaseLost(written.object_id)
    check_sinks(topic, sinks)
    changed = replace(
        topic,
        configs=dict(migration.configs),
        partitions=tuple(
            [_made_diskless(row, reserved.get(row.index, 0)) for row in topic.partitions]
        ),
    )
    rows = {(topic.topic_id, part.partition): _row(part) for part in partitions}
    return MigrationPlan(with_topics(image, [changed]), changed, rows, partitions)


def _made_diskless(row: Partition, reserved: int) -> Partition:
    epoch = max(row.leader_epoch, reserved) + 1
    return replace(row, leader_epoch=epoch, target=(), move=0)


def _partition(part: MigratedPartition) -> int:
    return part.partition


def _check_participants(
    image: MetadataImage,
    topic: Topic,
    migration: TopicMigration,
    participants: Sequence[MigrationParticipant],
) -> None:
    if dict(topic.configs) != dict(migration.expected):
        raise StaleTopic(topic.name, "the config", dict(migration.expected), dict(topic.configs))
    expected = sorted(
        [
            (part.partition, participant.broker_id, part.leader_epoch)
            for participant in participants
            for part in participant.partitions
        ]
    )
    found = [(row.index, row.leader, row.leader_epoch) for row in topic.partitions]
    if expected != found:
        raise StaleTopic(topic.name, "(partition, leader, epoch)", expected, found)
    for participant in participants:
        try:
            check_incarnation(
                image, broker_id=participant.broker_id, incarnation=participant.incarnation
            )
        except StaleBroker as stale:
            raise MigrationRefused(
                f"topic {topic.name!r}: {stale} since it stopped appends: migrate the topic again"
            ) from stale


def _row(part: MigratedPartition) -> PartitionRow:
    size_bytes = sum([extent.size_bytes for extent in part.extents])
    begun = [
        producer.txn_first_offset
        for producer in part.producers.values()
        if producer.txn_first_offset >= 0
    ]
    return PartitionRow(
        0,
        part.log_start_offset,
        part.high_watermark,
        size_bytes,
        open_offset=min(begun, default=-1),
        aborted_offset=part.aborted[-1].last_offset if part.aborted else -1,
    )
