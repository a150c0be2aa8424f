"""AlterPartitionReassignments and ListPartitionReassignments.

The control plane stores a reassignment, the leader carries it out (`broker/moves.py`).

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
    cluster: ClusterMetadata
    control: ControlPlane
    topic_admin: TopicAdmin


class NotInProgress(InvalidError):
    """The partition has no reassignment to cancel."""

    code: ClassVar[str] = "no_reassignment_in_progress"


class TimedOut(RetriableError):
    """The control plane did not store the reassignments in time; the outcome is unknown."""

    code: ClassVar[str] = "request_timed_out"


async def alter_partition_reassignments(
    parts: Parts, context: RequestContext, request: Any
) -> dict[str, Any]:
    change_factor = getattr(request, "allow_replication_factor_change", True)
    await parts.cluster.refresh()
    outcomes: Outcomes = {}
    orders: dict[Asked, Reassignment] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            asked = topic.name, partition.partition_index
            try:
                orders[asked] = _order(
                    parts, asked, partition.replicas, change_factor=change_factor
                )
                outcomes[asked] = None
            except PenstockError as error:
                outcomes[asked] = error
    try:
        async with asyncio.timeout(milliseconds(request.timeout) / 1000):
            refused = await parts.control.reassign(list(orders.values()))
            await parts.cluster.refresh()
    except TimeoutError as error:
        raise TimedOut(
            "the control plane did not store the reassignments in time; list them before retrying"
        ) from error
    outcomes |= {
        asked: refused[order.key] for asked, order in orders.items() if order.key in refused
    }
    return {
        "error_code": 0,
        "error_message": None,
        "allow_replication_factor_change": change_factor,
        "responses": _responses(outcomes),
    }


def _order(
    parts: Parts, asked: Asked, replicas: Sequence[int] | None, *, change_factor: bool
) -> Reassignment:
    """Return the reassignment to store; raises PenstockError if it is not possible."""
    image = parts.cluster.image
    topic, row = _found(image, asked)
    if is_diskless(topic):
        raise InvalidReplicaAssignment(
            f"topic {topic.name!r} is diskless: its records are in the object store, not on brokers"
        )
    if replicas is None:
        if not row.move:
            raise NotInProgress(f"{topic.name}-{row.index} has no reassignment in progress")
        return Reassignment(topic.topic_id, row.index, None)
    factor = None if change_factor else len(row.target or row.replicas)
    if factor not in (None, len(replicas)):
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} has {factor} replicas, the request has {len(replicas)} and"
            " does not allow a change of the replication factor"
        )
    placed = check_assignment(
        replicas, image.brokers, partition=row.index, replication_factor=factor
    )
    check_roles([placed], image, holding=row.copies)
    check_reachable(topic.name, [tuple({*row.replicas, *placed})], image)
    minimum = topic_config(parts.topic_admin.levels(), topic.configs).min_insync_replicas
    if len(placed) < minimum and {*placed} != {*row.replicas}:
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} would have {len(placed)} replicas, fewer than"
            f" min.insync.replicas = {minimum}"
        )
    return Reassignment(topic.topic_id, row.index, placed)


def _found(image: MetadataImage, asked: Asked) -> tuple[Topic, Partition]:
    name, number = asked
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartition(f"partition {name}-{number} does not exist")
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
    selected: Iterable[tuple[str, Iterable[int] | None]] = [(name, None) for name in topics]
    if request.topics is not None:
        selected = [(topic.name, topic.partition_indexes) for topic in request.topics]
    found = {
        name: [
            _ongoing(row)
            for row in topics[name].partitions
            if row.move and (numbers is None or row.index in numbers)
        ]
        for name, numbers in selected
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
