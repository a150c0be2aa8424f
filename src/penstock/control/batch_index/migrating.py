"""Operations that make a local topic diskless: requests, participants, and the migration itself.

Locks are taken in the order of all diskless transactions: metadata, a topic's migration, objects,
partitions.
"""

from __future__ import annotations

from penstock.control.batch_index import (
    aborted,
    extents,
    migration_rules,
    migrations,
    objects,
    partitions,
    replicating_rules,
)
from penstock.control.batch_index.migration_values import (
    MigrationParticipant,
    MigrationRequest,
    TopicMigration,
)
from penstock.control.batch_index.replicating_rules import Targets
from penstock.control.drivers.statements import Operation
from penstock.control.epochs import operations as epochs
from penstock.control.metadata.images import Images, StampedImage
from penstock.control.sink_commits import operations as sinks
from penstock.control.values import Topic


def open_migration(
    images: Images, request: MigrationRequest, targets: Targets
) -> Operation[tuple[MigrationRequest, StampedImage]]:
    """Store a request; it replaces an earlier one of the topic if that one's broker is gone."""
    known = yield from images.locked()
    found = yield from migrations.lock_request(request.topic_id)
    if found == request:
        return found, known
    first = migration_rules.check_request(known.image, request, found, diskless=bool(targets))
    if first is not None:
        return first, known
    yield migrations.delete_request(request.topic_id)
    yield migrations.write_request(*request)
    image = replicating_rules.order(known.image, request, targets) if targets else known.image
    return request, (yield from images.store(known, image))


def join_migration(request: MigrationRequest, participant: MigrationParticipant) -> Operation[None]:
    found = yield from migrations.lock_request(request.topic_id)
    migration_rules.check_participant(request, found, participant)
    yield migrations.write_participant(request.topic_id, participant)


def close_migration(
    images: Images, request: MigrationRequest
) -> Operation[tuple[None, StampedImage]]:
    known = yield from images.locked()
    if (yield from migrations.lock_request(request.topic_id)) != request:
        return None, known
    yield migrations.delete_request(request.topic_id)
    image = replicating_rules.without_order(known.image, request)
    return None, (yield from images.store(known, image))


def migrate_topic(
    images: Images, migration: TopicMigration
) -> Operation[tuple[Topic, StampedImage]]:
    known = yield from images.locked()
    reserved = yield from _highest_reserved(known.topic(migration.topic_id))
    participants = migration_rules.all_participants(
        migration,
        (yield from migrations.lock_request(migration.topic_id)),
        (yield from migrations.participants(migration.topic_id)),
    )
    parts = [part for participant in participants for part in participant.partitions]
    written = migration_rules.objects_of(parts or migration.partitions)
    found = yield from objects.lock([written_object.object_id for written_object in written])
    plan = migration_rules.plan_migration(
        known.image,
        migration,
        participants,
        states={object_id: object_row.state for object_id, object_row in found.items()},
        sinks=(yield from sinks.read_all()),
        reserved=reserved,
    )
    if plan.is_made:
        return plan.topic, known
    yield from _write(plan)
    yield migrations.delete_request(migration.topic_id)
    return plan.topic, (yield from images.store(known, plan.image))


def _highest_reserved(topic: Topic | None) -> Operation[dict[int, int]]:
    keys = (
        []
        if topic is None
        else [(topic.topic_id, partition.index) for partition in topic.partitions]
    )
    found = yield from epochs.reservations(keys, lock=True)
    return {index: reservation.reserved for (_, index), reservation in found.items()}


def _write(plan: migration_rules.MigrationPlan) -> Operation[None]:
    yield objects.write_committed(
        [
            (object_id, "committed", "segment", size_bytes, references)
            for object_id, size_bytes, references in plan.objects
        ]
    )
    found = yield from partitions.lock_or_add(plan.rows)
    ids = {key: row.partition_id for key, row in found.items()}
    yield partitions.write_rows([(ids[key], *row[1:]) for key, row in plan.rows.items()])
    now_ms: int = yield objects.now()
    for part in plan.partitions:
        partition_id = ids[plan.topic.topic_id, part.partition]
        yield aborted.insert(aborted.rows_of(partition_id, part.aborted))
        yield extents.insert(extents.rows_of(partition_id, part.extents))
        yield partitions.write_producers(
            [
                partitions.producer_row(partition_id, producer_id, state._replace(seen_ms=now_ms))
                for producer_id, state in part.producers.items()
            ]
        )
