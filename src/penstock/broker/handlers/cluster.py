"""DescribeCluster, DescribeTopicPartitions, UnregisterBroker and DescribeQuorum, from the image;
DescribeLogDirs and AlterReplicaLogDirs.

DescribeTopicPartitions returns pages of up to `max.request.partition.size.limit` partitions, in the
order of topic names.

Source: KIP-700, KIP-919, KIP-1073 (DescribeCluster); KIP-966 and Kafka's
`DescribeTopicPartitionsRequestHandler`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError, InvalidTopicName, PenstockError
from penstock.base.ids import validate_topic_name
from penstock.broker.metadata.leaders import controller_of, rack_of, serving_epoch
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import BadRequest, error_number, error_of
from penstock.broker.net.listeners import address_of
from penstock.broker.partitions.registry import PartitionRegistry, ServedTopic
from penstock.broker.requests.access import NOT_ASKED, cluster_operations, operations_of
from penstock.control import MetadataImage, Partition, Topic
from penstock.partitions import look_up_watermarks
from penstock.security import CLUSTER
from penstock.storage import StorageError

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.control import ControlPlane
    from penstock.security import Rights


BROKERS: Final = 1
CONTROLLERS: Final = 2

Entry = dict[str, Any]


class Cluster(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    cluster: ClusterMetadata
    control: ControlPlane

    async def unregister_broker(self, context: RequestContext, request: Any) -> Entry:
        """Remove a permanently failed broker from the cluster.

        The control plane rejects this while the broker is alive or holds replicas.
        """
        await self.control.remove_broker(request.broker_id)
        return {"error_code": 0, "error_message": None}

    async def describe_cluster(self, context: RequestContext, request: Any) -> Entry:
        endpoint_type = getattr(request, "endpoint_type", BROKERS)
        if endpoint_type == CONTROLLERS:
            raise MismatchedEndpointType(
                f"endpoint type {CONTROLLERS} (controllers) is not supported: must be 1 (brokers)"
            )
        if endpoint_type != BROKERS:
            raise UnsupportedEndpointType(
                f"endpoint type {endpoint_type} is unknown: must be 1 (brokers)"
            )
        await self.cluster.look()
        image = self.cluster.image
        operations = NOT_ASKED
        if request.include_cluster_authorized_operations:
            operations = cluster_operations(context.rights)
        return {
            "endpoint_type": endpoint_type,
            "cluster_id": image.cluster_id,
            "controller_id": controller_of(image),
            "brokers": [
                {
                    "broker_id": broker.broker_id,
                    **address_of(broker, context.connection.listener),
                    "rack": broker.rack or None,
                    "is_fenced": False,
                }
                for broker in image.brokers
            ],
            "cluster_authorized_operations": operations,
        }

    async def describe_topic_partitions(self, context: RequestContext, request: Any) -> Entry:
        await self.cluster.refresh()
        names, first = _range(self.cluster.image, request)
        rights = context.rights
        refused = [name for name in names if not rights.allows("describe", "topic", name)]
        names = [name for name in names if rights.allows("describe", "topic", name)]
        hidden = [_refused(context, name) for name in refused] if request.topics else []
        limit = self.settings.max_request_partition_size_limit
        left = max(1, min(limit, request.response_partition_limit))
        topics: list[Entry] = []
        for name in names:
            if left == 0:
                return _page(topics + hidden, name, 0)
            topic = self.cluster.image.topics.get(name)
            if topic is None:
                topics.append(_unknown(rights, name))
                continue
            end = min(len(topic.partitions), first + left)
            partitions = self.cluster.shown(topic, rack_of(context.client_id, self.cluster.image))
            topics.append(_described(rights, topic, partitions[first:end], self.cluster.live))
            left -= max(0, end - first)
            if end < len(topic.partitions):
                return _page(topics + hidden, name, end)
            first = 0
        return {"topics": topics + hidden, "next_cursor": None}


class MismatchedEndpointType(InvalidError):
    """Request for the controllers of the cluster, sent to a broker."""

    code: ClassVar[str] = "mismatched_endpoint_type"


class UnsupportedEndpointType(InvalidError):
    code: ClassVar[str] = "unsupported_endpoint_type"


def _range(image: MetadataImage, request: Any) -> tuple[list[str], int]:
    asked = [topic.name for topic in request.topics]
    names = sorted(set(asked) if asked else image.topics)
    cursor = request.cursor
    if cursor is None:
        return names, 0
    if cursor.partition_index < 0:
        raise BadRequest(f"cursor: partition {cursor.partition_index} is negative")
    names = [name for name in names if name >= cursor.topic_name]
    starts_within = bool(names) and names[0] == cursor.topic_name
    return names, cursor.partition_index if starts_within else 0


def _page(topics: list[Entry], name: str, partition: int) -> Entry:
    return {
        "topics": topics,
        "next_cursor": {"topic_name": name, "partition_index": partition},
    }


def _refused(context: RequestContext, name: str) -> Entry:
    number, _ = error_of(context.refusal("describe", "topic", name))
    return {"error_code": number, "name": name, "partitions": ()}


def _unknown(rights: Rights, name: str) -> Entry:
    code = "unknown_topic_or_partition"
    try:
        validate_topic_name(name)
    except InvalidTopicName as error:
        code = error.code
    return {
        "error_code": error_number(code),
        "name": name,
        "topic_authorized_operations": operations_of(rights, "topic", name),
        "partitions": (),
    }


def _described(
    rights: Rights, topic: Topic, partitions: Sequence[Partition], live: frozenset[int]
) -> Entry:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "topic_authorized_operations": operations_of(rights, "topic", topic.name),
        "partitions": [
            {
                "partition_index": partition.index,
                "leader_id": partition.leader if partition.leader in live else -1,
                "leader_epoch": serving_epoch(topic, partition),
                "replica_nodes": partition.copies,
                "isr_nodes": partition.isr,
                "eligible_leader_replicas": (),
                "last_known_elr": (),
                "offline_replicas": [copy for copy in partition.copies if copy not in live],
            }
            for partition in partitions
        ],
    }


# DescribeQuorum: the state of the cluster's metadata, as of the partition `__cluster_metadata-0`.
#
# The database has the role of Kafka's quorum of controllers. It has no replicas that a client could
# address, so the response describes the database by the broker that Metadata reports as controller:
#
# - The only voter, and the leader, is this broker. Its log end offset is the version of the newest
#   metadata in the database, which is also the high watermark.
# - The leader epoch is the cluster epoch, which rises with every registration of a broker.
# - All other brokers are observers. The broker that responds reports the version of its own image;
#   those of other brokers are unknown to it (-1).
#
# Source: KIP-595, KIP-836, KIP-853; Kafka's `DescribeQuorumRequest`, `MetadataQuorumCommand`.


METADATA_TOPIC: Final = "__cluster_metadata"
_UNKNOWN_VERSION: Final = -1


class Quorum(Struct, frozen=True, kw_only=True):
    node_id: int
    clock: Clock
    cluster: ClusterMetadata

    async def describe_quorum(self, context: RequestContext, request: Any) -> Entry:
        asked = [(topic.topic_name, topic.partitions) for topic in request.topics]
        if [(name, [row.partition_index for row in rows]) for name, rows in asked] != [
            (METADATA_TOPIC, [0])
        ]:
            unknown = error_number("unknown_topic_or_partition")
            return {
                "topics": [
                    {
                        "topic_name": name,
                        "partitions": [_no_quorum(row.partition_index, unknown) for row in rows],
                    }
                    for name, rows in asked
                ],
                "nodes": (),
            }
        await self.cluster.refresh()
        image = self.cluster.image
        leader_id = controller_of(image)
        states = [self._replica(image, broker.broker_id, leader_id) for broker in image.brokers]
        partition = {
            "partition_index": 0,
            "leader_id": leader_id,
            "leader_epoch": image.cluster_epoch,
            "high_watermark": image.version,
            "current_voters": [state for state in states if state["replica_id"] == leader_id],
            "observers": [state for state in states if state["replica_id"] != leader_id],
        }
        return {
            "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
            "nodes": [
                {
                    "node_id": broker.broker_id,
                    "listeners": [
                        {"name": name, "host": host, "port": port}
                        for name, host, port in broker.endpoints
                    ],
                }
                for broker in image.brokers
                if broker.broker_id == leader_id
            ],
        }

    def _replica(self, image: MetadataImage, broker_id: int, leader_id: int) -> Entry:
        is_current = broker_id in (self.node_id, leader_id)
        now_ms = self.clock.now_ms() if is_current else -1
        return {
            "replica_id": broker_id,
            "log_end_offset": image.version if is_current else _UNKNOWN_VERSION,
            "last_fetch_timestamp": now_ms,
            "last_caught_up_timestamp": now_ms,
        }


def _no_quorum(index: int, error: int) -> Entry:
    return {
        "partition_index": index,
        "error_code": error,
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": (),
        "observers": (),
    }


# DescribeLogDirs: sizes of partitions by log directory, and free space. AlterReplicaLogDirs: moves
# of partitions between directories, which a broker with one directory rejects by name.
#
# The object store of diskless topics is reported as another log directory, with its URL as name.
# Every broker reports only those diskless partitions of which clients see it as leader, so that no
# partition is reported twice.
#
# Source: KIP-113, KIP-827 (total and usable bytes); Kafka's `ReplicaManager.describeLogDirs`.


if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.diskless.topics.service import DisklessService
    from penstock.partitions import Partition as ServedPartition
    from penstock.storage import LogStore

    _Led = Mapping[int, ServedPartition]


class LogDirs(Struct, frozen=True, kw_only=True):
    node_id: int
    store: LogStore
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    diskless: DisklessService | None

    async def describe_log_dirs(self, context: RequestContext, request: Any) -> Entry:
        """Return the sizes of all partitions that this broker leads, or of the requested ones."""
        await self.cluster.look()
        topics = self.partitions.topics
        asked: dict[str, Iterable[int]] = {
            name: range(len(topic.partitions)) for name, topic in topics.items()
        }
        if request.topics is not None:
            asked = {
                topic.topic: topic.partitions for topic in request.topics if topic.topic in topics
            }
        led = {name: self._led(topics[name], indexes) for name, indexes in asked.items()}
        results = [_directory(self.store, led)]
        if self.diskless is not None:
            results.append(await _object_store(self.diskless.store_url, led))
        return {"results": results}

    def alter_replica_log_dirs(self, context: RequestContext, request: Any) -> Entry:
        """Accept moves to the only directory of the broker, which change nothing; reject others."""
        refused = 0
        if not context.rights.allows("alter", "cluster", CLUSTER):
            refused, _ = error_of(context.refusal("alter", "cluster", CLUSTER))
        return {
            "results": [
                {
                    "topic_name": topic.name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "error_code": refused
                            or self._move_error(asked.path, topic.name, index),
                        }
                        for index in topic.partitions
                    ],
                }
                for asked in request.dirs
                for topic in asked.topics
            ]
        }

    def _move_error(self, path: str, name: str, index: int) -> int:
        if path != self.store.directory:
            return error_number("log_dir_not_found")
        topic = self.partitions.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return error_number("unknown_topic_or_partition")
        return 0 if topic.partitions[index] is not None else error_number("replica_not_available")

    def _led(self, topic: ServedTopic, indexes: Iterable[int]) -> _Led:
        """Return the partitions whose leader is this broker in metadata responses, by index."""
        selected = frozenset(indexes)
        return {
            row.index: partition
            for row, partition in zip(
                self.cluster.shown(topic.topic), topic.partitions, strict=True
            )
            if partition is not None and row.leader == self.node_id and row.index in selected
        }


def _directory(store: LogStore, led: Mapping[str, _Led]) -> Entry:
    directory = store.directory
    failed = store.failed
    try:
        room = shutil.disk_usage(directory)
    except OSError as error:
        failed = StorageError(f"{directory}: {error}")
    if failed is not None:
        return _offline(directory, failed)
    return {
        "log_dir": directory,
        "topics": _topics(led, ""),
        "total_bytes": room.total,
        "usable_bytes": room.free,
    }


async def _object_store(url: str, led: Mapping[str, _Led]) -> Entry:
    try:
        await look_up_watermarks(
            partition for partitions in led.values() for partition in partitions.values()
        )
    except PenstockError as error:
        return _offline(url, error)
    return {"log_dir": url, "topics": _topics(led, url)}


def _offline(log_dir: str, error: PenstockError) -> Entry:
    return {"log_dir": log_dir, "error_code": error_of(error)[0], "topics": ()}


def _topics(led: Mapping[str, _Led], store_url: str) -> list[Entry]:
    """Return the sizes of partitions in the object store `store_url`; if empty, on the disk."""
    topics: list[Entry] = []
    for name, by_index in led.items():
        partitions = [
            {"partition_index": index, "partition_size": partition.size_bytes, "offset_lag": 0}
            for index, partition in by_index.items()
            if partition.store_url == store_url
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return topics
