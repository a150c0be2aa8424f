"""Planning of new topics and partitions, without I/O. Handlers store plans by compare-and-set.

Source: Kafka's `ReplicationControlManager.createTopics` and `createPartitions`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Sized
from typing import Final
from uuid import UUID

from msgspec import Struct

from penstock.base.ids import validate_topic_name
from penstock.broker.configuration.configs import (
    Levels,
    check_topic_configs,
    excluded_brokers,
    topic_config,
)
from penstock.broker.configuration.settings import EXCLUDED_BROKERS, BrokerSettings
from penstock.broker.metadata.leaders import check_linkable, configs_of_new, is_diskless
from penstock.broker.net.errors import (
    BadRequest,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    PolicyViolation,
    TopicNameCollision,
)
from penstock.broker.net.listeners import replication_address
from penstock.control import Broker, MetadataImage, Topic, TopicExists
from penstock.control.rules.diskless import DISKLESS_CONFIG
from penstock.control.values.topics import PERSISTENCE
from penstock.replication.placement import Replicas, Site, place, placed_again


def check_factor(replication_factor: int, brokers: Sized, excluded: Collection[int] = ()) -> int:
    """Return `replication_factor` if `brokers` are enough for it; raises InvalidReplicationFactor.

    `excluded` are the ids of brokers that are not in `brokers`; the error message lists them.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: must be at least 1, or -1 for the default"
        )
    if replication_factor > len(brokers):
        names = ", ".join(map(str, sorted(excluded)))
        why = f"({EXCLUDED_BROKERS}, or broker.roles without {PERSISTENCE})"
        beside = f"; broker(s) {names} are excluded {why}" if names else ""
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}: only {len(brokers)} broker(s) can get"
            f" replicas{beside}"
        )
    return replication_factor


def check_assignment(
    replicas: Sequence[int],
    brokers: Sequence[Broker],
    *,
    partition: int,
    replication_factor: int | None,
) -> Replicas:
    """Return a manual assignment that the brokers can hold; raises InvalidReplicaAssignment."""
    known = {broker.broker_id for broker in brokers}
    if not replicas:
        raise InvalidReplicaAssignment(f"partition {partition}: the replica list is empty")
    for broker_id in replicas:
        if broker_id not in known:
            raise InvalidReplicaAssignment(
                f"partition {partition}: broker {broker_id} is not registered"
            )
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(
            f"partition {partition}: a broker appears more than once in {list(replicas)}"
        )
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"partition {partition}: has {len(replicas)} replica(s), "
            f"but the partitions before it have {replication_factor}"
        )
    return tuple(replicas)


def check_roles(
    placed: Sequence[Replicas], image: MetadataImage, holding: Collection[int] = ()
) -> None:
    """Reject replicas on brokers without the role `persistence`; raises InvalidReplicaAssignment.

    Brokers in `holding` already have a replica of the partition and are not checked.
    """
    named = {broker for replicas in placed for broker in replicas}.difference(holding)
    for broker in image.brokers:
        if broker.broker_id in named and PERSISTENCE not in broker.roles:
            raise InvalidReplicaAssignment(
                f"broker {broker.broker_id} cannot get replicas: its broker.roles ="
                f" {','.join(broker.roles)} does not include {PERSISTENCE}"
            )


RESERVED_NAMES: Final = frozenset({"__cluster_metadata"})


class TopicSpec(Struct, frozen=True, kw_only=True):
    """Topic that a client requests; a number of -1 means the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, Replicas], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()
    internal: bool = False
    """Whether only brokers write the topic."""


class TopicPlan(Struct, frozen=True, kw_only=True):
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
    """Return the plan of a new topic; `topic_id` determines the placement of its replicas.

    Raises:
        InvalidTopicName, TopicNameCollision, TopicExists: the name cannot be used.
        InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment, PolicyViolation,
            InvalidConfig, BadRequest: another part of `spec` is invalid.
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
    check_linkable(spec.name, config, partitions, stored={})
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
    """Return the replicas of the partitions that must be added to reach `total_count`.

    Their number is that of partition 0, or of its target during a reassignment.

    Raises:
        InvalidPartitions: `total_count` is not more than now, or above the limit.
        InvalidReplicaAssignment, InvalidReplicationFactor: replicas cannot be placed.
        PolicyViolation: the cluster would have too many partitions.
    """
    current = len(topic.partitions)
    if total_count <= current:
        raise InvalidPartitions(
            f"topic {topic.name!r} has {current} partition(s): {total_count} is not an increase"
        )
    new = total_count - current
    first = topic.partitions[0]
    factor = len(first.target or first.replicas)
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
    """Raise BadRequest, InvalidTopicName, TopicExists or TopicNameCollision for a bad name."""
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
                    "names must differ in more than '.' and '_', which metrics do not distinguish"
                )


def unify(name: str) -> str:
    """Replace '.' with '_', to find topic names that are equal in Kafka's metric names."""
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
    chosen = {broker.broker_id for broker in (image.storing if stored else image.serving)}
    others = [broker.broker_id for broker in image.brokers if broker.broker_id not in chosen]
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
    """Return the replicas of `partitions`, on registered brokers.

    If these are too few, brokers that hold replicas of other partitions but are not registered now
    are used as well.
    """
    chosen = [broker for broker in image.brokers if broker.broker_id not in excluded]
    present = {broker.broker_id for broker in chosen}
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
    return tuple(
        [tuple(sorted(ids, key=lambda broker_id: broker_id not in present)) for ids in placed]
    )


class _Away(Struct, frozen=True, kw_only=True):
    broker_id: int
    rack: str | None = None


def _away(image: MetadataImage, present: Collection[int]) -> tuple[_Away, ...]:
    replicas = [
        partition.replicas
        for topic in image.topics.values()
        if not is_diskless(topic)
        for partition in topic.partitions
        if len(partition.replicas) > 1
    ]
    known = {broker_id for held in replicas for broker_id in held}
    return tuple([_Away(broker_id=broker_id) for broker_id in sorted(known.difference(present))])


def plan_replicas(topic: Topic, *, image: MetadataImage, levels: Levels) -> list[Replicas]:
    """Return the replicas of a diskless topic that becomes local.

    They are placed on the brokers of the previous replicas if possible.

    Raises:
        InvalidReplicationFactor: too few brokers can hold a replica.
    """
    excluded = excluded_brokers(levels)
    brokers = [
        broker
        for broker in image.storing
        if broker.broker_id not in excluded and replication_address(broker) is not None
    ]
    factor = max([len(row.replicas) for row in topic.partitions])
    if factor > len(brokers):
        raise InvalidReplicationFactor(
            f"topic {topic.name!r} needs {factor} replicas, but only brokers"
            f" {sorted([broker.broker_id for broker in brokers])} can hold them. A broker needs"
            " replication.listener and the role persistence, and must not be in"
            " placement.excluded.brokers"
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
    """Reject partitions with several replicas on a broker without a replication listener."""
    chosen = {broker_id for replicas in partitions if len(replicas) > 1 for broker_id in replicas}
    brokers = [broker for broker in image.brokers if broker.broker_id in chosen]
    unset = [str(broker.broker_id) for broker in brokers if replication_address(broker) is None]
    if unset:
        raise InvalidReplicationFactor(
            f"topic {name!r}: replication.listener is not set on broker {', '.join(unset)}. Set"
            " it, or create the topic with replication factor 1 or diskless.enable = true"
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
            f"topic {name!r}: the cluster would have {total} partitions, above "
            f"broker.partitions.max = {settings.broker_partitions_max}"
        )
