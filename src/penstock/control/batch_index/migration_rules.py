"""Rules by which a topic becomes diskless: pure functions from copied logs to rows and an image.

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

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.control.batch_index.migration_values import (
    MigratedObject,
    MigratedPartition,
    MigrationParticipant,
    MigrationRequest,
    TopicMigration,
)
from penstock.control.batch_index.replicating_rules import check_sinks
from penstock.control.batch_index.rules import DISKLESS_CONFIG, PartitionRow, adjoin, layout_totals
from penstock.control.batch_index.values import ObjectState, PartitionKey
from penstock.control.epochs.rules import is_diskless
from penstock.control.errors import (
    InvalidCommit,
    MigrationRefused,
    ObjectLeaseLost,
    StaleBroker,
    StaleMigration,
    StaleTopic,
    UnknownTopic,
)
from penstock.control.metadata.rules import check_incarnation, with_topics
from penstock.control.values import MetadataImage, Partition, SinkCommit, Topic

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
        partitions=tuple([_switched(row, reserved.get(row.index, 0)) for row in topic.partitions]),
    )
    rows = {(topic.topic_id, part.partition): _row(part) for part in partitions}
    return MigrationPlan(with_topics(image, [changed]), changed, rows, partitions)


def _switched(row: Partition, reserved: int) -> Partition:
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
