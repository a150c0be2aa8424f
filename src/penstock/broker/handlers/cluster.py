"""DescribeCluster and DescribeTopicPartitions, from the metadata image; UnregisterBroker.

DescribeTopicPartitions returns pages of up to `max.request.partition.size.limit` partitions, in the
order of topic names.

Source: KIP-700, KIP-919, KIP-1073 (DescribeCluster); KIP-966 and Kafka's
`DescribeTopicPartitionsRequestHandler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError, InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.broker.admin_errors import BadRequest
from penstock.broker.connection import RequestContext
from penstock.broker.diskless import rack_of
from penstock.broker.errors import error_number, error_of
from penstock.broker.identity import address_of
from penstock.broker.leader_epochs import serving_epoch
from penstock.broker.operations import NOT_ASKED, cluster_operations, operations_of
from penstock.control import MetadataImage, Partition, Topic

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
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
            "controller_id": min((broker.broker_id for broker in image.serving), default=-1),
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
