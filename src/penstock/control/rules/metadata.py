"""Rules of metadata: pure functions that take an image and a change, and return the next image."""

from __future__ import annotations

import dataclasses
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from penstock.base.errors import InvalidError
from penstock.base.ids import validate_topic_name
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.values.errors import (
    CHANGES_KNOWN_MAX,
    TOPIC_PARTITIONS_MAX,
    BrokerInUse,
    InvalidPartitions,
    InvalidReplicas,
    StaleBroker,
    StaleConfigs,
    StaleTopic,
    TopicExists,
    TopicIdTaken,
    UnknownBroker,
    UnknownTopic,
)
from penstock.control.values.topics import ROLES, Broker, MetadataImage, Partition, Topic

LINK_SOURCE: Final = "link.source"
LINK_CLIENT: Final = "link.client.config"
LINK_EPOCH: Final = "link.epoch"
LINK_TOPIC_ID: Final = "link.source.topic.id"
LINK_CONFIGS: Final = (LINK_SOURCE, LINK_CLIENT, LINK_EPOCH, LINK_TOPIC_ID)
"""Settings of a topic that follows a topic of another cluster."""

PRODUCER_IDS_PER_CALL_MAX: Final = 1_000_000
"""Producer ids that one call allocates."""

ENTITY_CONFIGS_MAX: Final = 10_000
"""Entities of one kind.

The kinds are quotas, subscriptions to client metrics, ACL bindings, and users.
"""

ENTITY_CONFIGS_BYTES_MAX: Final = 16_384
"""Characters of one entity's name and configs together."""

PRODUCER_ID_MAX: Final = 2**63 - 1


def cluster_id(unique: UUID) -> str:
    """Return a cluster id in Kafka's form: a UUID as 22 characters of URL-safe base64."""
    return urlsafe_b64encode(unique.bytes).rstrip(b"=").decode()


def register_broker(
    image: MetadataImage,
    *,
    broker_id: int,
    host: str,
    port: int,
    rack: str | None,
    incarnation: UUID,
    highest_epoch: int,
    endpoints: Sequence[tuple[str, str, int]] = (),
    roles: Sequence[str] = ROLES,
) -> tuple[MetadataImage, Broker]:
    """Register a broker in the epoch after `highest_epoch`, the highest epoch of its id so far."""
    if broker_id < 0:
        raise InvalidError(f"broker id {broker_id} is negative")
    known = image.broker(broker_id)
    if (
        known is not None
        and known.incarnation == incarnation
        and (known.host, known.port, known.rack) == (host, port, rack)
        and (known.endpoints, known.roles) == (tuple(endpoints), tuple(roles))
    ):
        return image, known
    broker = Broker(
        broker_id=broker_id,
        host=host,
        port=port,
        rack=rack,
        incarnation=incarnation,
        epoch=highest_epoch + 1,
        endpoints=tuple(endpoints),
        roles=tuple(roles),
    )
    others = [other for other in image.brokers if other.broker_id != broker_id]
    return _with_brokers(image, [*others, broker]), broker


def unregister_broker(image: MetadataImage, *, broker_id: int, incarnation: UUID) -> MetadataImage:
    """Unregister a broker. Raises StaleBroker if a newer incarnation owns its id."""
    known = image.broker(broker_id)
    if known is None:
        return image
    if known.incarnation != incarnation:
        raise StaleBroker(broker_id)
    return _with_brokers(image, [b for b in image.brokers if b.broker_id != broker_id])


def check_incarnation(image: MetadataImage, *, broker_id: int, incarnation: UUID) -> None:
    known = image.broker(broker_id)
    check_registered(broker_id, None if known is None else known.incarnation, incarnation)


def check_registered(broker_id: int, found: UUID | None, incarnation: UUID) -> None:
    """Raise StaleBroker unless `found`, the registered incarnation, is `incarnation`."""
    if found is None:
        raise StaleBroker(broker_id, registered=False)
    if found != incarnation:
        raise StaleBroker(broker_id)


def expire_brokers(image: MetadataImage, broker_ids: Collection[int]) -> MetadataImage:
    left = [broker for broker in image.brokers if broker.broker_id not in broker_ids]
    return image if len(left) == len(image.brokers) else _with_brokers(image, left)


def remove_broker(image: MetadataImage, *, broker_id: int, known: bool) -> MetadataImage:
    """Delete the configs of a broker that is gone. `known` says if its id was ever registered.

    Raises UnknownBroker or BrokerInUse.
    """
    if image.broker(broker_id) is not None:
        raise BrokerInUse(f"broker {broker_id} is registered and may be running: stop it first")
    held = [
        f"{topic.name}-{partition.index}"
        for topic in image.topics.values()
        if topic.configs.get(DISKLESS_CONFIG) != "true"
        for partition in topic.partitions
        if broker_id in partition.copies
    ]
    if held:
        raise BrokerInUse(
            f"broker {broker_id} holds replicas of {len(held)} partition(s), for example of"
            f" {held[0]}: reassign them first (penstock broker drain)"
        )
    if not known:
        raise UnknownBroker(f"broker {broker_id} was never registered")
    if not image.broker_configs.get(str(broker_id)):
        return image
    return _next(image, broker_configs={**image.broker_configs, str(broker_id): {}})


def create_topic(
    image: MetadataImage,
    *,
    name: str,
    topic_id: UUID,
    partitions: Sequence[Sequence[int]],
    configs: Mapping[str, str],
    internal: bool,
) -> tuple[MetadataImage, Topic]:
    """Add a topic.

    Raises TopicExists, TopicIdTaken, InvalidTopicName, InvalidPartitions or InvalidReplicas.
    """
    validate_topic_name(name)
    if name in image.topics:
        raise TopicExists(name)
    holder = image.topic_by_id(topic_id)
    if holder is not None:
        raise TopicIdTaken(topic_id, holder.name)
    topic = Topic(
        topic_id=topic_id,
        name=name,
        configs=dict(configs),
        partitions=_partitions(name, 0, partitions),
        internal=internal,
    )
    return with_topics(image, [topic]), topic


def delete_topic(image: MetadataImage, topic_id: UUID) -> tuple[MetadataImage, Topic]:
    """Remove a topic; raises UnknownTopic."""
    topic = _topic(image, topic_id)
    topics = {name: other for name, other in image.topics.items() if name != topic.name}
    return _with_topics(image, topics, topic.name), topic


def create_partitions(
    image: MetadataImage, *, topic_id: UUID, expected_count: int, new: Sequence[Sequence[int]]
) -> tuple[MetadataImage, Topic]:
    """Add partitions; raises UnknownTopic, StaleTopic, InvalidPartitions or InvalidReplicas."""
    topic = _topic(image, topic_id)
    count = len(topic.partitions)
    if count != expected_count:
        raise StaleTopic(topic.name, "the partition count", expected_count, count)
    added = _partitions(topic.name, count, new)
    changed = replace(topic, partitions=topic.partitions + added)
    return with_topics(image, [changed]), changed


def set_topic_configs(
    image: MetadataImage,
    *,
    topic_id: UUID,
    configs: Mapping[str, str],
    expected: Mapping[str, str] | None,
) -> tuple[MetadataImage, Topic]:
    """Replace a topic's configs; raises UnknownTopic or StaleTopic.

    A topic that becomes linked loses the leader epochs of this cluster, because its log gets those
    of the source. It must have one replica.
    """
    topic = _topic(image, topic_id)
    if expected is not None and dict(expected) != dict(topic.configs):
        raise StaleTopic(topic.name, "the config", dict(expected), dict(topic.configs))
    changed = replace(topic, configs=dict(configs))
    if is_linked(changed) and not is_linked(topic):
        for row in topic.partitions:
            if len(row.replicas) > 1 or row.move:
                raise StaleTopic(topic.name, "the replicas", row.replicas[:1], row.copies)
        rows = tuple([replace(row, leader_epoch=0) for row in topic.partitions])
        changed = replace(changed, partitions=rows)
    return with_topics(image, [changed]), changed


def is_linked(topic: Topic) -> bool:
    """Return whether a topic follows a topic of another cluster, and rejects producers."""
    return bool(topic.configs.get(LINK_SOURCE))


def link_epoch(topic: Topic) -> int:
    """Return the lowest leader epoch that clients get, because of a present or former link."""
    return int(topic.configs.get(LINK_EPOCH, 0))


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


def set_entity_configs(
    image: MetadataImage,
    *,
    kind: str,
    changes: Mapping[str, Mapping[str, str]],
    expected: Mapping[str, Mapping[str, str]],
) -> MetadataImage:
    """Replace the configs of entities of one kind; raises StaleConfigs or InvalidError."""
    known, left = image.entity_configs, dict(image.entity_configs)
    for name, configs in changes.items():
        entity = (kind, name)
        if dict(known.get(entity, {})) != dict(expected.get(name, {})):
            raise StaleConfigs(name, kind)
        size = len(name) + sum(len(key) + len(value) for key, value in configs.items())
        if size > ENTITY_CONFIGS_BYTES_MAX:
            raise InvalidError(
                f"{kind} {name[:200]!r}: its name and configs have {size} characters; the limit is"
                f" {ENTITY_CONFIGS_BYTES_MAX}"
            )
        left.pop(entity, None)
        if configs:
            left[entity] = dict(configs)
    count = sum(of == kind for of, _ in left)
    if count > max(sum(of == kind for of, _ in known), ENTITY_CONFIGS_MAX):
        raise InvalidError(
            f"there would be {count} entities of kind {kind}; the limit is {ENTITY_CONFIGS_MAX}"
        )
    return image if left == known else _next(image, entity_configs=left)


def producer_ids(next_id: int, count: int) -> range:
    """Return the `count` producer ids from `next_id` on; raises InvalidError for too many."""
    if not 1 <= count <= PRODUCER_IDS_PER_CALL_MAX:
        raise InvalidError(
            f"{count} producer ids in one call, allowed are 1 to {PRODUCER_IDS_PER_CALL_MAX}"
        )
    if next_id + count - 1 > PRODUCER_ID_MAX:
        raise InvalidError(f"the producer ids up to {PRODUCER_ID_MAX} are used up")
    return range(next_id, next_id + count)


def with_topics(image: MetadataImage, changed: Sequence[Topic]) -> MetadataImage:
    named = {topic.name: topic for topic in changed}
    return _with_topics(image, {**image.topics, **named}, *named)


def _with_topics(image: MetadataImage, topics: Mapping[str, Topic], *changed: str) -> MetadataImage:
    version = image.version + 1
    newest = (*image.newest, *[(version, name) for name in changed])[-CHANGES_KNOWN_MAX:]
    return _next(image, topics=topics, newest=newest)


def _with_brokers(image: MetadataImage, brokers: Iterable[Broker]) -> MetadataImage:
    ordered = tuple(sorted(brokers, key=lambda one: one.broker_id))
    return _next(image, brokers=ordered, cluster_epoch=image.cluster_epoch + 1)


def _next(image: MetadataImage, **changes: object) -> MetadataImage:
    return dataclasses.replace(image, version=image.version + 1, **changes)  # type: ignore[arg-type]


def _topic(image: MetadataImage, topic_id: UUID) -> Topic:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopic(topic_id)
    return topic


def _partitions(
    name: str, start: int, replica_lists: Sequence[Sequence[int]]
) -> tuple[Partition, ...]:
    if not replica_lists:
        raise InvalidPartitions(f"topic {name!r} has {start} partitions, and the request adds none")
    count = start + len(replica_lists)
    if count > TOPIC_PARTITIONS_MAX:
        raise InvalidPartitions(
            f"topic {name!r} would have {count} partitions, the limit is {TOPIC_PARTITIONS_MAX}"
        )
    return tuple(
        _partition(name, index, tuple(replicas))
        for index, replicas in enumerate(replica_lists, start)
    )


def _partition(name: str, index: int, replicas: tuple[int, ...]) -> Partition:
    if not replicas or min(replicas) < 0 or len(set(replicas)) != len(replicas):
        raise InvalidReplicas(
            f"replicas {replicas[:16]} of {name}-{index} must be broker ids without repetition"
        )
    return Partition(
        index=index, leader=replicas[0], leader_epoch=0, replicas=replicas, isr=replicas
    )
