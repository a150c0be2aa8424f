"""Coordinator of this broker's groups, and of their committed offsets.

All kinds of groups share one runtime and one set of group ids. Their rows are stored as one kind of
record.

A core only checks whether a client may commit offsets. The offsets themselves go directly to the
control plane, which stores the commits of many groups in few transactions. Like saves, commits are
fenced by the cluster epoch: a commit while brokers join or leave fails, and the client looks up the
coordinator again.

Source: Kafka's `GroupCoordinatorService`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

from penstock.base.errors import BugError, InvalidError, PenstockError
from penstock.base.system import Clock
from penstock.broker.coordination.classic import ClassicGroups, GroupLimits
from penstock.broker.coordination.consumer import (
    ConsumerGroups,
    ConsumerLimits,
    DescribedConsumerGroup,
    MigrationPolicy,
)
from penstock.broker.coordination.conversion import Conversion
from penstock.broker.coordination.coordinator import Coordinator
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import (
    CommitCheck,
    DescribedGroup,
    DescribeGroup,
    FetchCheck,
    ListedGroup,
    ListedGroups,
    ListGroups,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
)
from penstock.broker.coordination.kinds import Groups
from penstock.broker.coordination.loading import FoundKey
from penstock.broker.coordination.modern.topics import NewTopics
from penstock.broker.coordination.ownership import Cluster, CoordinatorNotAvailable
from penstock.broker.coordination.retention import OffsetsRetention
from penstock.broker.coordination.share import (
    DescribedShareGroup,
    EnsureShareGroup,
    ShareGroupLimits,
    ShareGroups,
)
from penstock.broker.coordination.turn import Turn
from penstock.broker.group_configs import ConfigsOfGroups, GroupConfigs
from penstock.broker.metadata.delta import delta_of
from penstock.broker.settings import BrokerSettings
from penstock.control import (
    CommittedOffset,
    ControlPlane,
    CoordinationRecord,
    MetadataImage,
    OpenTransaction,
    StaleClusterEpoch,
)

T = TypeVar("T")

KIND: Final = "group"
DEAD: Final = "Dead"


AnyGroup = DescribedGroup | DescribedConsumerGroup | DescribedShareGroup


def _racks(image: MetadataImage) -> dict[int, str]:
    return {broker.broker_id: broker.rack for broker in image.brokers if broker.rack is not None}


class GroupIdNotFound(InvalidError):
    code: ClassVar[str] = "group_id_not_found"


class GroupRequest(Protocol):
    @property
    def group_id(self) -> str: ...


def _unanswered(response: object) -> PenstockError:
    if isinstance(response, Refused):
        return CoordinatorNotAvailable(response.message)
    return BugError(f"the group core returned an unexpected {type(response).__name__}")


class GroupSource:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def keys(self) -> Collection[str]:
        recorded = await self._control.record_keys(KIND)
        return {*recorded, *await self._control.offset_group_ids()}

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        rows = await self._control.records(KIND, keys)
        with_offsets = frozenset(await self._control.groups_with_offsets(keys))
        found: dict[str, list[CoordinationRecord]] = {key: [] for key in with_offsets}
        for row in rows:
            found.setdefault(row.key, []).append(row)
        return {
            key: FoundKey(rows=rows, has_offsets=key in with_offsets) for key, rows in found.items()
        }


class GroupCoordinator(Coordinator):
    """Group coordinator of one broker; belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: Cluster,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._control = control
        super().__init__(
            KIND,
            self._core,
            node_id=settings.node_id,
            cluster=cluster,
            control=control,
            source=GroupSource(control),
            clock=clock,
            loaded=self._loaded,
        )
        self._seen: MetadataImage | None = None
        self._of_groups = ConfigsOfGroups(settings)
        self._retention = OffsetsRetention(settings, self, control=control, clock=clock)
        self.expire_offsets = self._retention.expire

    def _core(self) -> Groups:
        settings = self._settings
        registered = self._cluster.image.broker(self.ownership.node_id)
        turn = Turn()
        classic = ClassicGroups(
            turn,
            GroupLimits(
                groups_max=settings.groups_max,
                group_max_size=settings.group_max_size,
                group_min_session_timeout_ms=settings.group_min_session_timeout_ms,
                group_max_session_timeout_ms=settings.group_max_session_timeout_ms,
                group_initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            ),
            epoch=0 if registered is None else registered.epoch,
        )
        consumer = ConsumerGroups(turn, self._consumer_limits())
        self._seen = self._cluster.image
        share = ShareGroups(turn, self._share_limits())
        consumer.topics = share.topics = self._seen.topics
        consumer.racks = share.racks = _racks(self._seen)
        Conversion(turn, classic, consumer)
        return Groups(turn, [classic, consumer, share])

    def _share_limits(self) -> ShareGroupLimits:
        settings = self._settings
        return ShareGroupLimits(
            configs=self._configs,
            groups_max=settings.groups_max,
            max_size=settings.group_share_max_size,
            assignment_interval=settings.group_share_assignment_interval_ms,
        )

    def _configs(self, group_id: str) -> GroupConfigs:
        return self._of_groups.of(self._cluster.image.entity_configs, group_id)

    def _consumer_limits(self) -> ConsumerLimits:
        settings = self._settings
        return ConsumerLimits(
            groups_max=settings.groups_max,
            max_size=settings.group_consumer_max_size,
            configs=self._configs,
            assignors=settings.group_consumer_assignors,
            migration=MigrationPolicy(settings.group_consumer_migration_policy),
            regex_refresh_ms=settings.group_consumer_regex_refresh_interval_ms,
        )

    def image_changed(self) -> None:
        seen, image = self._seen, self._cluster.image
        if seen is not None and not self.runtime.stopped:
            self._seen = image
            delta = delta_of(seen, image)
            changed = {topic.name for topic in (*delta.changed, *delta.gone)}
            racks = _racks(image)
            if changed or racks != _racks(seen):
                event = NewTopics(topics=image.topics, changed=changed, racks=racks)
                self.runtime.handle(event)
        super().image_changed()

    def _loaded(self) -> None:
        self._retention.groups_loaded()

    async def stop(self) -> None:
        await self._retention.stop()
        await super().stop()

    # Requests

    async def call(self, request: GroupRequest) -> Any:
        """Return the core's response to a request.

        Raises:
            PenstockError: the group cannot be loaded.
        """
        return await self.runtime.call(request, request.group_id)

    async def list_groups(
        self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
    ) -> tuple[ListedGroup, ...]:
        """Return the groups of this coordinator, sorted by id.

        Raises:
            CoordinatorNotAvailable: the broker is stopping, or may have lost its groups.
        """
        response = await self.runtime.call(ListGroups(states=states, types=types), None)
        if isinstance(response, ListedGroups):
            return response.groups
        raise _unanswered(response)

    async def describe(self, group_id: str) -> AnyGroup | None:
        """Return the description of a group; None if it does not exist. Raises as `list_groups`."""
        return await self._describe(DescribeGroup(group_id=group_id))

    async def ensure_share_group(self, group_id: str) -> AnyGroup | None:
        """Return the description of a share group, which is created if no group has this id.

        Returns None for a group of another kind. Raises as `list_groups`.
        """
        return await self._describe(EnsureShareGroup(group_id=group_id))

    async def _describe(self, request: GroupRequest) -> AnyGroup | None:
        response = await self.call(request)
        if isinstance(response, AnyGroup):
            return None if response.state == DEAD else response
        if isinstance(response, Refused) and response.error == GroupIdNotFound.code:
            return None
        raise _unanswered(response)

    async def check_commit(self, check: CommitCheck) -> Refused | None:
        """Return the error of an offset commit; None if the offsets may be stored."""
        self.check_owner(check.group_id)
        response = await self.call(check)
        return response if isinstance(response, Refused) else None

    async def check_fetch(self, check: FetchCheck) -> Refused | None:
        """Return the error of an offset fetch; None if the client may fetch offsets."""
        response = await self.call(check)
        return response if isinstance(response, Refused) else None

    async def subscribed(self, group_id: str, topics: Iterable[str]) -> frozenset[str] | Refused:
        """Return the given topics that members read: their offsets must not be deleted."""
        self.check_owner(group_id)
        response = await self.call(OffsetDeleteCheck(group_id=group_id, topics=tuple(topics)))
        if isinstance(response, Refused):
            return response
        if isinstance(response, OffsetsDeletable):
            return response.subscribed
        raise _unanswered(response)

    # Offsets

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        transaction: OpenTransaction | None = None,
    ) -> None:
        """Store offsets durably, or stage them for the end of a transaction.

        Raises:
            NotInTransaction, StaleProducerEpoch: the transaction rejects them.
            StaleClusterEpoch: brokers joined or left; the client must look up the coordinator.
            CoordinatorNotAvailable: the offsets were not stored within
                `offsets.commit.timeout.ms`; the outcome is unknown.
        """
        limit_ms = self._settings.offsets_commit_timeout_ms
        epoch = self.ownership.cluster_epoch
        if transaction is None:
            commit = self._control.commit_offsets(
                group_id=group_id, offsets=offsets, cluster_epoch=epoch
            )
        else:
            commit = self._control.stage_offsets(
                transaction=transaction, group_id=group_id, offsets=offsets, cluster_epoch=epoch
            )
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._fenced(commit)
        except TimeoutError:
            raise CoordinatorNotAvailable(
                f"offsets of {group_id!r} were not stored within offsets.commit.timeout.ms ="
                f" {limit_ms}"
            ) from None

    async def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Delete offsets of a group of this broker; raises as `commit`."""
        await self._fenced(
            self._control.delete_offsets(
                group_id=group_id, partitions=partitions, cluster_epoch=self.ownership.cluster_epoch
            )
        )

    async def expire_offsets_of(self, group_id: str, *, committed_by_ms: int, limit: int) -> int:
        """Delete offsets of a group that were committed at a time or before; return the count.

        Deletes at most `limit` offsets, and none that an open transaction may change. Raises as
        `commit`.
        """
        return await self._fenced(
            self._control.expire_offsets_of(
                group_id=group_id,
                committed_by_ms=committed_by_ms,
                limit=limit,
                cluster_epoch=self.ownership.cluster_epoch,
            )
        )

    async def _fenced(self, write: Awaitable[T]) -> T:
        try:
            return await write
        except StaleClusterEpoch:
            await self._cluster.refresh()
            raise

    def prune(self, with_offsets: Collection[str]) -> None:
        self.runtime.handle(Prune(with_offsets=with_offsets))
