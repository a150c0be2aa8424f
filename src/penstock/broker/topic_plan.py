"""What a new topic, or more partitions of an old one, will look like: pure decisions.

A request is turned into a plan (partitions with their replicas, configurations) or into an
error that says why not; the handlers store plans by compare-and-set. Nothing here changes
anything, so `validate_only` is simply a plan that is not stored.

Source: Kafka's `ReplicationControlManager.createTopics` and `createPartitions`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from penstock.base.ids import validate_topic_name
from penstock.broker.admin_errors import (
    BadRequest,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    PolicyViolation,
    TopicNameCollision,
)
from penstock.broker.assignments import check_assignment, check_factor, check_roles
from penstock.broker.configs import Levels, check_topic_configs, excluded_brokers, topic_config
from penstock.broker.diskless import configs_of_new, is_diskless
from penstock.broker.identity import replication_address
from penstock.broker.settings import BrokerSettings
from penstock.control import MetadataImage, Topic, TopicExists
from penstock.control.batch_index.rules import DISKLESS_CONFIG
from penstock.replication.placement import Replicas, Site, place, placed_again

RESERVED_NAMES: Final = frozenset({"__cluster_metadata"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as a client asks for it; -1 asks for the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, Replicas], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()
    internal: bool = False
    """What brokers alone write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic as it will be stored."""

    topic_id: UUID
    name: str
    partitions: tuple[Replicas, ...]
    configs: Mapping[str, str]
    min_insync_replicas: int = 1
    internal: bool = False


def plan_topic(
    spec: TopicSpec,
    topic_id: UUID,
    *,
    image: MetadataImage,
    settings: BrokerSettings,
    levels: Levels,
) -> TopicPlan:
    """Decide what a new topic looks like; `topic_id` is what it will have, and is placed by.

    Raises:
        InvalidTopicName, TopicNameCollision, TopicExists: the name cannot be used.
        InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment, PolicyViolation:
            the partitions cannot be placed.
        InvalidConfig: a configuration is unknown or out of its bounds.
        BadRequest: the request contradicts itself.
    """
    check_new_name(spec.name, image)
    names = [name for name, _ in spec.configs]
    if len(set(names)) != len(names):
        raise BadRequest(f"topic {spec.name!r}: a configuration is given more than once")
    configs = check_topic_configs(spec.name, levels, dict(spec.configs))
    config = topic_config(levels, configs)
    configs = configs_of_new(configs, config, default=settings.log_diskless_enable)
    stored = configs.get(DISKLESS_CONFIG) != "true"
    if spec.assignments:
        partitions = _assigned(spec, image)
        _check_count(spec.name, len(partitions), image, settings)
    else:
        excluded = _excluded(image, levels, stored=stored)
        partitions = _placed(spec, topic_id, image, settings, excluded)
    if stored:
        check_roles(partitions, image)
        check_reachable(spec.name, partitions, image)
    return TopicPlan(
        topic_id=topic_id,
        name=spec.name,
        partitions=partitions,
        configs=configs,
        min_insync_replicas=config.min_insync_replicas,
        internal=spec.internal,
    )


def plan_partitions(
    topic: Topic,
    *,
    total_count: int,
    assignments: Sequence[Replicas] | None,
    image: MetadataImage,
    settings: BrokerSettings,
    levels: Levels,
) -> tuple[Replicas, ...]:
    """Decide where partitions go that grow a topic to `total_count`; only the new ones.

    Raises:
        InvalidPartitions: `total_count` is no increase, or above the limit.
        InvalidReplicaAssignment, InvalidReplicationFactor, PolicyViolation: no placement.
    """
    current = len(topic.partitions)
    if total_count <= current:
        raise InvalidPartitions(
            f"topic {topic.name!r} has {current} partition(s); {total_count} is no increase"
        )
    new = total_count - current
    factor = len(topic.partitions[0].replicas)
    if assignments is None:
        _check_count(topic.name, total_count, image, settings, already=current)
        return _place(
            image,
            topic.topic_id,
            excluded=_excluded(image, levels, stored=not is_diskless(topic)),
            partitions=range(current, total_count),
            factor=factor,
            leaders=[partition.replicas[0] for partition in topic.partitions],
        )
    if len(assignments) != new:
        raise InvalidReplicaAssignment(
            f"topic {topic.name!r}: {new} partition(s) are new, "
            f"but {len(assignments)} assignment(s) are given"
        )
    _check_count(topic.name, total_count, image, settings, already=current)
    assigned = tuple(
        check_assignment(
            replicas, image.brokers, partition=current + index, replication_factor=factor
        )
        for index, replicas in enumerate(assignments)
    )
    if not is_diskless(topic):
        check_roles(assigned, image)
    return assigned


def check_new_name(name: str, image: MetadataImage) -> None:
    """Raise unless a topic of this name may be created."""
    if name in RESERVED_NAMES:
        raise BadRequest(f"topic {name!r} is internal and cannot be created")
    validate_topic_name(name)
    if name in image.topics:
        raise TopicExists(name)
    if "." in name or "_" in name:
        unified = unify(name)
        for other in image.topics:
            if len(other) == len(name) and unify(other) == unified:
                raise TopicNameCollision(
                    f"topic {name!r} collides with the existing topic {other!r}: "
                    "names must differ in more than '.' and '_', which metrics do not tell apart"
                )


def unify(name: str) -> str:
    """A name as metrics of old see it, where '.' and '_' are one character."""
    return name.replace(".", "_")


def _assigned(spec: TopicSpec, image: MetadataImage) -> tuple[Replicas, ...]:
    if spec.replication_factor != -1:
        raise BadRequest(
            f"topic {spec.name!r}: replicas are assigned by hand, so the replication factor "
            f"must be -1, not {spec.replication_factor}"
        )
    if spec.partition_count != -1:
        raise BadRequest(
            f"topic {spec.name!r}: replicas are assigned by hand, so the number of partitions "
            f"must be -1, not {spec.partition_count}"
        )
    by_index = dict(spec.assignments)
    if len(by_index) != len(spec.assignments):
        raise InvalidReplicaAssignment(
            f"topic {spec.name!r}: a partition is assigned more than once"
        )
    if sorted(by_index) != list(range(len(by_index))):
        raise InvalidReplicaAssignment(
            f"topic {spec.name!r}: partitions must be numbered from 0 without gaps"
        )
    factor: int | None = None
    checked = []
    for index in range(len(by_index)):
        replicas = check_assignment(
            by_index[index], image.brokers, partition=index, replication_factor=factor
        )
        factor = len(replicas)
        checked.append(replicas)
    return tuple(checked)


def _placed(
    spec: TopicSpec,
    topic_id: UUID,
    image: MetadataImage,
    settings: BrokerSettings,
    excluded: Collection[int],
) -> tuple[Replicas, ...]:
    count, factor = spec.partition_count, spec.replication_factor
    if count == -1:
        count = settings.num_partitions
    if factor == -1:
        factor = settings.default_replication_factor
    if count < 1:
        raise InvalidPartitions(
            f"topic {spec.name!r}: number of partitions {count} must be at least 1, "
            "or -1 for the default"
        )
    _check_count(spec.name, count, image, settings)
    return _place(image, topic_id, excluded=excluded, partitions=range(count), factor=factor)


def _excluded(image: MetadataImage, levels: Levels, *, stored: bool) -> frozenset[int]:
    """The brokers that a new topic, or partition, is not for: by their roles, or as they go."""
    chosen = {one.broker_id for one in (image.storing if stored else image.serving)}
    others = [one.broker_id for one in image.brokers if one.broker_id not in chosen]
    return excluded_brokers(levels).union(others)


def _place(
    image: MetadataImage,
    topic_id: UUID,
    *,
    excluded: Collection[int],
    partitions: range,
    factor: int,
    leaders: Sequence[int] = (),
) -> tuple[Replicas, ...]:
    """Replicas on brokers that are registered; if they are too few, on some that are away, too.

    Those have copies already, and get these when they are back; they do not lead. None are on
    brokers that are `excluded`.
    """
    chosen = [one for one in image.brokers if one.broker_id not in excluded]
    present = {one.broker_id for one in chosen}
    away = _away(image, {*present, *excluded}) if factor > len(present) else ()
    brokers: tuple[Site, ...] = (*chosen, *away)
    placed = place(
        brokers,
        topic_id,
        partitions=partitions,
        replication_factor=check_factor(factor, brokers, excluded),
        leaders=leaders,
    )
    if not away:
        return placed
    return tuple([tuple(sorted(one, key=lambda it: it not in present)) for one in placed])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Away:
    """A broker that is not registered now; where it stands is not known."""

    broker_id: int
    rack: str | None = None


def _away(image: MetadataImage, present: Collection[int]) -> tuple[_Away, ...]:
    """The brokers that have copies of others' partitions and are not registered now."""
    replicas = [
        partition.replicas
        for topic in image.topics.values()
        if not is_diskless(topic)
        for partition in topic.partitions
        if len(partition.replicas) > 1
    ]
    known = {broker_id for held in replicas for broker_id in held}
    return tuple([_Away(broker_id=one) for one in sorted(known.difference(present))])


def plan_replicas(topic: Topic, *, image: MetadataImage, levels: Levels) -> list[Replicas]:
    """Which brokers get the logs of a diskless topic: as many as it had, or was created with.

    They are those that it had before, as far as they are there.

    Raises:
        InvalidReplicationFactor: there are not so many that can hold a replica.
    """
    excluded = excluded_brokers(levels)
    brokers = [
        one
        for one in image.storing
        if one.broker_id not in excluded and replication_address(one) is not None
    ]
    factor = max([len(row.replicas) for row in topic.partitions])
    if factor > len(brokers):
        raise InvalidReplicationFactor(
            f"topic {topic.name!r} is to have {factor} replicas, and the brokers that can hold them"
            f" are {sorted([one.broker_id for one in brokers])}: those that run with"
            " replication.listener, have the role for it, and are not excluded"
        )
    return [
        placed_again(
            brokers,
            topic.topic_id,
            row.index,
            replicas=row.replicas,
            replication_factor=len(row.replicas),
        )
        for row in topic.partitions
    ]


def check_reachable(name: str, partitions: Sequence[Replicas], image: MetadataImage) -> None:
    """Refuse replicas that nobody could fill: an in-sync set of them would be a false promise."""
    chosen = {one for replicas in partitions if len(replicas) > 1 for one in replicas}
    brokers = [one for one in image.brokers if one.broker_id in chosen]
    deaf = [str(one.broker_id) for one in brokers if replication_address(one) is None]
    if deaf:
        raise InvalidReplicationFactor(
            f"topic {name!r}: several replicas need replication.listener on each of their brokers;"
            f" broker {', '.join(deaf)} has none; set it there, or give factor 1, or"
            " diskless.enable = true"
        )


def _check_count(
    name: str, count: int, image: MetadataImage, settings: BrokerSettings, already: int = 0
) -> None:
    if count > settings.topic_partitions_max:
        raise InvalidPartitions(
            f"topic {name!r}: number of partitions {count} is above "
            f"topic.partitions.max = {settings.topic_partitions_max}"
        )
    present = sum(len(topic.partitions) for topic in image.topics.values())
    total = present + count - already
    if total > settings.broker_partitions_max:
        raise PolicyViolation(
            f"topic {name!r}: with it there would be {total} partitions, above "
            f"broker.partitions.max = {settings.broker_partitions_max}"
        )
