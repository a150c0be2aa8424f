"""AlterPartitionReassignments and ListPartitionReassignments: other replicas for partitions.

Any broker takes an order and stores it in the control plane; who leads a partition carries it out
(`broker/moves.py`), whenever that is. An order without replicas cancels the one that there is.

Source: KIP-455, KIP-860; `alterPartitionReassignments` of Kafka's `ReplicationControlManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.base.errors import InvalidError, PenstockError, RetriableError
from penstock.broker.admin_errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.broker.assignments import check_assignment, check_roles
from penstock.broker.configs import topic_config
from penstock.broker.connection import RequestContext
from penstock.broker.diskless import is_diskless
from penstock.broker.errors import UnknownTopicOrPartition, error_of
from penstock.broker.topic_plan import check_reachable
from penstock.control import Reassignment
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.topic_admin import TopicAdmin
    from penstock.control import ControlPlane, MetadataImage, Partition, Topic

Asked = tuple[str, int]
Outcomes = dict[Asked, PenstockError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    cluster: ClusterMetadata
    control: ControlPlane
    topic_admin: TopicAdmin


class NotInProgress(InvalidError):
    """Nothing is ordered that could be cancelled."""

    code: ClassVar[str] = "no_reassignment_in_progress"


class TimedOut(RetriableError):
    """The control plane did not store the orders in time; whether it does yet is not known."""

    code: ClassVar[str] = "request_timed_out"


async def alter_partition_reassignments(
    parts: Parts, context: RequestContext, request: Any
) -> dict[str, Any]:
    change_factor = getattr(request, "allow_replication_factor_change", True)
    await parts.cluster.refresh()
    outcomes: Outcomes = {}
    orders: dict[Asked, Reassignment] = {}
    for topic in request.topics:
        for one in topic.partitions:
            asked = topic.name, one.partition_index
            try:
                orders[asked] = _order(parts, asked, one.replicas, change_factor=change_factor)
                outcomes[asked] = None
            except PenstockError as error:
                outcomes[asked] = error
    try:
        async with asyncio.timeout(milliseconds(request.timeout) / 1000):
            refused = await parts.control.reassign(list(orders.values()))
            await parts.cluster.refresh()
    except TimeoutError as error:
        raise TimedOut("the control plane has not stored the orders in time") from error
    outcomes |= {asked: refused[one.key] for asked, one in orders.items() if one.key in refused}
    return {
        "error_code": 0,
        "error_message": None,
        "allow_replication_factor_change": change_factor,
        "responses": _responses(outcomes),
    }


def _order(
    parts: Parts, asked: Asked, replicas: Sequence[int] | None, *, change_factor: bool
) -> Reassignment:
    """What the control plane is asked for.

    Raises:
        UnknownTopicOrPartition, NotInProgress: there is no such thing.
        InvalidReplicaAssignment, InvalidReplicationFactor: these brokers cannot be its replicas.
    """
    image = parts.cluster.image
    topic, row = _found(image, asked)
    if is_diskless(topic):
        raise InvalidReplicaAssignment(
            f"topic {topic.name!r} is diskless: its records lie in the object store, on no broker"
        )
    if replicas is None:
        if not row.move:
            raise NotInProgress(f"{topic.name}-{row.index} is not reassigned")
        return Reassignment(topic.topic_id, row.index, None)
    factor = None if change_factor else len(row.target or row.replicas)
    if factor not in (None, len(replicas)):
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} would have {len(replicas)} replicas, it has {factor}:"
            " the request does not allow another number"
        )
    placed = check_assignment(
        replicas, image.brokers, partition=row.index, replication_factor=factor
    )
    check_roles([placed], image, holding=row.copies)
    check_reachable(topic.name, [tuple({*row.replicas, *placed})], image)
    minimum = topic_config(parts.topic_admin.levels(), topic.configs).min_insync_replicas
    if len(placed) < minimum and {*placed} != {*row.replicas}:
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} would have {len(placed)} replicas, and min.insync.replicas ="
            f" {minimum}: nothing could be acknowledged"
        )
    return Reassignment(topic.topic_id, row.index, placed)


def _found(image: MetadataImage, asked: Asked) -> tuple[Topic, Partition]:
    name, number = asked
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartition(f"there is no partition {name}-{number}")
    return topic, topic.partitions[number]


def _responses(outcomes: Outcomes) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, number), outcome in outcomes.items():
        code, message = (0, None) if outcome is None else error_of(outcome)
        entry = {"partition_index": number, "error_code": code, "error_message": message}
        topics.setdefault(name, []).append(entry)
    return [{"name": name, "partitions": rows} for name, rows in topics.items()]


async def list_partition_reassignments(
    parts: Parts, context: RequestContext, request: Any
) -> dict[str, Any]:
    await parts.cluster.look()
    topics = parts.cluster.image.topics
    wanted: Iterable[tuple[str, Iterable[int] | None]] = [(name, None) for name in topics]
    if request.topics is not None:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    found = {
        name: [
            _ongoing(row)
            for row in topics[name].partitions
            if row.move and (numbers is None or row.index in numbers)
        ]
        for name, numbers in wanted
        if name in topics
    }
    return {
        "error_code": 0,
        "error_message": None,
        "topics": [{"name": name, "partitions": rows} for name, rows in found.items() if rows],
    }


def _ongoing(row: Partition) -> dict[str, Any]:
    return {
        "partition_index": row.index,
        "replicas": row.copies,
        "adding_replicas": row.adding,
        "removing_replicas": row.removing,
    }
