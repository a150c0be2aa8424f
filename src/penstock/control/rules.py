"""The commit rules: from one image and one change to the next image, or to a refusal.

Pure functions that every form of the control plane shares. Each returns the next image and the
value that the caller is answered with; none of them stores anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from uuid import UUID

from penstock.control.errors import (
    StaleBroker,
    StaleConfigs,
    StaleGroup,
    StaleTopic,
    TopicExists,
    UnknownTopic,
)
from penstock.control.values import Broker, MetadataImage, Partition, Topic


def register_broker(
    image: MetadataImage,
    *,
    broker_id: int,
    host: str,
    port: int,
    rack: str | None,
    incarnation: UUID,
    highest_epoch: int,
) -> tuple[MetadataImage, Broker]:
    """Register a broker in an epoch above `highest_epoch`, the highest its id ever had."""
    known = image.broker(broker_id)
    if (
        known is not None
        and known.incarnation == incarnation
        and (known.host, known.port, known.rack) == (host, port, rack)
    ):
        return image, known
    broker = Broker(
        broker_id=broker_id,
        host=host,
        port=port,
        rack=rack,
        incarnation=incarnation,
        epoch=highest_epoch + 1,
    )
    others = [other for other in image.brokers if other.broker_id != broker_id]
    brokers = tuple(sorted([*others, broker], key=lambda one: one.broker_id))
    return _next(image, brokers=brokers), broker


def unregister_broker(image: MetadataImage, *, broker_id: int, incarnation: UUID) -> MetadataImage:
    """Remove a broker; raises StaleBroker if a newer incarnation owns its id."""
    known = image.broker(broker_id)
    if known is None:
        return image
    if known.incarnation != incarnation:
        raise StaleBroker(broker_id)
    return _next(image, brokers=tuple(b for b in image.brokers if b.broker_id != broker_id))


def create_topic(
    image: MetadataImage,
    *,
    name: str,
    topic_id: UUID,
    partitions: Sequence[Sequence[int]],
    configs: Mapping[str, str],
    internal: bool,
) -> tuple[MetadataImage, Topic]:
    """Add a topic; raises TopicExists. Creating the very same topic again is answered alike."""
    known = image.topics.get(name)
    if known is not None:
        raise TopicExists(name)
    topic = Topic(
        topic_id=topic_id,
        name=name,
        configs=dict(configs),
        partitions=tuple(_partition(i, replicas) for i, replicas in enumerate(partitions)),
        internal=internal,
    )
    return with_topic(image, topic), topic


def delete_topic(image: MetadataImage, topic_id: UUID) -> tuple[MetadataImage, Topic]:
    """Remove a topic; raises UnknownTopic."""
    topic = _topic(image, topic_id)
    topics = {name: other for name, other in image.topics.items() if name != topic.name}
    return _next(image, topics=topics), topic


def create_partitions(
    image: MetadataImage, *, topic_id: UUID, expected_count: int, new: Sequence[Sequence[int]]
) -> tuple[MetadataImage, Topic]:
    """Add partitions; raises UnknownTopic or StaleTopic."""
    topic = _topic(image, topic_id)
    count = len(topic.partitions)
    if count != expected_count:
        raise StaleTopic(topic.name, "the partition count", expected_count, count)
    added = tuple(_partition(count + i, replicas) for i, replicas in enumerate(new))
    changed = dataclasses.replace(topic, partitions=topic.partitions + added)
    return with_topic(image, changed), changed


def set_topic_configs(
    image: MetadataImage,
    *,
    topic_id: UUID,
    configs: Mapping[str, str],
    expected: Mapping[str, str] | None,
) -> tuple[MetadataImage, Topic]:
    """Replace a topic's configs; raises UnknownTopic or StaleTopic."""
    topic = _topic(image, topic_id)
    if expected is not None and dict(expected) != dict(topic.configs):
        raise StaleTopic(topic.name, "the config", dict(expected), dict(topic.configs))
    changed = dataclasses.replace(topic, configs=dict(configs))
    return with_topic(image, changed), changed


def set_broker_configs(
    image: MetadataImage,
    *,
    broker: str,
    configs: Mapping[str, str],
    expected: Mapping[str, str] | None,
) -> MetadataImage:
    """Replace a broker's dynamic configs; raises StaleConfigs."""
    known = image.broker_configs.get(broker, {})
    if expected is not None and dict(expected) != dict(known):
        raise StaleConfigs(broker)
    return _next(image, broker_configs={**image.broker_configs, broker: dict(configs)})


def next_group_version(group_id: str, *, found: int, expected: int) -> int:
    """The version that a group's record gets; raises StaleGroup."""
    if found != expected:
        raise StaleGroup(group_id, expected, found)
    return found + 1


def with_topic(image: MetadataImage, topic: Topic) -> MetadataImage:
    """The image with one topic added or replaced."""
    return _next(image, topics={**image.topics, topic.name: topic})


def _next(image: MetadataImage, **changes: object) -> MetadataImage:
    return dataclasses.replace(image, version=image.version + 1, **changes)  # type: ignore[arg-type]


def _topic(image: MetadataImage, topic_id: UUID) -> Topic:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopic(topic_id)
    return topic


def _partition(index: int, replicas: Sequence[int]) -> Partition:
    return Partition(
        index=index,
        leader=replicas[0],
        leader_epoch=0,
        replicas=tuple(replicas),
        isr=tuple(replicas),
    )
