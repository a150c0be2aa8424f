"""State of the cluster, topics, partitions and groups as JSON, without reading files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.broker.admin.access import DESCRIBE, DESCRIBE_GROUP, Needs
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.errors import UnknownTopicOrPartition
from penstock.partitions import look_up_watermarks

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.admin.access import Caller
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.end_offsets import EndOffsets
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.migration import TopicMigrations
    from penstock.broker.partition_registry import PartitionRegistry, ServedTopic
    from penstock.broker.replicas import Replicas
    from penstock.control import CommittedOffset, ControlPlane

TROUBLED_MAX: Final = 1000
"""Largest number of replicas in one response, which also has their total."""


class Parts(Struct, frozen=True, kw_only=True):
    node_id: int
    control: ControlPlane
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    coordinator: GroupCoordinator
    end_offsets: EndOffsets
    migrations: TopicMigrations
    replicas: Replicas | None


routes: Final = Routes[Parts, Needs]()


@routes.add("GET /v1/losses", DESCRIBE)
async def losses(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the records that unclean elections have lost, newest election first."""
    await parts.cluster.refresh()
    names = {topic.topic_id: topic.name for topic in parts.cluster.image.topics.values()}
    rows = [
        {
            "topic": names.get(partition_loss.topic_id, str(partition_loss.topic_id)),
            "partition": partition_loss.partition,
            "epoch": partition_loss.sealed,
            "from_offset": partition_loss.from_offset,
            "broker": partition_loss.broker,
            "missing": partition_loss.missing,
            "at_ms": partition_loss.at_ms,
        }
        for partition_loss in await parts.control.partition_losses()
    ]
    return {"losses": rows}


@routes.add("GET /v1/copies", DESCRIBE)
async def copies(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the number of this broker's replicas, and those that do not fully take part.

    Each of these has the reason.
    """
    logs = [] if parts.replicas is None else list(parts.replicas.replication.logs.values())
    troubled = [(log, why) for log in logs if (why := log.copy.trouble)]
    return {
        "node_id": parts.node_id,
        "count": len(logs),
        "troubled_count": len(troubled),
        "troubled": [
            {
                "topic": log.log.topic_partition.topic,
                "partition": log.log.topic_partition.partition,
                "why": why,
            }
            for log, why in troubled[:TROUBLED_MAX]
        ],
    }


@routes.add("GET /v1/cluster", DESCRIBE)
async def cluster(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the registered brokers, the numbers of topics and partitions, and this broker's id."""
    await parts.cluster.refresh()
    image = parts.cluster.image
    return {
        "cluster_id": image.cluster_id,
        "node_id": parts.node_id,
        "metadata_version": image.version,
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "roles": broker.roles,
                "epoch": broker.epoch,
            }
            for broker in image.brokers
        ],
        "topic_count": len(image.topics),
        "partition_count": sum(len(topic.partitions) for topic in image.topics.values()),
    }


@routes.add("GET /v1/topics", DESCRIBE)
async def topics(parts: Parts, request: Request) -> dict[str, Any]:
    """Return every topic, with the total size and offset span of its partitions on this broker."""
    await parts.cluster.refresh()
    topics = parts.partitions.topics
    await look_up_watermarks(
        partition for topic in topics.values() for partition in topic.partitions
    )
    return {"topics": [_summary(topics[name]) for name in sorted(topics)]}


@routes.add(
    "GET /v1/topics/{topic}",
    Needs(operation="describe", resource_type="topic", named="topic"),
)
async def topic(parts: Parts, request: Request) -> dict[str, Any]:
    """Return a topic and its partitions; offsets are null if another broker leads the partition."""
    await parts.cluster.refresh()
    name = request.path_params["topic"]
    found = parts.partitions.topics.get(name)
    if found is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    await look_up_watermarks(found.partitions)
    return {
        **_summary(found),
        "configs": dict(found.topic.configs),
        "switch": parts.migrations.view(found.topic.topic_id),
        "partitions": [_partition(parts, found, index) for index in range(len(found.partitions))],
    }


@routes.add("GET /v1/groups", DESCRIBE)
async def groups(parts: Parts, request: Request) -> dict[str, Any]:
    listed = await parts.coordinator.list_groups()
    return {
        "groups": [
            {
                "group_id": group.group_id,
                "state": group.state,
                "protocol_type": group.protocol_type,
            }
            for group in listed
        ]
    }


@routes.add("GET /v1/groups/{group:path}", DESCRIBE_GROUP)
async def group(parts: Parts, request: Request) -> dict[str, Any]:
    """Return a group's members, committed offsets and lag; only its coordinator responds.

    Topics that the caller may not describe are omitted.
    """
    caller: Caller = request.state.caller
    group_id = request.path_params["group"]
    coordinator = parts.coordinator
    coordinator.check_owner(group_id)
    described = await coordinator.describe(group_id)
    if described is None:
        raise GroupIdNotFound(f"group {group_id!r} does not exist")
    committed = await parts.control.committed_offsets(group_id, None)
    offsets = {
        TopicPartition(offset.topic, offset.partition): offset
        for offset in committed
        if caller.sees(offset.topic)
    }
    ends = await parts.end_offsets.of(offsets)
    rows = [_position(offset, ends.get(place)) for place, offset in offsets.items()]
    return {
        "group_id": group_id,
        "state": described.state,
        "protocol_type": described.protocol_type,
        "protocol": described.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
            }
            for member in described.members
        ],
        "offsets": rows,
        "lag_records": sum(row["lag_records"] or 0 for row in rows),
    }


def _summary(served: ServedTopic) -> dict[str, Any]:
    logs = [log for log in served.partitions if log is not None]
    partitions = served.topic.partitions
    unknown = served.diskless and not logs  # this broker has no object store
    return {
        "topic": served.topic.name,
        "topic_id": str(served.topic.topic_id),
        "internal": served.topic.internal,
        "diskless": served.diskless,
        "partition_count": len(partitions),
        "replication_factor": len(partitions[0].replicas) if partitions else 0,
        "size_bytes": None if unknown else sum(log.size_bytes for log in logs),
        "offset_span": (
            None
            if unknown
            else sum(max(0, log.high_watermark - log.log_start_offset) for log in logs)
        ),
    }


def _partition(parts: Parts, topic: ServedTopic, index: int) -> dict[str, Any]:
    partition, log = parts.cluster.shown(topic.topic)[index], topic.partitions[index]
    row: dict[str, Any] = {
        "partition": index,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
    }
    for name in (
        "log_start_offset",
        "high_watermark",
        "last_stable_offset",
        "log_end_offset",
        "size_bytes",
        "segment_count",
    ):
        row[name] = None if log is None or log.high_watermark < 0 else getattr(log, name)
    return row


def _position(offset: CommittedOffset, end: int | None) -> dict[str, Any]:
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "commit_timestamp_ms": offset.commit_timestamp_ms,
        "high_watermark": end,
        "lag_records": None if end is None else max(0, end - offset.offset),
    }
