"""The image of topics and brokers: how an operation comes to the newest one, and stores the next.

The image lies in memory, and its rows in the database, with one row that says which one it is: a
stamp is drawn with every change, so images of equal stamps are equal. An operation asks for that
row, under a lock that keeps others from changing it, and takes the image of this stamp; where
others changed something it reads the topics whose own stamps are new. Topics that did not change
are the same objects in all images.

An image is published once the commit that covers it is durable. One whose operation is over, and
not yet committed, serves other operations alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar
from uuid import UUID

from penstock.base.errors import BugError
from penstock.control.drivers.statements import Operation, uuid_of
from penstock.control.epochs import statements as epochs
from penstock.control.epochs.rules import is_diskless, may_have_epochs
from penstock.control.metadata import statements
from penstock.control.values import EntityConfigs, MetadataImage, Partition, Topic

T = TypeVar("T")
Rule = Callable[[MetadataImage], tuple[MetadataImage, T]]
"""From an image to the next one, or to the same one, and what the caller is answered."""


class StampedImage(NamedTuple):
    """An image, its stamp, and those of its topics."""

    image: MetadataImage
    stamp: UUID
    topics: Mapping[UUID, tuple[UUID, Topic]]
    """By topic id: the stamp of the topic's row, and what was in it."""
    entity_stamp: UUID | None
    """Of the image that changed the configs of entities last; None where none did."""

    def topic(self, topic_id: UUID) -> Topic | None:
        """The topic of an id."""
        found = self.topics.get(topic_id)
        return None if found is None else found[1]

    def partition(self, key: tuple[UUID, int]) -> Partition | None:
        """One partition of the topic of an id."""
        topic = self.topic(key[0])
        there = topic is not None and 0 <= key[1] < len(topic.partitions)
        return topic.partitions[key[1]] if topic is not None and there else None


class Images:
    """The newest images that are known, of which the published one is seen outside operations."""

    def __init__(self, stamp: Callable[[int], UUID]) -> None:
        """`stamp` draws that of a version; no two images that were committed have the same."""
        self._new_stamp = stamp
        self.published: StampedImage | None = None
        self.newest: StampedImage | None = None
        self.channel = ""
        self.notice = ""
        """What others are told of a change, and where, by databases that have others."""

    def publish(self, known: StampedImage | None) -> None:
        """Show an image whose commit is durable, unless a newer one is shown already."""
        shown = self.published
        if known is not None and (shown is None or shown.image.version < known.image.version):
            self.published = known

    def forget(self) -> None:
        """Know no image, as when the database is opened."""
        self.published = self.newest = None

    def known(self, stamp: UUID | None) -> StampedImage | None:
        """The image of a stamp, if it is one of the newest; which is that of no stamp."""
        if stamp is None:
            return self.newest or self.published
        for one in (self.newest, self.published):
            if one is not None and one.stamp == stamp:
                return one
        return None

    # What follows are parts of operations.

    def current(self) -> Operation[StampedImage]:
        """The image as the transaction sees it."""
        return (yield from self.at((yield from self.stamp())))

    def at(self, stamp: UUID | None) -> Operation[StampedImage]:
        """The image of a stamp that the transaction has read; as `known`, which reads nothing."""
        found = self.known(stamp)
        if found is None:
            found = self.newest = yield from self.read()
        return found

    def stamp(self) -> Operation[UUID]:
        """That of the image's row."""
        return uuid_of((yield statements.read_stamp()))

    def locked(self) -> Operation[StampedImage]:
        """The newest image, whose row is locked until the transaction ends."""
        return (yield from self.at(uuid_of((yield statements.lock_stamp()))))

    def read(self) -> Operation[StampedImage]:
        """The whole image, in a transaction that sees one state; what is known is not read."""
        version, cluster_epoch, cluster_id, stamp, found = yield statements.read_version()
        entity_stamp = None if found is None else uuid_of(found)
        topics = yield from self._read_topics()
        brokers = yield statements.read_brokers()
        configs = yield statements.read_configs()
        named = sorted((topic.name, topic) for _, topic in topics.values())
        image = MetadataImage(
            version=version,
            cluster_id=cluster_id,
            brokers=tuple([statements.broker_of(found) for found in brokers]),
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
        found = yield statements.read_entity_configs()
        return {(kind, name): json.loads(configs) for kind, name, configs in found}

    def _read_topics(self) -> Operation[dict[UUID, tuple[UUID, Topic]]]:
        last = self.newest or self.published
        known = {} if last is None else last.topics
        found = yield statements.read_stamps()
        stamps = {uuid_of(topic_id): uuid_of(stamp) for topic_id, stamp in found}
        topics = {
            topic_id: known[topic_id]
            for topic_id, stamp in stamps.items()
            if topic_id in known and known[topic_id][0] == stamp
        }
        changed = [(topic_id,) for topic_id in stamps if topic_id not in topics]
        partitions: dict[UUID, list[Partition]] = {topic_id: [] for (topic_id,) in changed}
        for one in (yield statements.read_partitions(changed)):
            partitions[uuid_of(one[0])].append(statements.partition_of(one))
        for one in (yield statements.read_topics(changed)):
            topic_id = uuid_of(one[0])
            ordered = sorted(partitions[topic_id], key=lambda partition: partition.index)
            topics[topic_id] = stamps[topic_id], statements.topic_of(one, ordered)
        return topics

    def change(
        self, make: Callable[[], Operation[tuple[T, StampedImage]]]
    ) -> Operation[tuple[T, StampedImage]]:
        """An operation that changes the image, which the next ones know from its end on."""
        answer, self.newest = yield from make()
        return answer, self.newest

    def apply(self, rule: Rule[T]) -> Operation[tuple[T, StampedImage]]:
        """Apply a rule to the newest image and store what comes of it; its answer and image."""
        known = yield from self.locked()
        image, answer = rule(known.image)
        return answer, (yield from self.store(known, image))

    def store(self, known: StampedImage, image: MetadataImage) -> Operation[StampedImage]:
        """Store the image that follows on one that was locked: the rows that differ."""
        if image is known.image:
            return known
        stamp = self._new_stamp(image.version)
        topics = yield from self._store_topics(known, image, stamp)
        yield from _store_brokers(known.image, image)
        entity_stamp = known.entity_stamp
        if image.entity_configs is not known.image.entity_configs:
            yield from _store_entities(known.image.entity_configs, image.entity_configs)
            yield statements.stamp_entity_configs(stamp)
            entity_stamp = stamp
        yield statements.write_version(
            image.version, image.cluster_epoch, stamp, self.channel, self.notice
        )
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
        yield statements.delete_offsets(renewed)
        yield statements.delete_pending_offsets(renewed)
        yield statements.delete_partitions(ids)
        yield statements.delete_topics(ids)
        ended = [(old[name].topic_id,) for name in names if _ends(old.get(name), new.get(name))]
        yield epochs.delete_epochs(ended)
        yield epochs.delete_partitions(ended)
        yield epochs.delete_losses(ended)
        yield statements.write_topics([statements.topic_values(one) for one in written], stamp)
        yield statements.write_partitions(
            [
                statements.partition_values(topic, one)
                for topic in written
                for one in _new_partitions(old.get(topic.name), topic)
            ]
        )
        if not names:
            return known.topics
        topics = dict(known.topics)
        for topic in gone:
            del topics[topic.topic_id]
        topics.update({topic.topic_id: (stamp, topic) for topic in written})
        return topics


def _changed_names(known: MetadataImage, image: MetadataImage) -> Collection[str]:
    """The topics that differ; all are compared where so many changed that it is not noted."""
    if image.origin is not known.origin:
        raise BugError("an image is stored that no rule made of the one before")
    names = image.changed_since(known)
    if names is not None:
        return names
    old, new = known.topics, image.topics
    changed = [name for name, topic in new.items() if old.get(name) is not topic]
    return [*changed, *(name for name in old if name not in new)]


def _ends(known: Topic | None, topic: Topic | None) -> bool:
    """Whether a topic that may have epochs is gone, or became diskless."""
    return known is not None and may_have_epochs(known) and (topic is None or is_diskless(topic))


def _new_partitions(known: Topic | None, topic: Topic) -> list[Partition]:
    """The partitions whose rows differ."""
    there = () if known is None else known.partitions
    return [
        one
        for index, one in enumerate(topic.partitions)
        if index >= len(there) or there[index] is not one
    ]


def _store_entities(known: EntityConfigs, configs: EntityConfigs) -> Operation[None]:
    gone = [entity for entity in known if entity not in configs]
    new = [(entity, found) for entity, found in configs.items() if known.get(entity) is not found]
    yield statements.delete_entity_configs(gone)
    yield statements.write_entity_configs(
        [(*entity, json.dumps(dict(found))) for entity, found in new]
    )


def _store_brokers(known: MetadataImage, image: MetadataImage) -> Operation[None]:
    if image.brokers is not known.brokers:
        left = {broker.broker_id for broker in image.brokers}
        gone = [one.broker_id for one in known.brokers if one.broker_id not in left]
        yield statements.unregister([(broker_id,) for broker_id in gone])
        for one in image.brokers:
            if one not in known.brokers:
                address = one.broker_id, one.host, one.port, one.rack
                yield statements.write_broker(
                    *address,
                    one.incarnation,
                    one.epoch,
                    json.dumps(one.endpoints),
                    json.dumps(one.roles),
                )
    for broker, configs in image.broker_configs.items():
        if known.broker_configs.get(broker) is not configs:
            yield statements.write_configs(broker, json.dumps(dict(configs)))
