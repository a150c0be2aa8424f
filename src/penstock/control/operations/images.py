"""The metadata image: how operations load the newest one and store its successor, and its tables.

The image is stored in rows of the database, and each process caches it in memory. A *stamp* is a
UUID that is generated for each new version of the image. One row has the stamp of the newest image.
The row of a topic has the stamp of the image that last changed it.

An operation reads the newest stamp, under a lock against changes. If the cached image has this
stamp, the operation uses it. Otherwise it reads the topics whose stamps are new. Unchanged topics
are the same objects in all images.

An image is published once its commit is durable. Before that, only operations see it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from penstock.base.errors import BugError
from penstock.control.drivers.statements import (
    Each,
    Lock,
    Method,
    Operation,
    OverDatabase,
    changed,
    row,
    rows,
    uuid_of,
    value,
)
from penstock.control.rules.epochs import is_diskless, may_have_epochs
from penstock.control.rules.metadata import is_linked
from penstock.control.values.diskless import PartitionKey
from penstock.control.values.epochs import AssignedEpoch, PartitionEpoch, PartitionLoss, Reservation
from penstock.control.values.topics import Broker, EntityConfigs, MetadataImage, Partition, Topic

# Statements for the tables of metadata, and conversion of their rows.
#
# Lists and maps (`configs`, `replicas`, `isr`) are JSON texts, which are read whole. The time of a
# broker's last renewal shows whether it is alive. SQLite has these times in a table of its own, in
# memory or in an unsynced file, so that a heartbeat waits for no disk. The first process that opens
# a SQLite database unregisters all brokers.


# The image

read_version = row("SELECT version, membership, cluster_id, stamp, entity_stamp FROM image_version")
read_stamp = value("SELECT stamp FROM image_version")
lock_stamp = value("SELECT stamp FROM image_version FOR UPDATE")
write_version = changed(
    "WITH changed AS (UPDATE image_version SET version = $1, membership = $2, stamp = $3"
    " RETURNING 1) SELECT pg_notify($4, $5) FROM changed",
    "UPDATE image_version SET version = $1, membership = $2, stamp = $3",
)
make_version = changed(
    "INSERT INTO image_version (only_row, cluster_id, version, membership, stamp)"
    " SELECT true, $1, 0, 0, $2"
    " WHERE NOT EXISTS (SELECT 1 FROM image_version)"
)
read_cluster_id = value("SELECT cluster_id FROM image_version")

# Topics and partitions

read_stamps = rows("SELECT topic_id, stamp FROM topics")
read_topics = Each(
    "rows",
    "SELECT topic_id, name, configs, internal, stamp FROM topics WHERE topic_id = ANY($1::uuid[])",
    sqlite="SELECT topic_id, name, configs, internal, stamp FROM topics WHERE topic_id = $1",
)
_PARTITIONS: Final = (
    "SELECT topic_id, number, leader, leader_epoch, replicas, isr, target, move FROM partitions"
)
read_partitions = Each(
    "rows",
    f"{_PARTITIONS} WHERE topic_id = ANY($1::uuid[])",
    sqlite=f"{_PARTITIONS} WHERE topic_id = $1",
)
write_topics = Each(
    "changed",
    "INSERT INTO topics SELECT n.*, $5"
    " FROM unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[]) AS n"
    " ON CONFLICT (topic_id) DO UPDATE SET configs = excluded.configs, stamp = excluded.stamp",
    sqlite="INSERT INTO topics VALUES ($1, $2, $3, $4, $5)"
    " ON CONFLICT (topic_id) DO UPDATE SET configs = excluded.configs, stamp = excluded.stamp",
)
write_partitions = Each(
    "changed",
    "INSERT INTO partitions SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[],"
    " $5::text[], $6::text[], $7::text[], $8::bigint[]) ON CONFLICT (topic_id, number) DO UPDATE"
    " SET leader = excluded.leader, leader_epoch = excluded.leader_epoch,"
    " replicas = excluded.replicas, isr = excluded.isr,"
    " target = excluded.target, move = excluded.move",
    sqlite="INSERT OR REPLACE INTO partitions VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
)
delete_partitions = Each(
    "changed",
    "DELETE FROM partitions WHERE topic_id = ANY($1::uuid[])",
    sqlite="DELETE FROM partitions WHERE topic_id = $1",
)
delete_topics = Each(
    "changed",
    "DELETE FROM topics WHERE topic_id = ANY($1::uuid[])",
    sqlite="DELETE FROM topics WHERE topic_id = $1",
)
delete_offsets = Each(
    "changed",
    "DELETE FROM group_offsets WHERE topic = ANY($1::text[])",
    sqlite="DELETE FROM group_offsets WHERE topic = $1",
)
delete_pending_offsets = Each(
    "changed",
    "DELETE FROM pending_offsets WHERE topic = ANY($1::text[])",
    sqlite="DELETE FROM pending_offsets WHERE topic = $1",
)

# Brokers

_OVERDUE: Final = (
    "SELECT broker_id FROM brokers WHERE registered AND renewed_ms <"
    " (SELECT renewed_ms FROM brokers WHERE broker_id = $2 AND registered) - $1 ORDER BY broker_id"
)
_OVERDUE_SQLITE: Final = (
    "SELECT broker_id FROM renewals JOIN brokers USING (broker_id) WHERE registered AND"
    " renewed_ms < (SELECT renewed_ms FROM renewals WHERE broker_id = $2) - $1 ORDER BY broker_id"
)
RENEWALS_SQLITE: Final = (
    "CREATE TABLE IF NOT EXISTS {place}.renewals"
    " (broker_id INTEGER PRIMARY KEY, renewed_ms INTEGER NOT NULL)"
)

read_brokers = rows(
    "SELECT broker_id, host, port, rack, incarnation, epoch, endpoints, roles FROM brokers"
    " WHERE registered ORDER BY broker_id"
)
read_incarnation = value("SELECT incarnation FROM brokers WHERE broker_id = $1 AND registered")
read_epoch = value("SELECT epoch FROM brokers WHERE broker_id = $1")
write_broker = changed(
    "INSERT INTO brokers VALUES ($1, $2, $3, $4, $5, $6, true, penstock_now_ms(), $7, $8)"
    " ON CONFLICT (broker_id) DO UPDATE SET host = excluded.host, port = excluded.port,"
    " rack = excluded.rack, incarnation = excluded.incarnation, epoch = excluded.epoch,"
    " registered = true, renewed_ms = excluded.renewed_ms, endpoints = excluded.endpoints,"
    " roles = excluded.roles",
    (
        "INSERT OR REPLACE INTO brokers VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8)",
        "INSERT OR REPLACE INTO renewals VALUES ($1, penstock_now_ms())",
    ),
)
renew_broker = changed(
    "UPDATE brokers SET renewed_ms = penstock_now_ms()"
    " WHERE broker_id = $1 AND incarnation = $2 AND registered",
    "UPDATE renewals SET renewed_ms = penstock_now_ms() WHERE broker_id = $1 AND EXISTS"
    " (SELECT 1 FROM brokers WHERE broker_id = $1 AND incarnation = $2 AND registered)",
)
read_overdue = rows(_OVERDUE, _OVERDUE_SQLITE)
lock_overdue = rows(f"{_OVERDUE} FOR UPDATE", _OVERDUE_SQLITE)
unregister = Each(
    "changed",
    "UPDATE brokers SET registered = false WHERE broker_id = ANY($1::int[])",
    sqlite="UPDATE brokers SET registered = 0 WHERE broker_id = $1",
)
unregister_all = changed("UPDATE brokers SET registered = false WHERE registered")

# Configs of brokers and entities, and producer ids

read_configs = rows("SELECT broker, configs FROM broker_configs")
write_configs = changed(
    "INSERT INTO broker_configs VALUES ($1, $2)"
    " ON CONFLICT (broker) DO UPDATE SET configs = excluded.configs"
)
read_entity_configs = rows("SELECT kind, name, configs FROM entity_configs ORDER BY kind, name")
stamp_entity_configs = changed("UPDATE image_version SET entity_stamp = $1")
write_entity_configs = Each(
    "changed",
    "INSERT INTO entity_configs SELECT * FROM unnest($1::text[], $2::text[], $3::text[])"
    " ON CONFLICT (kind, name) DO UPDATE SET configs = excluded.configs",
    sqlite="INSERT OR REPLACE INTO entity_configs VALUES ($1, $2, $3)",
)
delete_entity_configs = Each(
    "changed",
    "DELETE FROM entity_configs WHERE (kind, name) IN"
    " (SELECT * FROM unnest($1::text[], $2::text[]))",
    sqlite="DELETE FROM entity_configs WHERE kind = $1 AND name = $2",
)
_ADD_PRODUCER_IDS: Final = "UPDATE counters SET value = value + $1 WHERE name = 'next_producer_id'"
allocate_producer_ids = value(
    f"{_ADD_PRODUCER_IDS} RETURNING value",
    (_ADD_PRODUCER_IDS, "SELECT value FROM counters WHERE name = 'next_producer_id'"),
)


def broker_of(found: Any) -> Broker:
    broker_id, host, port, rack, incarnation, epoch, endpoints, roles = found
    return Broker(
        broker_id=broker_id,
        host=host,
        port=port,
        rack=rack,
        incarnation=uuid_of(incarnation),
        epoch=epoch,
        endpoints=tuple((name, host, port) for name, host, port in json.loads(endpoints)),
        roles=tuple(json.loads(roles)),
    )


def topic_of(found: Any, partitions: list[Partition]) -> Topic:
    topic_id, name, configs, internal, _ = found
    return Topic(
        topic_id=uuid_of(topic_id),
        name=name,
        configs=json.loads(configs),
        partitions=tuple(partitions),
        internal=bool(internal),
    )


def partition_of(found: Any) -> Partition:
    _, number, leader, leader_epoch, replicas, isr, target, move = found
    return Partition(
        index=number,
        leader=leader,
        leader_epoch=leader_epoch,
        replicas=broker_ids(replicas),
        isr=broker_ids(isr),
        target=broker_ids(target),
        move=move,
    )


@lru_cache(maxsize=1024)
def broker_ids(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text))


def topic_values(topic: Topic) -> tuple[Any, ...]:
    return topic.topic_id, topic.name, json.dumps(dict(topic.configs)), topic.internal


def partition_values(topic: Topic, one: Partition) -> tuple[Any, ...]:
    return (
        topic.topic_id,
        one.index,
        one.leader,
        one.leader_epoch,
        json.dumps(one.replicas),
        json.dumps(one.isr),
        json.dumps(one.target),
        one.move,
    )


# Statements for the tables of replicated partitions, and conversion of their rows.
#
# `replicated_partitions` has the highest reserved epochs, `partition_epochs` the opened ones. The
# constraints of the second table enforce safety: quorums, ends not below starts, and one open epoch
# per partition.


_RESERVATION: Final = (
    "r.reserved, r.claimant, r.incarnation, (SELECT max(e.epoch) FROM partition_epochs e"
    " WHERE e.topic_id = r.topic_id AND e.number = r.number)"
)
_OF_KEY: Final = (
    f"SELECT $3, {_RESERVATION} FROM replicated_partitions r"  # noqa: S608  (fixed, as all)
    " WHERE r.topic_id = $1 AND r.number = $2"
)
_OF_KEYS: Final = (
    f"SELECT k.place, {_RESERVATION} FROM unnest($1::uuid[], $2::int[], $3::int[])"  # noqa: S608
    " AS k (topic_id, number, place)"
    " JOIN replicated_partitions r ON r.topic_id = k.topic_id AND r.number = k.number"
)
_EPOCH: Final = (
    "e.epoch, e.start_offset, e.end_offset, e.replicas, e.ack_quorum, e.leader, e.incarnation"
)

read = Each("rows", _OF_KEYS, sqlite=_OF_KEY)
"""Takes rows of (topic id, partition, number); returns (number, reservation)."""
lock = Each("rows", f"{_OF_KEYS} ORDER BY r.topic_id, r.number FOR UPDATE OF r", sqlite=_OF_KEY)
reserve = Each(
    "changed",
    "UPDATE replicated_partitions r SET reserved = n.reserved, claimant = $4, incarnation = $5"
    " FROM unnest($1::uuid[], $2::int[], $3::int[]) AS n (topic_id, number, reserved)"
    " WHERE r.topic_id = n.topic_id AND r.number = n.number AND r.reserved < n.reserved",
    sqlite="UPDATE replicated_partitions SET reserved = $3, claimant = $4, incarnation = $5"
    " WHERE topic_id = $1 AND number = $2 AND reserved < $3",
)
add_partitions = Each(
    "changed",
    "INSERT INTO replicated_partitions"
    " SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::uuid[])",
    sqlite="INSERT INTO replicated_partitions VALUES ($1, $2, $3, $4, $5)",
)
newest_epochs = Each(
    "rows",
    f"SELECT k.place, {_EPOCH} FROM unnest($1::uuid[], $2::int[], $3::int[])"  # noqa: S608
    " AS k (topic_id, number, place) CROSS JOIN LATERAL (SELECT * FROM partition_epochs o"
    " WHERE o.topic_id = k.topic_id AND o.number = k.number AND o.epoch < $4"
    " ORDER BY o.epoch DESC LIMIT $5) e",
    sqlite=f"SELECT $3, {_EPOCH} FROM partition_epochs e"  # noqa: S608
    " WHERE e.topic_id = $1 AND e.number = $2 AND e.epoch < $4 ORDER BY e.epoch DESC LIMIT $5",
)
"""Takes rows of (topic id, partition, number), a bound, and a limit per partition.

Returns rows of (number, epoch) with epochs below the bound.
"""
seal = Each(
    "changed",
    "UPDATE partition_epochs e SET end_offset = n.end_offset"
    " FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bigint[])"
    " AS n (topic_id, number, epoch, end_offset) WHERE e.topic_id = n.topic_id"
    " AND e.number = n.number AND e.epoch = n.epoch AND e.end_offset IS NULL",
    sqlite="UPDATE partition_epochs SET end_offset = $4"
    " WHERE topic_id = $1 AND number = $2 AND epoch = $3 AND end_offset IS NULL",
)
add_epochs = Each(
    "changed",
    "INSERT INTO partition_epochs (topic_id, number, epoch, start_offset, end_offset, replicas,"
    " ack_quorum, leader, incarnation) SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[],"
    " $4::bigint[], $5::bigint[], $6::text[], $7::int[], $8::int[], $9::uuid[])",
    sqlite="INSERT INTO partition_epochs (topic_id, number, epoch, start_offset, end_offset,"
    " replicas, ack_quorum, leader, incarnation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
)

assigned = rows(
    f"SELECT e.topic_id, e.number, {_EPOCH} FROM partition_epochs e"  # noqa: S608
    " WHERE (e.topic_id, e.number, e.epoch) > ($1, $2, $3)"
    " AND e.replicas::jsonb @> to_jsonb($4::int) ORDER BY e.topic_id, e.number, e.epoch LIMIT $5",
    f"SELECT e.topic_id, e.number, {_EPOCH} FROM partition_epochs e"  # noqa: S608
    " WHERE (e.topic_id, e.number, e.epoch) > ($1, $2, $3)"
    " AND EXISTS (SELECT 1 FROM json_each(e.replicas) WHERE value = $4)"
    " ORDER BY e.topic_id, e.number, e.epoch LIMIT $5",
)
shorten = Each(
    "changed",
    "UPDATE partition_epochs e SET start_offset = least(e.start_offset, n.until),"
    " end_offset = CASE WHEN e.end_offset > n.until THEN n.until ELSE e.end_offset END"
    " FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS n (topic_id, number, until)"
    " WHERE e.topic_id = n.topic_id AND e.number = n.number"
    " AND (e.start_offset > n.until OR e.end_offset > n.until)",
    sqlite="UPDATE partition_epochs SET start_offset = min(start_offset, $3),"
    " end_offset = min(end_offset, $3)"
    " WHERE topic_id = $1 AND number = $2 AND (start_offset > $3 OR end_offset > $3)",
)
"""Ends earlier epochs at an offset after an unclean election.

Takes rows of (topic id, partition, offset).
"""
add_losses = Each(
    "changed",
    "INSERT INTO partition_losses SELECT n.*, penstock_now_ms() FROM unnest($1::uuid[], $2::int[],"
    " $3::int[], $4::int[], $5::bigint[], $6::int[], $7::text[]) AS n",
    sqlite="INSERT INTO partition_losses VALUES ($1, $2, $3, $4, $5, $6, $7, penstock_now_ms())",
)
"""Takes rows of (topic id, partition, epoch, sealed epoch, offset, broker, missing replicas)."""
read_losses = rows(
    "SELECT topic_id, number, epoch, sealed, from_offset, broker, missing, at_ms"
    " FROM partition_losses ORDER BY at_ms DESC, topic_id, number LIMIT $1"
)
delete_losses = Each("changed", "DELETE FROM partition_losses WHERE topic_id = ANY($1::uuid[])")
delete_epochs = Each("changed", "DELETE FROM partition_epochs WHERE topic_id = ANY($1::uuid[])")
delete_partition_epochs = Each(
    "changed", "DELETE FROM replicated_partitions WHERE topic_id = ANY($1::uuid[])"
)
forget_epochs = Each(
    "changed",
    "DELETE FROM partition_epochs"
    " WHERE (topic_id, number) IN (SELECT * FROM unnest($1::uuid[], $2::int[]))",
    sqlite="DELETE FROM partition_epochs WHERE topic_id = $1 AND number = $2",
)
"""Takes rows of (topic id, partition)."""


def reservation_of(found: Any) -> Reservation:
    _, reserved, claimant, incarnation, opened = found
    return Reservation(reserved, claimant, _process(incarnation), opened)


def epoch_of(found: Any) -> PartitionEpoch:
    epoch, start, end, replicas, quorum, leader, incarnation = found[-7:]
    placement, process = broker_ids(replicas), _process(incarnation)
    return PartitionEpoch(epoch, start, end, placement, quorum, leader, process)


def _process(incarnation: Any) -> UUID | None:
    return None if incarnation is None else uuid_of(incarnation)


def loss_of(found: Any) -> PartitionLoss:
    topic_id, number, epoch, sealed, offset, broker, missing, at_ms = found
    replicas = broker_ids(missing)
    return PartitionLoss(uuid_of(topic_id), number, epoch, sealed, offset, broker, replicas, at_ms)


def assigned_of(found: Any) -> AssignedEpoch:
    return AssignedEpoch(uuid_of(found[0]), found[1], epoch_of(found))


def epoch_row(key: PartitionKey, one: PartitionEpoch) -> tuple[Any, ...]:
    offsets, replicas = (one.start_offset, one.end_offset), json.dumps(one.replicas)
    return *key, one.epoch, *offsets, replicas, one.ack_quorum, one.leader, one.incarnation


T = TypeVar("T")
P = ParamSpec("P")
Owner = TypeVar("Owner", bound="OverImages")
Rule = Callable[[MetadataImage], tuple[MetadataImage, T]]
"""Function that takes an image and returns the next image, or the same one, and a result."""


class StampedImage(NamedTuple):
    """An image, its stamp, and the stamps of its topics."""

    image: MetadataImage
    stamp: UUID
    topics: Mapping[UUID, tuple[UUID, Topic]]
    """Stamp and topic of each row, by topic id."""
    entity_stamp: UUID | None
    """Stamp of the image that last changed entity configs, or None."""

    def topic(self, topic_id: UUID) -> Topic | None:
        found = self.topics.get(topic_id)
        return None if found is None else found[1]

    def partition(self, key: tuple[UUID, int]) -> Partition | None:
        topic = self.topic(key[0])
        there = topic is not None and 0 <= key[1] < len(topic.partitions)
        return topic.partitions[key[1]] if topic is not None and there else None


class Images:
    """The newest images that this process knows.

    Outside of operations, only `published` is used.
    """

    def __init__(self, stamp: Callable[[int], UUID]) -> None:
        """`stamp` generates the stamp of a version. No two committed images have the same stamp."""
        self._new_stamp = stamp
        self.published: StampedImage | None = None
        self.newest: StampedImage | None = None
        self.channel = ""
        self.notice = ""
        """Text and channel of the notice that tells other brokers of a change; empty in SQLite."""

    def publish(self, known: StampedImage | None) -> None:
        shown = self.published
        if known is not None and (shown is None or shown.image.version < known.image.version):
            self.published = known

    def forget(self) -> None:
        self.published = self.newest = None

    def known(self, stamp: UUID | None) -> StampedImage | None:
        """Return the cached image with this stamp, or None.

        Without a stamp, return the newest image.
        """
        if stamp is None:
            return self.newest or self.published
        for image in (self.newest, self.published):
            if image is not None and image.stamp == stamp:
                return image
        return None

    # The methods below are parts of operations.

    def current(self) -> Operation[StampedImage]:
        return (yield from self.at((yield from self.stamp())))

    def at(self, stamp: UUID | None) -> Operation[StampedImage]:
        found = self.known(stamp)
        if found is None:
            found = self.newest = yield from self.read()
        return found

    def stamp(self) -> Operation[UUID]:
        return uuid_of((yield read_stamp()))

    def locked(self) -> Operation[StampedImage]:
        """Lock the row of the newest image until the transaction ends; return the image."""
        return (yield from self.at(uuid_of((yield lock_stamp()))))

    def read(self) -> Operation[StampedImage]:
        """Read the newest image in one snapshot, without reading topics that are cached."""
        version, cluster_epoch, cluster_id, stamp, found = yield read_version()
        entity_stamp = None if found is None else uuid_of(found)
        topics = yield from self._read_topics()
        brokers = yield read_brokers()
        configs = yield read_configs()
        named = sorted((topic.name, topic) for _, topic in topics.values())
        image = MetadataImage(
            version=version,
            cluster_id=cluster_id,
            brokers=tuple([broker_of(found) for found in brokers]),
            topics=dict(named),
            broker_configs={broker: json.loads(text) for broker, text in configs},
            entity_configs=(yield from self._read_entities(entity_stamp)),
            cluster_epoch=cluster_epoch,
        )
        return StampedImage(image, uuid_of(stamp), topics, entity_stamp)

    def _read_entities(self, stamp: UUID | None) -> Operation[EntityConfigs]:
        last = self.newest or self.published
        if last is not None and last.entity_stamp == stamp:
            return last.image.entity_configs
        found = yield read_entity_configs()
        return {(kind, name): json.loads(configs) for kind, name, configs in found}

    def _read_topics(self) -> Operation[dict[UUID, tuple[UUID, Topic]]]:
        last = self.newest or self.published
        known = {} if last is None else last.topics
        found = yield read_stamps()
        stamps = {uuid_of(topic_id): uuid_of(stamp) for topic_id, stamp in found}
        topics = {
            topic_id: known[topic_id]
            for topic_id, stamp in stamps.items()
            if topic_id in known and known[topic_id][0] == stamp
        }
        changed = [(topic_id,) for topic_id in stamps if topic_id not in topics]
        partitions: dict[UUID, list[Partition]] = {topic_id: [] for (topic_id,) in changed}
        for stored in (yield read_partitions(changed)):
            partitions[uuid_of(stored[0])].append(partition_of(stored))
        for stored in (yield read_topics(changed)):
            topic_id = uuid_of(stored[0])
            ordered = sorted(partitions[topic_id], key=lambda partition: partition.index)
            topics[topic_id] = stamps[topic_id], topic_of(stored, ordered)
        return topics

    def apply(self, rule: Rule[T]) -> Operation[tuple[T, StampedImage]]:
        """Apply a rule to the newest image, store the next image, and return (result, image)."""
        known = yield from self.locked()
        image, answer = rule(known.image)
        return answer, (yield from self.store(known, image))

    def store(self, known: StampedImage, image: MetadataImage) -> Operation[StampedImage]:
        """Store the rows in which `image` differs from the locked image `known`."""
        if image is known.image:
            return known
        stamp = self._new_stamp(image.version)
        topics = yield from self._store_topics(known, image, stamp)
        yield from _store_brokers(known.image, image)
        entity_stamp = known.entity_stamp
        if image.entity_configs is not known.image.entity_configs:
            yield from _store_entities(known.image.entity_configs, image.entity_configs)
            yield stamp_entity_configs(stamp)
            entity_stamp = stamp
        yield write_version(image.version, image.cluster_epoch, stamp, self.channel, self.notice)
        return StampedImage(image, stamp, topics, entity_stamp)

    def _store_topics(
        self, known: StampedImage, image: MetadataImage, stamp: UUID
    ) -> Operation[Mapping[UUID, tuple[UUID, Topic]]]:
        names = _changed_names(known.image, image)
        old, new = known.image.topics, image.topics
        written = [new[name] for name in names if name in new]
        added = [topic.name for topic in written if topic.name not in old]
        gone = [old[name] for name in names if name not in new]
        ids = [(topic.topic_id,) for topic in gone]
        renewed = [(name,) for name in added] + [(topic.name,) for topic in gone]
        yield delete_offsets(renewed)
        yield delete_pending_offsets(renewed)
        yield delete_partitions(ids)
        yield delete_topics(ids)
        ended = [(old[name].topic_id,) for name in names if _ends(old.get(name), new.get(name))]
        yield delete_epochs(ended)
        yield delete_partition_epochs(ended)
        yield delete_losses(ended)
        yield write_topics([topic_values(topic) for topic in written], stamp)
        yield write_partitions(
            [
                partition_values(topic, partition)
                for topic in written
                for partition in _new_partitions(old.get(topic.name), topic)
            ]
        )
        if not names:
            return known.topics
        topics = dict(known.topics)
        for topic in gone:
            del topics[topic.topic_id]
        topics.update({topic.topic_id: (stamp, topic) for topic in written})
        return topics


class OverImages(OverDatabase):
    """Base of the parts of the control plane whose operations read or change the image."""

    _images: Images

    @abstractmethod
    async def image(self) -> MetadataImage:
        """Return the newest committed image, which is the same object until something changes."""

    @abstractmethod
    def _publish(self, image: StampedImage) -> None: ...
    async def _apply(self, make: Callable[[], Operation[tuple[T, StampedImage]]]) -> T:
        """Run an operation that changes the image, publish the image, and return the result."""

        def change() -> Operation[tuple[T, StampedImage]]:
            answer, self._images.newest = yield from make()
            return answer, self._images.newest

        answer, image = await self._database.change(change, lock=Lock.METADATA)
        self._publish(image)
        return answer


def image_operation(
    make: Callable[Concatenate[Owner, P], Operation[tuple[T, StampedImage]]],
) -> Method[Owner, P, T]:
    """Decorate an operation that changes the image, as a method that returns its result."""

    @wraps(make)
    async def method(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await owner._apply(partial(make, owner, *args, **kwargs))

    return method


def _changed_names(known: MetadataImage, image: MetadataImage) -> Collection[str]:
    """Return the names of topics that differ between two images.

    Compares all topics if the image's record of changes does not reach back to `known`.
    """
    if image.origin is not known.origin:
        raise BugError("the image to store was not derived from the locked image")
    names = image.changed_since(known)
    if names is not None:
        return names
    old, new = known.topics, image.topics
    changed = [name for name, topic in new.items() if old.get(name) is not topic]
    return [*changed, *(name for name in old if name not in new)]


def _ends(known: Topic | None, topic: Topic | None) -> bool:
    """Return whether a topic loses its leader epochs: deleted, diskless from now on, or linked."""
    if known is None or not may_have_epochs(known):
        return False
    return topic is None or is_diskless(topic) or is_linked(topic)


def _new_partitions(known: Topic | None, topic: Topic) -> list[Partition]:
    there = () if known is None else known.partitions
    return [
        partition
        for index, partition in enumerate(topic.partitions)
        if index >= len(there) or there[index] is not partition
    ]


def _store_entities(known: EntityConfigs, configs: EntityConfigs) -> Operation[None]:
    gone = [entity for entity in known if entity not in configs]
    new = [(entity, found) for entity, found in configs.items() if known.get(entity) is not found]
    yield delete_entity_configs(gone)
    yield write_entity_configs([(*entity, json.dumps(dict(found))) for entity, found in new])


def _store_brokers(known: MetadataImage, image: MetadataImage) -> Operation[None]:
    if image.brokers is not known.brokers:
        left = {broker.broker_id for broker in image.brokers}
        gone = [broker.broker_id for broker in known.brokers if broker.broker_id not in left]
        yield unregister([(broker_id,) for broker_id in gone])
        for broker in image.brokers:
            if broker not in known.brokers:
                address = broker.broker_id, broker.host, broker.port, broker.rack
                yield write_broker(
                    *address,
                    broker.incarnation,
                    broker.epoch,
                    json.dumps(broker.endpoints),
                    json.dumps(broker.roles),
                )
    for name, configs in image.broker_configs.items():
        if known.broker_configs.get(name) is not configs:
            yield write_configs(name, json.dumps(dict(configs)))
