"""The values of the control plane: topics, partitions, brokers, offsets, groups.

All are frozen. A `MetadataImage` is one consistent state of topics and brokers; its `version`
rises by one with every change, so equal versions mean equal images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of a topic: who leads it, in which epoch, and where its replicas are."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. `configs` holds only what was set on the topic itself, as text."""

    topic_id: UUID
    name: str
    configs: Mapping[str, str]
    partitions: tuple[Partition, ...]
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A registered broker process. `epoch` rises with every registration of the id."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    incarnation: UUID
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """One consistent state of the cluster's metadata.

    `broker_configs` is keyed by the broker's id as text; the empty key holds the cluster-wide
    defaults.
    """

    version: int
    cluster_id: str
    brokers: tuple[Broker, ...] = ()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of this id, by a walk over all topics; None if there is none."""
        return next((t for t in self.topics.values() if t.topic_id == topic_id), None)

    def broker(self, broker_id: int) -> Broker | None:
        """The registered broker of this id; None if there is none."""
        return next((b for b in self.brokers if b.broker_id == broker_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A group's position in one partition; `offset` is the next record to read.

    `expire_timestamp_ms` is None where the group's retention decides.
    """

    topic_id: UUID
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What is kept of a group. `state` is opaque here; `version` is its compare-and-set mark."""

    group_id: str
    version: int
    generation: int
    protocol_type: str
    protocol: str
    state: bytes
