"""The metadata image: how operations load the newest one and store its successor.

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
from functools import partial, wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from penstock.base.errors import BugError
from penstock.control.drivers.statements import Lock, Method, Operation, OverDatabase, uuid_of
from penstock.control.epochs import statements as epochs
from penstock.control.epochs.rules import is_diskless, may_have_epochs
from penstock.control.metadata import statements
from penstock.control.values import EntityConfigs, MetadataImage, Partition, Topic

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
        return uuid_of((yield statements.read_stamp()))

    def locked(self) -> Operation[StampedImage]:
        """Lock the row of the newest image until the transaction ends; return the image."""
        return (yield from self.at(uuid_of((yield statements.lock_stamp()))))

    def read(self) -> Operation[StampedImage]:
        """Read the newest image in one snapshot, without reading topics that are cached."""
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
        for row in (yield statements.read_partitions(changed)):
            partitions[uuid_of(row[0])].append(statements.partition_of(row))
        for row in (yield statements.read_topics(changed)):
            topic_id = uuid_of(row[0])
            ordered = sorted(partitions[topic_id], key=lambda partition: partition.index)
            topics[topic_id] = stamps[topic_id], statements.topic_of(row, ordered)
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
        yield statements.write_topics([statements.topic_values(topic) for topic in written], stamp)
        yield statements.write_partitions(
            [
                statements.partition_values(topic, partition)
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
    return known is not None and may_have_epochs(known) and (topic is None or is_diskless(topic))


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
    yield statements.delete_entity_configs(gone)
    yield statements.write_entity_configs(
        [(*entity, json.dumps(dict(found))) for entity, found in new]
    )


def _store_brokers(known: MetadataImage, image: MetadataImage) -> Operation[None]:
    if image.brokers is not known.brokers:
        left = {broker.broker_id for broker in image.brokers}
        gone = [broker.broker_id for broker in known.brokers if broker.broker_id not in left]
        yield statements.unregister([(broker_id,) for broker_id in gone])
        for broker in image.brokers:
            if broker not in known.brokers:
                address = broker.broker_id, broker.host, broker.port, broker.rack
                yield statements.write_broker(
                    *address,
                    broker.incarnation,
                    broker.epoch,
                    json.dumps(broker.endpoints),
                    json.dumps(broker.roles),
                )
    for name, configs in image.broker_configs.items():
        if known.broker_configs.get(name) is not configs:
            yield statements.write_configs(name, json.dumps(dict(configs)))
