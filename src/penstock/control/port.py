"""The control-plane port: every change is a compare-and-set, and is durable when it returns.

The port is asynchronous because some forms of it reach over a network. All forms are held to
one contract suite (`tests/control/`). Commit rules are pure functions (`metadata/rules.py`, …) that
all forms share; databases store and lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from penstock.control.coordination.values import CoordinationRecord, RecordChange, SavedRecords
from penstock.control.values import (
    Broker,
    CommittedOffset,
    MetadataImage,
    SinkCommit,
    Topic,
)

MarksListener = Callable[[Sequence[tuple[UUID, int, int, int]]], None]
"""Takes (topic id, partition, high watermark, log start offset), any number of them."""


class ControlPlane(Protocol):
    """Topics, brokers, configs, producer ids, group offsets, coordinators' records, sink commits.

    Every method may raise `ControlUnavailable` or `ControlBusy`; after either, whether the
    change took effect is unknown and the caller reads again by key.
    """

    async def start(self) -> None:
        """Open the store and bring its schema up to date.

        Raises:
            IncompatibleDatabase: written by a newer Penstock, or not one of ours.
        """
        ...

    async def close(self) -> None:
        """Finish what was queued and close the store. Idempotent."""
        ...

    async def ping(self, within_seconds: float) -> None:
        """Have the store itself answer the cheapest question there is, in about this time.

        Raises:
            ControlUnavailable, ControlBusy: it does not; the message says why.
        """
        ...

    async def image(self) -> MetadataImage:
        """The newest committed image; the same object as long as nothing changed."""
        ...

    def watch(self, on_image: Callable[[], None], on_marks: MarksListener) -> None:
        """Have the loop call back when other brokers change something; before `start`.

        `on_image` says that metadata changed, or that notices may have been missed: whoever
        waits for anything looks again then. `on_marks` brings diskless partitions that others
        committed to, as far as they are told: a hint, never the only way to learn of data.
        Forms that have one owner never call.
        """
        ...

    async def register_broker(
        self,
        *,
        broker_id: int,
        host: str,
        port: int,
        rack: str | None,
        incarnation: UUID,
        endpoints: Sequence[tuple[str, str, int]] = (),
    ) -> Broker:
        """Register one incarnation of a broker and give it a new, higher epoch.

        Idempotent for the same incarnation and addresses. `endpoints` are as in `Broker`.
        """
        ...

    async def unregister_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        """Remove a broker, if this incarnation still owns the id.

        Raises:
            StaleBroker: a newer incarnation owns it.
        """
        ...

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        """Say that a broker lives, by the clock of the plane itself.

        Raises:
            StaleBroker: another incarnation owns the id, or it is not registered (any more).
        """
        ...

    async def expire_brokers(self, timeout_ms: int) -> list[int]:
        """Remove brokers that were registered or renewed longer ago than that; which ones.

        Any broker may do it for all. Callers give others time to renew after the plane itself
        was away.
        """
        ...

    async def create_topic(
        self,
        *,
        name: str,
        topic_id: UUID,
        partitions: Sequence[Sequence[int]],
        configs: Mapping[str, str],
        internal: bool = False,
    ) -> Topic:
        """Create a topic; `partitions` lists each partition's replicas, the leader first.

        Raises:
            TopicExists, TopicIdTaken: the name or the id is taken.
            InvalidTopicName, InvalidPartitions, InvalidReplicas: by Kafka's rules.
        """
        ...

    async def delete_topic(self, topic_id: UUID) -> Topic:
        """Delete a topic and every group's offsets in it; returns what it was.

        Raises:
            UnknownTopic: no topic of this id.
        """
        ...

    async def create_partitions(
        self, *, topic_id: UUID, expected_count: int, new: Sequence[Sequence[int]]
    ) -> Topic:
        """Add partitions to a topic that has `expected_count` of them.

        Raises:
            UnknownTopic: no topic of this id.
            StaleTopic: it has another number of partitions.
            InvalidPartitions, InvalidReplicas: none are added, or one is malformed.
        """
        ...

    async def set_topic_configs(
        self, *, topic_id: UUID, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> Topic:
        """Replace a topic's own configs, if they still are `expected` (None: whatever they are).

        Raises:
            UnknownTopic: no topic of this id.
            StaleTopic: they have changed.
        """
        ...

    async def set_broker_configs(
        self, *, broker: str, configs: Mapping[str, str], expected: Mapping[str, str] | None
    ) -> None:
        """Replace a broker's dynamic configs; the empty name is the cluster-wide default.

        Raises:
            StaleConfigs: they are not `expected` any more.
        """
        ...

    async def allocate_producer_ids(self, count: int) -> range:
        """Hand out `count` producer ids that were never handed out and never will be again."""
        ...

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        membership: int | None = None,
    ) -> None:
        """Store a group's offsets, all of them or none; the newest commit of a partition wins.

        Those of an earlier topic of the same name are dropped: they came too late.

        Here and below, `membership` is that of the image by which the caller coordinates the
        group; a coordinator that was paused while its groups moved writes nothing.

        Raises:
            TooLarge: more than `OFFSETS_PER_CALL_MAX` in one call.
            StaleMembership: brokers have come or gone since.
        """
        ...

    async def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> list[CommittedOffset]:
        """A group's offsets in the named partitions, or in all; those without one are left out.

        Ordered by topic and partition.
        """
        ...

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        membership: int | None = None,
    ) -> None:
        """Forget a group's offsets in the named partitions; those without one do not matter.

        Raises:
            TooLarge, StaleMembership: as `commit_offsets`.
        """
        ...

    async def offset_group_ids(self) -> list[str]:
        """The ids of all groups that have an offset, in order."""
        ...

    async def groups_with_offsets(self, group_ids: Sequence[str]) -> list[str]:
        """Those of some groups that have an offset, in any order."""
        ...

    async def record_keys(self, kind: str) -> list[str]:
        """The keys of which coordinators have records, in order."""
        ...

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]:
        """All rows of some keys, by key and member."""
        ...

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        """Store changes of keys, at most one of each key, in one transaction.

        A key that is not at its expected version, or of which a row is larger than
        `RECORD_BYTES_MAX`, is refused alone: with `StaleRecord` or `TooLarge` in the answer.
        `cluster_epoch` is the image's `membership` by which the caller owns the keys.

        Raises:
            StaleMembership: brokers have come or gone since; nothing is stored.
        """
        ...

    async def expire_offsets(self, *, now_ms: int, limit: int) -> int:
        """Delete at most `limit` offsets whose own expiry has passed; how many were deleted."""
        ...

    async def sink_commit(self, query_id: str) -> SinkCommit | None:
        """The newest commit of a query; None for one that has none."""
        ...

    async def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> int:
        """Save a query's commit, if it is at `expected_version` (0: not there); the new version.

        An intent is followed by itself, with other lanes, or by its own end; the end of a batch
        by a higher batch. Versions are drawn from one counter for all queries and never come
        again.

        Raises:
            StaleSink: it is at another version, or the record cannot follow on it.
            TooLarge: too many queries or lanes, or a manifest of more than
                `SINK_MANIFEST_BYTES_MAX`.
        """
        ...

    async def sink_commits(self) -> list[SinkCommit]:
        """The newest commits of all queries, by query id; their manifests are left out."""
        ...

    async def delete_sink_commit(self, query_id: str, *, expected_version: int) -> None:
        """Forget a query; one that is not there does not matter.

        Raises:
            StaleSink: it is at another version.
        """
        ...
