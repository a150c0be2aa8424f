"""What the client knows of the cluster: brokers, topics, leaders.

`ClusterMetadata` is one answer, as a value. `MetadataCache` is the core that keeps the newest
knowledge: answers go in, leaders come out, failures mark what must be asked for again. It never
does I/O and takes the time as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.client import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker's identity and the address that it tells clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """A partition, its leader (-1 while there is none) and its replicas."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic; `error_code` is not 0 when the broker could not describe it."""

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    internal: bool = False
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """One answer: the cluster, its brokers and the topics asked for."""

    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicMetadata]


def from_response(response: Any) -> ClusterMetadata:
    """Read a Metadata answer."""
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


@dataclass(slots=True)
class MetadataCache:
    """The newest knowledge of brokers and topics, and how old it is."""

    max_age_ms: int = limits.METADATA_MAX_AGE_MS
    nodes: dict[int, Node] = field(default_factory=dict)
    controller_id: int = -1
    _topics: dict[str, tuple[float, TopicMetadata]] = field(default_factory=dict)

    def update(self, answer: ClusterMetadata, *, now_ms: float) -> None:
        """Take an answer in. Topics with an error are forgotten."""
        if answer.nodes:
            self.nodes = dict(answer.nodes)
            self.controller_id = answer.controller_id
        for name, topic in answer.topics.items():
            if topic.error_code:
                self._topics.pop(name, None)
            else:
                self._topics[name] = (now_ms, topic)

    def topic(self, name: str, *, now_ms: float) -> TopicMetadata | None:
        """The topic, or None if it is unknown, stale, or lacks a leader somewhere."""
        entry = self._topics.get(name)
        if entry is None or now_ms - entry[0] > self.max_age_ms:
            return None
        return entry[1]

    def leaders(self, name: str, *, now_ms: float) -> dict[int, int]:
        """Partition to leader, without the partitions that have none."""
        topic = self.topic(name, now_ms=now_ms)
        if topic is None:
            return {}
        return {item.index: item.leader for item in topic.partitions if item.leader in self.nodes}

    def forget(self, names: Iterable[str]) -> None:
        """Mark topics as not known, after an answer that says that a leader has moved."""
        for name in names:
            self._topics.pop(name, None)

    def forget_all(self) -> None:
        """Mark all topics, and who the controller is, as not known: a broker may be gone."""
        self._topics.clear()
        self.controller_id = -1
