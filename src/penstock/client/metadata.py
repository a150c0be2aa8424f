"""Metadata of the cluster: brokers, topics, leaders.

`ClusterMetadata` is one response as a value. `MetadataCache` is a core that holds the newest
metadata. `update` adds a response, `leaders` returns leaders, and `forget` drops topics after a
failure, so they are requested again. It has no I/O, and takes the time as a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from msgspec import Struct, field

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
