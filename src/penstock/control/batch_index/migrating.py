"""Methods of the control plane for topics that become diskless or replicated.

`open_migration` stores a request. Brokers that copy partitions store their progress as participants
of the request (`join_migration`). `migrate_topic` or `replicate_topic` then changes the topic, and
deletes the request. `fence_topic` precedes `replicate_topic`.

`replicate_topic` moves the topic's batch index to an id that no topic has. Retention jobs delete it
later in steps, as they do after the deletion of a topic. The topic may become diskless again at
once.

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
    RunningMigration,
    TopicMigration,
    TopicReplication,
)
from penstock.control.batch_index.replicating_rules import Targets
from penstock.control.drivers.statements import Lock, Operation, operation
from penstock.control.epochs import operations as epochs
from penstock.control.metadata.images import StampedImage, image_operation
from penstock.control.metadata.operations import Metadata
from penstock.control.sink_commits import operations as sinks
from penstock.control.values import Topic


class TopicMigrations(Metadata):
    """Methods of `ControlPlane` for topics that become diskless or replicated."""

    @image_operation
    def open_migration(
        self, request: MigrationRequest, targets: Targets = ()
    ) -> Operation[tuple[MigrationRequest, StampedImage]]:
        """Store a request to make a topic diskless or replicated; return the topic's open request.

        If another live broker has an open request for the topic, that request is returned and
        stays. A diskless topic becomes replicated if `targets` is given: the future replicas of
        each partition.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            StaleTopic: the topic already is, or is not, diskless; or its partition count differs
                from `targets`.
            InvalidReplicas: a target is empty, or names a broker twice.
            UnknownTopic: no topic has this id.
        """
        known = yield from self._images.locked()
        found = yield from migrations.lock_request(request.topic_id)
        if found == request:
            return found, known
        first = migration_rules.check_request(known.image, request, found, diskless=bool(targets))
        if first is not None:
            return first, known
        yield migrations.delete_request(request.topic_id)
        yield migrations.write_request(*request)
        image = replicating_rules.order(known.image, request, targets) if targets else known.image
        return request, (yield from self._images.store(known, image))

    @operation(lock=Lock.SNAPSHOT)
    def running_migrations(self) -> Operation[list[RunningMigration]]:
        """Return all open requests and their participants."""
        return migrations.running()

    @operation()
    def join_migration(
        self, request: MigrationRequest, participant: MigrationParticipant
    ) -> Operation[None]:
        """Store a broker as participant of a request, replacing what it stored before.

        Raises:
            StaleMigration: the request is closed.
            MigrationRefused, InvalidCommit: as in `migrate_topic`, for this participant's
                partitions.
        """
        found = yield from migrations.lock_request(request.topic_id)
        migration_rules.check_participant(request, found, participant)
        yield migrations.write_participant(request.topic_id, participant)

    @image_operation
    def close_migration(self, request: MigrationRequest) -> Operation[tuple[None, StampedImage]]:
        """Delete a request, its participants and the topic's fence.

        A later commit under it is rejected.
        """
        known = yield from self._images.locked()
        if (yield from migrations.lock_request(request.topic_id)) != request:
            return None, known
        yield migrations.delete_request(request.topic_id)
        image = replicating_rules.without_order(known.image, request)
        return None, (yield from self._images.store(known, image))

    async def migrate_topic(self, migration: TopicMigration) -> Topic:
        """Make a local topic diskless, in one transaction.

        Stores its objects, extents, producers and configs, and raises the leader epoch of every
        partition. Includes the partitions of other brokers, which are participants of the request
        `migration_id`, and deletes the request. Returns the topic unchanged if it has become
        diskless by these objects before.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic has this id.
            StaleTopic: the topic's configs, partitions or leader epochs differ from those of the
                copies.
            StaleMigration: the request is closed.
            ObjectLeaseLost: as in `commit_object`.
            MigrationRefused: an exactly-once sink has an unfinished commit to the topic, too many
                rows would be stored, or a participating broker was restarted.
            InvalidCommit: the extents of a partition do not cover its log.
        """
        migration_rules.check_partitions(migration.topic_id, migration.partitions)

        def migrate() -> Operation[tuple[Topic, StampedImage]]:
            known = yield from self._images.locked()
            reserved = yield from _highest_reserved(known.topic(migration.topic_id))
            participants = migration_rules.all_participants(
                migration,
                (yield from migrations.lock_request(migration.topic_id)),
                (yield from migrations.participants(migration.topic_id)),
            )
            parts = [part for participant in participants for part in participant.partitions]
            written = migration_rules.objects_of(parts or migration.partitions)
            found = yield from objects.lock(
                [written_object.object_id for written_object in written]
            )
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
            return plan.topic, (yield from self._images.store(known, plan.image))

        return await self._apply(migrate)

    @image_operation
    def fence_topic(self, request: MigrationRequest) -> Operation[tuple[None, StampedImage]]:
        """Fence a diskless topic that becomes replicated: reject appends and DeleteRecords.

        The fence lasts until the request is closed. Retention may still raise log starts.

        Raises:
            StaleMigration: the request is closed.
            StaleBroker, UnknownTopic: as in `open_migration`.
            StaleTopic: partitions were added since the request, so they have no target replicas.
            MigrationRefused: an exactly-once sink has an unfinished commit to the topic.
        """
        known = yield from self._images.locked()
        found = yield from migrations.lock_request(request.topic_id)
        image = replicating_rules.fence(known.image, request, found, (yield from sinks.read_all()))
        return None, (yield from self._images.store(known, image))

    @image_operation
    def replicate_topic(
        self, replication: TopicReplication
    ) -> Operation[tuple[Topic, StampedImage]]:
        """Make a fenced diskless topic replicated: give its partitions their target replicas.

        Opens the leader epoch of the copied logs. Every target replica must be a FENCED participant
        of the request, except the caller, whose own participant need not be stored. Drops the
        topic's batch index. Returns a topic that is replicated already unchanged.

        Raises:
            StaleBroker: another incarnation owns the broker's id.
            UnknownTopic: no topic has this id.
            StaleTopic: the topic's configs are not the expected ones.
            StaleMigration: the request is closed.
            MigrationRefused: a target replica is not a FENCED participant, or was restarted since;
                or as in `fence_topic`.
            InvalidQuorum: `min.insync.replicas` is above the number of replicas.
        """
        known = yield from self._images.locked()
        plan = replicating_rules.plan_replication(
            known.image,
            replication,
            (yield from migrations.lock_request(replication.topic_id)),
            (yield from migrations.participants(replication.topic_id)),
            (yield from sinks.read_all()),
        )
        if not plan.epochs:
            return plan.topic, known
        yield from epochs.add_first(plan.epochs)
        yield partitions.retire(plan.topic.topic_id, replication.migration_id)
        yield migrations.delete_request(plan.topic.topic_id)
        return plan.topic, (yield from self._images.store(known, plan.image))


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
