"""Values of the control plane: topics, partitions, brokers, offsets, sink commits. All are frozen.

A `MetadataImage` is one consistent state of topics and brokers. Its `version` rises by one with
every change, so equal versions mean equal images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from penstock.control.values.diskless import Watermarks
from penstock.control.values.errors import CHANGES_KNOWN_MAX

SEQUENCES: Final = 2**31
"""Number of sequences of an idempotent producer. After the last one comes 0."""

SinkState = Literal["intent", "done"]

INGESTION: Final = "ingestion"
PERSISTENCE: Final = "persistence"
ROLES: Final = (INGESTION, PERSISTENCE)
"""Roles of brokers.

`ingestion` serves requests that need no local replica; `persistence` stores replicas.
"""

EntityConfigs = Mapping[tuple[str, str], Mapping[str, str]]
"""Configs of entities other than topics and brokers, by (kind, name)."""

QUOTA: Final = "quota"
CLIENT_METRICS: Final = "client-metrics"
ACL: Final = "acl"
SCRAM: Final = "scram"
DELEGATION: Final = "delegation-token"
"""Kinds of entities.

A quota is named by its entities as text, a subscription to client metrics by its own name. An ACL
binding is named by its text form, SCRAM credentials by their user, a delegation token by its id.
"""
BETWEEN_BROKERS: Final = "between-brokers"
"""Kind of the secrets that brokers share. Clients cannot read them."""

WatermarksListener = Callable[[Sequence[tuple[UUID, int, Watermarks]]], None]
"""Callback that takes (topic id, partition, watermarks) of changed partitions.

The size in bytes is unknown.
"""


class Partition(Struct, frozen=True, kw_only=True):
    """A partition of a topic: its leader, leader epoch and replicas.

    A reassignment has a number, `move`, and its new replicas, `target`; without one, `move` is 0. A
    diskless partition that becomes replicated has a `target` while its logs are filled, and a
    `move` while it is fenced.
    """

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    target: tuple[int, ...] = ()
    move: int = 0

    @property
    def adding(self) -> tuple[int, ...]:
        """Brokers that are copying the log and then become replicas."""
        return tuple([broker_id for broker_id in self.target if broker_id not in self.replicas])

    @property
    def removing(self) -> tuple[int, ...]:
        """Replicas that a reassignment removes."""
        return tuple(
            [replica for replica in self.replicas if self.move and replica not in self.target]
        )

    @property
    def copies(self) -> tuple[int, ...]:
        """Brokers that have or are copying the log. Those of the target come first, as in Kafka."""
        return (*self.target, *self.removing) if self.move else self.replicas

    @property
    def has_epochs(self) -> bool:
        """Whether the partition has, had or will have several replicas."""
        return len(self.replicas) > 1 or self.leader_epoch > 0 or self.move > 0


class Topic(Struct, frozen=True, kw_only=True):
    """A topic. `configs` has the topic's own settings, as text, without defaults."""

    topic_id: UUID
    name: str
    configs: Mapping[str, str]
    partitions: tuple[Partition, ...]
    internal: bool = False


class Broker(Struct, frozen=True, kw_only=True):
    """A registered broker process. `epoch` rises with every registration of the id.

    `endpoints` has the advertised addresses, as (listener, host, port). `host` and `port` are those
    of the first one, and are used for a listener that is not among them.
    """

    broker_id: int
    host: str
    port: int
    rack: str | None
    incarnation: UUID
    epoch: int
    endpoints: tuple[tuple[str, str, int], ...] = ()
    roles: tuple[str, ...] = ROLES

    def endpoint(self, listener: str) -> tuple[str, int]:
        """Return the advertised host and port for clients of a listener."""
        for name, host, port in self.endpoints:
            if name == listener:
                return host, port
        return self.host, self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """A consistent state of the cluster's metadata.

    `broker_configs` is keyed by the broker's id as text; the empty key has the cluster-wide
    defaults. `cluster_epoch` rises with every change of the registered brokers, and fences older
    coordinators. `entity_configs` omits empty configs, and is the same object in all images without
    a change of it.
    """

    version: int
    cluster_id: str
    brokers: tuple[Broker, ...] = ()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    entity_configs: EntityConfigs = field(default_factory=dict, repr=False)
    cluster_epoch: int = 0
    origin: object = field(default_factory=object, compare=False, repr=False)
    """Object that is shared by all images derived from the same loaded image."""
    newest: tuple[tuple[int, str], ...] = field(default=(), compare=False, repr=False)
    """(version, topic name) of the newest topic changes since the image was loaded."""

    def changed_since(self, before: MetadataImage) -> Collection[str] | None:
        """Return the names of topics that changed since an earlier image, or None if unknown."""
        newest = self.newest
        cut = len(newest) == CHANGES_KNOWN_MAX and newest[0][0] > before.version
        if cut or before.origin is not self.origin:
            return None
        return dict.fromkeys(name for version, name in newest if version > before.version)

    names: dict[UUID, str] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Names of topics by id, filled at the first lookup."""

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        if not self.names:
            self.names.update({topic.topic_id: name for name, topic in self.topics.items()})
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def broker(self, broker_id: int) -> Broker | None:
        return next((b for b in self.brokers if b.broker_id == broker_id), None)

    @property
    def serving(self) -> tuple[Broker, ...]:
        """Brokers with the ingestion role, or all brokers if none has it."""
        return (
            tuple([broker for broker in self.brokers if INGESTION in broker.roles]) or self.brokers
        )

    @property
    def storing(self) -> tuple[Broker, ...]:
        return tuple([broker for broker in self.brokers if PERSISTENCE in broker.roles])


class CommittedOffset(Struct, frozen=True, kw_only=True):
    """A group's position in one partition. `offset` is the next record to read.

    `expire_timestamp_ms` is None if the retention of the group's offsets applies.
    """

    topic_id: UUID
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int | None = None


GroupCommit = tuple[str, Sequence[CommittedOffset]]
"""A group's id and the offsets that it commits."""

OFFSETS_PER_CALL_MAX: Final = 100_000
"""Offsets that one call stores or deletes."""


class StableOffsets(Struct, frozen=True, kw_only=True):
    """A group's committed offsets, and the partitions in which it has pending offsets."""

    committed: Sequence[CommittedOffset]
    unstable: Collection[tuple[str, int]]


class SinkTarget(Struct, frozen=True, kw_only=True):
    """A partition that a sink commits to: its producer, sequences and offsets.

    `base_sequence` is the sequence of the commit's first record in the partition. `records` is the
    number of its records, 0 if this commit does not write to the partition. The offsets are -1
    until the records are appended. A target in a diskless topic has no producer (-1).
    """

    topic: str
    topic_id: UUID
    partition: int
    producer_id: int
    base_sequence: int
    records: int
    base_offset: int = -1
    next_offset: int = -1

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + self.records) % SEQUENCES


class SinkCommit(Struct, frozen=True, kw_only=True):
    """The newest commit of a Spark query that writes to topics.

    In state `intent`, `manifest` names the records to append; it is opaque here. In state `done`,
    all of them are appended. `version` is for compare-and-set.
    """

    query_id: str
    owner: str | None
    batch_id: int
    state: SinkState
    targets: tuple[SinkTarget, ...] = ()
    manifest: bytes = b""
    updated_ms: int = 0
    version: int = 0
