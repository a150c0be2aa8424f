"""Encoding of requests and decoding of responses, without sockets.

`Negotiated` holds the version ranges that a broker advertises, and chooses the highest common
version of each call. The client's own maximum versions are below those that identify topics by id,
so the client needs only a topic's name. Fetch is the exception: with topic ids, all fetched records
are of the same topic, even if it was deleted and created again.

A request is a list of pieces, so record batches are never copied between the encoder and the
socket. Codecs that `penstock.wire.kafka` compiles from Kafka's schemas encode and decode bodies.

Source: Kafka's protocol guide; KIP-35 (ApiVersions), KIP-511.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from msgspec import Struct, field

from penstock.client.errors import MalformedResponse, UnsupportedByBroker
from penstock.wire.kafka.apis import BY_NAME, Api
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import MalformedRequest, request_frame

VERSION_MAX: Final[Mapping[str, int]] = {
    "Produce": 9,
    "Fetch": 16,
    "ListOffsets": 7,
    "Metadata": 12,
    "OffsetCommit": 8,
    "OffsetFetch": 7,
    "FindCoordinator": 3,
    "DescribeGroups": 5,
    "ConsumerGroupDescribe": 1,
    "ListGroups": 5,
    "ApiVersions": 3,
    "CreateTopics": 7,
    "DeleteTopics": 5,
    "DeleteRecords": 2,
    "InitProducerId": 4,
    "EndTxn": 5,
    "TxnOffsetCommit": 5,
    "DescribeConfigs": 4,
    "CreatePartitions": 3,
    "DeleteGroups": 2,
    "IncrementalAlterConfigs": 1,
    "ElectLeaders": 2,
    "AlterPartitionReassignments": 1,
    "ListPartitionReassignments": 0,
    "OffsetDelete": 0,
    "DescribeCluster": 0,
    "DescribeProducers": 0,
    "DescribeLogDirs": 4,
    "UnregisterBroker": 0,
    "AddPartitionsToTxn": 5,
    "AddOffsetsToTxn": 4,
    "SaslHandshake": 1,
    "SaslAuthenticate": 2,
    "WriteTxnMarkers": 2,
    "DescribeTransactions": 0,
    "ListTransactions": 1,
    "DescribeClientQuotas": 1,
    "AlterClientQuotas": 1,
    "DescribeAcls": 3,
    "CreateAcls": 3,
    "DeleteAcls": 3,
    "DescribeUserScramCredentials": 0,
    "AlterUserScramCredentials": 0,
    "ShareGroupHeartbeat": 1,
    "ShareGroupDescribe": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
}
"""Highest version of each call that this client supports."""
VERSION_MIN: Final[Mapping[str, int]] = {
    "Produce": 9,
    "Fetch": 12,
    "Metadata": 9,
    "EndTxn": 5,
    "TxnOffsetCommit": 5,
    "ShareGroupHeartbeat": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
}
"""Lowest version of the calls whose older versions this client does not support."""

API_VERSIONS_FIRST: Final = 3


class Call(Struct, frozen=True, kw_only=True):
    """Encoded request, with the information that is needed to decode its response."""

    api: Api
    version: int
    correlation_id: int
    pieces: tuple[bytes | memoryview, ...]

    @property
    def response_header_bytes(self) -> int:
        return 4 + self.api.response_header_version(self.version)


class Negotiated(Struct):
    """Version ranges that one broker advertised, by API key."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)

    def update(self, response: Any) -> None:
        self.ranges = {
            int(item.api_key): (int(item.min_version), int(item.max_version))
            for item in response.api_keys
        }

    def missing(self) -> list[str]:
        names = []
        for name in VERSION_MAX:
            try:
                self.version(name, "the broker")
            except UnsupportedByBroker:
                names.append(name)
        return names

    def version(self, name: str, where: str) -> int:
        """Return the highest common version of a call.

        Raises:
            UnsupportedByBroker: client and broker have no common version.
        """
        highest = VERSION_MAX[name]
        lowest = VERSION_MIN.get(name, 0)
        offered = self.ranges.get(BY_NAME[name].key)
        if offered is None:
            raise UnsupportedByBroker(f"{where} does not support {name}")
        chosen = min(highest, offered[1])
        if chosen < max(lowest, offered[0]):
            raise UnsupportedByBroker(
                f"{where} supports {name} in versions {offered[0]} to {offered[1]}, but"
                f" this client supports only {lowest} to {highest}"
            )
        return chosen


def make_call(
    name: str, version: int, body: Mapping[str, Any], *, correlation_id: int, client_id: bytes
) -> Call:
    api = BY_NAME[name]
    written = encoder(name, version, "request")(body)
    frame = request_frame(api.key, version, correlation_id, client_id, written)
    return Call(api=api, version=version, correlation_id=correlation_id, pieces=(frame,))


def check_correlation(call: Call, frame: memoryview, where: str) -> int:
    """Check that a response belongs to a call; return the offset of its body.

    Raises:
        MalformedResponse: the response is too short, or belongs to another call.
    """
    if len(frame) < call.response_header_bytes:
        raise MalformedResponse(f"{where} answered {call.api.name} with {len(frame)} bytes")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    if correlation_id != call.correlation_id:
        raise MalformedResponse(
            f"{where} sent the response to call number {correlation_id} in place of that to"
            f" {call.api.name} number {call.correlation_id}"
        )
    return call.response_header_bytes


def read_response(call: Call, frame: memoryview, where: str) -> Any:
    """Decode a response to an object of the `kio` library, which has a class per response version.

    Raises:
        MalformedResponse: the response does not follow the schema of the requested version.
    """
    offset = check_correlation(call, frame, where)
    version = call.version
    if call.api.name == "ApiVersions" and int.from_bytes(frame[4:6], "big", signed=True) == 35:
        version = 0  # KIP-511: a broker answers an unknown version in version 0
    try:
        entity, _ = decoder(call.api.name, version, "response")(frame, offset)
    except MalformedRequest as error:
        raise MalformedResponse(f"{where} answered {call.api.name}: {error}") from None
    return entity


# Metadata of the cluster: brokers, topics, leaders.
#
# `ClusterMetadata` is one response as a value. `MetadataCache` is a core that holds the newest
# metadata. `update` adds a response, `leaders` returns leaders, and `forget` drops topics after a
# failure, so they are requested again. It has no I/O, and takes the time as a parameter.


METADATA_MAX_AGE_MS: Final = 300_000
"""Age in milliseconds at which metadata is requested again even without a failure."""


TopicAndPartition = tuple[str, int]
"""A topic's name and a partition number."""


class Node(Struct, frozen=True, kw_only=True):
    """Broker id with its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PartitionMetadata(Struct, frozen=True, kw_only=True):
    """Partition with its leader (-1 for none) and its replicas."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error_code: int = 0


class TopicMetadata(Struct, frozen=True, kw_only=True):
    """Topic with its partitions; `error_code` is not 0 if the broker could not describe it."""

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    internal: bool = False
    error_code: int = 0


class ClusterMetadata(Struct, frozen=True, kw_only=True):
    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicMetadata]


def from_response(response: Any) -> ClusterMetadata:
    return ClusterMetadata(
        cluster_id=response.cluster_id,
        controller_id=int(response.controller_id),
        nodes={
            int(item.node_id): Node(
                node_id=int(item.node_id), host=item.host, port=int(item.port), rack=item.rack
            )
            for item in response.brokers
        },
        topics={str(topic.name): _topic(topic) for topic in response.topics},
    )


def _topic(topic: Any) -> TopicMetadata:
    partitions = (
        PartitionMetadata(
            index=int(item.partition_index),
            leader=int(item.leader_id),
            leader_epoch=int(item.leader_epoch),
            replicas=tuple(map(int, item.replica_nodes)),
            isr=tuple(map(int, item.isr_nodes)),
            error_code=int(item.error_code),
        )
        for item in topic.partitions
    )
    return TopicMetadata(
        name=str(topic.name),
        topic_id=getattr(topic, "topic_id", None),
        internal=bool(topic.is_internal),
        error_code=int(topic.error_code),
        partitions=tuple(sorted(partitions, key=lambda item: item.index)),
    )


class MetadataCache(Struct):
    """Newest metadata of brokers and topics, with its age."""

    max_age_ms: int = METADATA_MAX_AGE_MS
    nodes: dict[int, Node] = field(default_factory=dict)
    controller_id: int = -1
    _topics: dict[str, tuple[float, TopicMetadata]] = field(default_factory=dict)

    def update(self, answer: ClusterMetadata, *, now_ms: float) -> None:
        if answer.nodes:
            self.nodes = dict(answer.nodes)
            self.controller_id = answer.controller_id
        for name, topic in answer.topics.items():
            if topic.error_code:
                self._topics.pop(name, None)
            else:
                self._topics[name] = (now_ms, topic)

    def topic(self, name: str, *, now_ms: float) -> TopicMetadata | None:
        """Return the topic; None if it is unknown or stale, or a partition has no leader."""
        entry = self._topics.get(name)
        if entry is None or now_ms - entry[0] > self.max_age_ms:
            return None
        return entry[1]

    def leaders(self, name: str, *, now_ms: float) -> dict[int, int]:
        topic = self.topic(name, now_ms=now_ms)
        if topic is None:
            return {}
        return {item.index: item.leader for item in topic.partitions if item.leader in self.nodes}

    def forget(self, names: Iterable[str]) -> None:
        """Drop topics, after a response has shown that a leader moved."""
        for name in names:
            self._topics.pop(name, None)

    def forget_all(self) -> None:
        """Drop all topics and the controller, because a broker may be down."""
        self._topics.clear()
        self.controller_id = -1
