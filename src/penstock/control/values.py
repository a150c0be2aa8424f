"""The values of the control plane: topics, partitions, brokers, offsets, groups, sink commits.

All are frozen. A `MetadataImage` is one consistent state of topics and brokers; its `version`
rises by one with every change, so equal versions mean equal images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from penstock.control.batch_index.values import Watermarks
from penstock.control.limits import CHANGES_KNOWN_MAX

SEQUENCES: Final = 2**31
"""Sequences of an idempotent producer; after the last one comes 0."""

SinkState = Literal["intent", "done"]

INGESTION: Final = "ingestion"
PERSISTENCE: Final = "persistence"
ROLES: Final = (INGESTION, PERSISTENCE)
"""What brokers are for: what needs no replica on their disks; replicas on their disks."""

EntityConfigs = Mapping[tuple[str, str], Mapping[str, str]]
"""By kind and name of what is neither a topic nor a broker."""

QUOTA: Final = "quota"
CLIENT_METRICS: Final = "client-metrics"
ACL: Final = "acl"
SCRAM: Final = "scram"
"""Kinds: quotas, by their entities as text; subscriptions to clients' metrics, by their names; ACL
bindings, by their stored form; SCRAM credentials, by their user."""
BETWEEN_BROKERS: Final = "between-brokers"
"""A kind too: what brokers know of each other, and nobody is shown."""

WatermarksListener = Callable[[Sequence[tuple[UUID, int, Watermarks]]], None]
"""Takes (topic id, partition, where it begins and ends but for its size), any number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of a topic: who leads it, in which epoch, and where its replicas are.

    `target` are the replicas that it is to have, while `move`, which numbers the orders for that,
    is not 0. A diskless one has a target while logs are filled, and a `move` while it is fenced.
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
        """The brokers that are to become replicas, and learn the log."""
        return tuple([one for one in self.target if one not in self.replicas])

    @property
    def removing(self) -> tuple[int, ...]:
        """The replicas that are to be none any more."""
        return tuple(
            [replica for replica in self.replicas if self.move and replica not in self.target]
        )

    @property
    def copies(self) -> tuple[int, ...]:
        """The brokers that have, or learn, the log: those to stay first, as Kafka shows them."""
        return (*self.target, *self.removing) if self.move else self.replicas

    @property
    def has_epochs(self) -> bool:
        """Whether several replicas have it, are to have it, or had it."""
        return len(self.replicas) > 1 or self.leader_epoch > 0 or self.move > 0


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
    """A registered broker process. `epoch` rises with every registration of the id.

    `endpoints` are the addresses that clients are told, as (listener, host, port); who comes by
    another listener is told `host` and `port`, which are those of the first.
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
        """Host and port for clients of a listener."""
        for name, host, port in self.endpoints:
            if name == listener:
                return host, port
        return self.host, self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """One consistent state of the cluster's metadata.

    `broker_configs` is keyed by the broker's id as text; the empty key holds the cluster-wide
    defaults. `cluster_epoch` rises with every change of which brokers are registered: by it a
    coordinator proves that what it owned is still its own. `entity_configs` has no empty ones, and
    is the same object in all images between which it did not change.
    """

    version: int
    cluster_id: str
    brokers: tuple[Broker, ...] = ()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    entity_configs: EntityConfigs = field(default_factory=dict, repr=False)
    cluster_epoch: int = 0
    origin: object = field(default_factory=object, compare=False, repr=False)
    """The same in all images that rules made one of another; one that was read has its own."""
    newest: tuple[tuple[int, str], ...] = field(default=(), compare=False, repr=False)
    """Of the newest changes of topics since the origin: the version, and the topic's name."""

    def changed_since(self, before: MetadataImage) -> Collection[str] | None:
        """Names of the topics that differ from an earlier image's; None if that is not known."""
        newest = self.newest
        cut = len(newest) == CHANGES_KNOWN_MAX and newest[0][0] > before.version
        if cut or before.origin is not self.origin:
            return None
        return dict.fromkeys(name for version, name in newest if version > before.version)

    names: dict[UUID, str] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Of topics by their ids, once one was asked for."""

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of this id; None if there is none."""
        if not self.names:
            self.names.update({topic.topic_id: name for name, topic in self.topics.items()})
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def broker(self, broker_id: int) -> Broker | None:
        """The registered broker of this id; None if there is none."""
        return next((b for b in self.brokers if b.broker_id == broker_id), None)

    @property
    def serving(self) -> tuple[Broker, ...]:
        """The brokers that do what needs no replica; all, where none has that role."""
        return (
            tuple([broker for broker in self.brokers if INGESTION in broker.roles]) or self.brokers
        )

    @property
    def storing(self) -> tuple[Broker, ...]:
        """The brokers that may get replicas."""
        return tuple([broker for broker in self.brokers if PERSISTENCE in broker.roles])


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
class StableOffsets:
    """A group's offsets, and the partitions in which an open transaction may change them.

    `committed` has what is stored of those as well, as it was before.
    """

    committed: Sequence[CommittedOffset]
    unstable: Collection[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """What a sink writes to one partition: by which producer, from which sequence.

    `base_sequence` is that of the commit's first record in the partition, `records` how many it
    has there; a target that the commit does not touch has none. The offsets are -1 until they are
    known: for a topic whose log is on a broker once it has appended, for a diskless one in the
    write that saves the commit; there it has no producer, which is -1.
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
        """The sequence of the first record after the commit."""
        return (self.base_sequence + self.records) % SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommit:
    """The newest commit of one query to the log.

    As an `intent` it names in `manifest`, which is opaque here, what must be appended; `done`
    says that all of it is. `version` is its compare-and-set mark.
    """

    query_id: str
    owner: str | None
    batch_id: int
    state: SinkState
    targets: tuple[SinkTarget, ...] = ()
    manifest: bytes = b""
    updated_ms: int = 0
    version: int = 0
