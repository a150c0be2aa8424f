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
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeVar

from penstock.base.errors import BugError, InvalidError, PenstockError
from penstock.base.system import Clock
from penstock.broker.configuration.groups import ConfigsOfGroups, GroupConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.groups.classic import ClassicGroups, GroupLimits, JoinGroup
from penstock.broker.groups.classic.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from penstock.broker.groups.classic.joining import refuse_malformed
from penstock.broker.groups.classic.states import REBALANCE_IN_PROGRESS, GroupState
from penstock.broker.groups.consumer import (
    ConsumerGroups,
    ConsumerHeartbeat,
    ConsumerLimits,
    DescribedConsumerGroup,
    MigrationPolicy,
    classic_requests,
)
from penstock.broker.groups.consumer.classic_requests import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from penstock.broker.groups.consumer.group import ClassicSide, ConsumerGroup, ConsumerMember
from penstock.broker.groups.consumer.heartbeat import refuse_malformed as refuse_heartbeat
from penstock.broker.groups.modern.core import JOIN, HeartbeatResponse
from penstock.broker.groups.runtime.assignors import fewer
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    CommitCheck,
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    FetchCheck,
    Groups,
    Kind,
    ListedGroup,
    ListedGroups,
    ListGroups,
    NewTopics,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
    Turn,
)
from penstock.broker.groups.runtime.runtime import Coordinator, Runtime
from penstock.broker.groups.runtime.saving import (
    Cluster,
    CoordinatorNotAvailable,
    FoundKey,
    Ownership,
)
from penstock.broker.groups.share import (
    DescribedShareGroup,
    EnsureShareGroup,
    ShareGroupLimits,
    ShareGroups,
)
from penstock.broker.metadata.cluster import delta_of
from penstock.control import (
    OFFSETS_PER_CALL_MAX,
    CommittedOffset,
    ControlPlane,
    CoordinationRecord,
    GroupCommit,
    MetadataImage,
    OpenTransaction,
    StaleClusterEpoch,
)

# Retention of committed offsets, and of empty groups without committed offsets.
#
# Source: KIP-211.


logger = logging.getLogger(__name__)

OFFSETS_EXPIRED_AT_ONCE_MAX: Final = 10_000
"""Maximum number of offsets that one pass deletes; the next pass deletes more."""

EMPTY: Final = "Empty"


class RetainedGroups(Protocol):
    ownership: Ownership
    runtime: Runtime

    async def list_groups(self) -> tuple[ListedGroup, ...]: ...

    async def expire_offsets_of(
        self, group_id: str, *, committed_by_ms: int, limit: int
    ) -> int: ...

    def prune(self, with_offsets: Collection[str]) -> None: ...


class OffsetsRetention:
    """Periodic deletion of expired offsets and groups; belongs to the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        groups: RetainedGroups,
        *,
        control: ControlPlane,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._control = control
        self._clock = clock
        self._retention_ms = settings.offsets_retention_minutes * 60_000
        self._interval_seconds = settings.offsets_retention_check_interval_ms / 1000
        self._loaded_ms = 0
        self._active_ms: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pass: asyncio.Task[None] | None = None
        self._stopped = False

    def groups_loaded(self) -> None:
        """Record that all groups are loaded, and start the periodic deletion.

        Offsets of groups that had members are kept for a whole retention time from now on, because
        this broker does not know when the last member left.
        """
        self._loaded_ms = self._clock.now_ms()
        if self._timer is None:
            self._plan()

    def _plan(self) -> None:
        if not self._stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_seconds, self._begin)

    def _begin(self) -> None:
        if self._pass is None or self._pass.done():
            self._pass = asyncio.get_running_loop().create_task(self._run())
        self._plan()

    async def _run(self) -> None:
        try:
            await self.expire()
        except PenstockError as error:
            logger.warning("expired offsets could not be deleted: %s", error)

    async def expire(self) -> int:
        """Delete expired offsets, then empty groups; return the number of deleted offsets.

        An offset with an expiry time from its commit expires at that time; any broker deletes it.
        Other offsets expire `offsets.retention.minutes` after their commit, but not before the same
        time has passed since the group last had members or was loaded by this broker. Offsets that
        an open transaction may change are kept.
        """
        await self._groups.runtime.load_all()
        now_ms, limit = self._clock.now_ms(), OFFSETS_EXPIRED_AT_ONCE_MAX
        deleted = await self._control.expire_offsets(now_ms=now_ms, limit=limit)
        groups = await self._groups.list_groups()
        ids = {group.group_id for group in groups}
        self._active_ms = {key: ms for key, ms in self._active_ms.items() if key in ids}
        for group in groups:
            if group.state != EMPTY:
                self._active_ms[group.group_id] = now_ms
            elif deleted < limit:
                deleted += await self._expire_of(group, now_ms, limit - deleted)
        self._groups.prune(frozenset(await self._control.offset_group_ids()))
        return deleted

    async def _expire_of(self, group: ListedGroup, now_ms: int, limit: int) -> int:
        group_id = group.group_id
        seen_ms = self._active_ms.get(group_id, self._loaded_ms) if group.protocol_type else 0
        if seen_ms + self._retention_ms > now_ms:
            return 0
        if not self._groups.ownership.owns(group_id):
            return 0
        return await self._groups.expire_offsets_of(
            group_id, committed_by_ms=now_ms - self._retention_ms, limit=limit
        )

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pass is not None:
            await asyncio.wait([self._pass])


# Conversion of groups between the classic and the consumer protocol, even while they have members.
#
#     classic group          a member joins with the consumer protocol          ──▶ consumer group
#     consumer group         its last member with the consumer protocol leaves  ──▶ classic group
#     empty consumer group   a member joins with the classic protocol           ──▶ classic group
#
# `group.consumer.migration.policy` limits conversions of groups with members. Members keep their
# assignment and their protocol; requests that wait for a rebalance get REBALANCE_IN_PROGRESS. A
# group is converted only while it has no save under way: the outcome of a save must be reported to
# the kind of group that started it.
#
# Source: Kafka's `GroupMetadataManager.convertToConsumerGroup`, `convertToClassicGroup`; KIP-848.


BUSY: Final = "the group can be converted once its current save is durable"


class Conversion:
    def __init__(self, turn: Turn, classic: ClassicGroups, consumer: ConsumerGroups) -> None:
        self._turn = turn
        self._classic = classic
        self._consumer = consumer
        classic.foreign[ConsumerHeartbeat] = self.heartbeat_to_classic
        consumer.foreign[JoinGroup] = self.join_to_consumer
        consumer.may_be_classic = self.downgrade

    # -- to a consumer group ----------------------------------------------------------------

    def heartbeat_to_classic(self, event: ConsumerHeartbeat, token: int) -> None:
        """Handle a ConsumerGroupHeartbeat to a classic group, which is converted if allowed."""
        group = self._classic.group(event.group_id)
        refusal = refuse_heartbeat(event, self._consumer.limits.assignors)
        if refusal is not None:
            self._turn.reply(token, refusal)
            return
        why = self._not_upgraded(group, event)
        if why:
            self._turn.refuse(
                token, GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group: {why}"
            )
        elif group.store_busy:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, BUSY)
        else:
            try:
                made = self._consumer_group(group)
            except ValueError as error:
                self._turn.refuse(token, GROUP_ID_NOT_FOUND, str(error))
                return
            self._classic.release(group)
            self._take(made)
            self._consumer.handlers[ConsumerHeartbeat](event, token)

    def _not_upgraded(self, group: Group, event: ConsumerHeartbeat) -> str:
        if event.epoch != JOIN:
            return "it is classic"
        if group.state is GroupState.DEAD:
            return "it is being deleted"
        if not group.members and not group.pending:
            return ""
        if not self._consumer.limits.migration.upgrades:
            return "group.consumer.migration.policy allows no upgrade"
        if group.members and not group.is_consumer:
            return f"its protocol type is {group.protocol_type!r}"
        if len(group.members) >= self._consumer.limits.max_size:
            limit = self._consumer.limits.max_size
            return f"it has {len(group.members)} members, group.consumer.max.size is {limit}"
        return ""

    def _consumer_group(self, group: Group) -> ConsumerGroup:
        made = ConsumerGroup(group.group_id, touched_ms=self._turn.now_ms)
        made.assignment_epoch = group.generation
        made.epoch = group.generation + group.generation_gap - 1
        made.has_offsets = group.has_offsets
        for member in group.members.values():
            made.add(self._consumer_member(group, made, member))
        return made

    def _consumer_member(self, group: Group, made: ConsumerGroup, member: Member) -> ConsumerMember:
        protocols = sorted(member.protocols, key=lambda protocol: protocol.name != group.protocol)
        subscription = decode_subscription(protocols[0].metadata)
        assigned = decode_assignment(member.assignment)
        read = classic_requests.by_id(assigned, self._consumer.topics)
        found = ConsumerMember(member.member_id)
        found.instance_id, found.rack_id = member.group_instance_id, subscription.rack_id
        found.client_id, found.client_host = member.client_id, member.client_host
        found.topics = subscription.topics
        found.rebalance_timeout_ms = member.rebalance_timeout_ms
        found.epoch = found.previous_epoch = group.generation
        found.assigned = found.target = fewer(read, made.taken(read))
        found.classic = ClassicSide(
            session_timeout_ms=member.session_timeout_ms, protocols=tuple(protocols)
        )
        return found

    def _take(self, group: ConsumerGroup) -> None:
        consumer = self._consumer
        consumer.groups[group.group_id] = group
        for member in group.members.values():
            consumer.watch(group, member)
        consumer.changed(group)

    # -- to a classic group -----------------------------------------------------------------

    def join_to_consumer(self, event: JoinGroup, token: int) -> None:
        """Handle a JoinGroup to a consumer group: convert the group if it is empty."""
        group = self._consumer.groups[event.group_id]
        refusal = refuse_malformed(self._classic.limits, event)
        if refusal is not None:
            self._turn.reply(token, refusal)
        elif group.members:
            classic_requests.join(self._consumer, event, token)
        elif group.saving is not None:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, BUSY)
        else:
            self._consumer.forget(group)
            self._classic.adopt(self._classic_group(group))
            self._classic.handlers[JoinGroup](event, token)

    def _classic_group(self, group: ConsumerGroup) -> Group:
        made = Group(group.group_id, touched_ms=self._turn.now_ms)
        epochs = [member.epoch for member in group.members.values()]
        made.generation = max(epochs, default=group.epoch)
        made.generation_gap += group.epoch - made.generation
        made.has_offsets = group.has_offsets
        for member in group.members.values():
            made.add(self._classic_member(member), CONSUMER_PROTOCOL_TYPE)
        return made

    def downgrade(self, group: ConsumerGroup) -> bool:
        """Convert a consumer group to a classic group if all members use the classic protocol.

        Returns whether the group was converted.
        """
        members = group.members.values()
        if not members or not self._consumer.limits.migration.downgrades:
            return False
        if len(members) > self._classic.limits.group_max_size or group.saving is not None:
            return False
        if any(member.classic is None for member in members):
            return False
        for pending in group.pending_responses:
            if isinstance(pending.response, HeartbeatResponse):  # its member has left already
                self._turn.reply(pending.token, pending.response)
            else:
                self._turn.refuse(pending.token, REBALANCE_IN_PROGRESS)
        for member in members:
            self._consumer.unpark(
                member, REBALANCE_IN_PROGRESS, "the group was converted to classic"
            )
        made = self._classic_group(group)
        self._consumer.forget(group)
        self._classic.adopt(made)
        return True

    def _classic_member(self, member: ConsumerMember) -> Member:
        side = member.classic
        if side is None:
            raise ValueError(f"member {member.member_id!r} does not use the classic protocol")
        version = decode_subscription(side.protocols[0].metadata).version
        assigned = classic_requests.by_name(member.assigned, self._consumer.topics)
        return Member(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=side.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=side.protocols,
            assignment=encode_assignment(assigned, version),
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


class CommitObserver(Protocol):
    """Observer of the commits that a coordinator has stored."""

    def committed(self, group_id: str, offsets: Iterable[CommittedOffset]) -> None: ...

    def changed(self, group_id: str) -> None:
        """Handle offsets that were deleted, or that the end of a transaction may store."""
        ...

    def forget(self, group_id: str) -> None:
        """Handle the deletion of a group."""
        ...


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


class _CommitBatch:
    __slots__ = ("cluster_epoch", "commits", "count", "outcomes")

    def __init__(self, cluster_epoch: int) -> None:
        self.cluster_epoch = cluster_epoch
        self.commits: list[GroupCommit] = []
        self.outcomes: list[asyncio.Future[Exception | None]] = []
        self.count = 0

    def add(
        self, group_id: str, offsets: Sequence[CommittedOffset]
    ) -> asyncio.Future[Exception | None]:
        outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.commits.append((group_id, offsets))
        self.outcomes.append(outcome)
        self.count += len(offsets)
        return outcome


class OffsetCommits:
    """Stores the commits of two successive turns of the event loop as one transaction."""

    def __init__(self, control: ControlPlane, limit_seconds: float, *, synced: bool = True) -> None:
        self._store = partial(control.commit_offsets_of, synced=synced)
        self._limit_seconds = limit_seconds
        self._batch: _CommitBatch | None = None
        self._running: dict[asyncio.Task[None], asyncio.TimerHandle] = {}

    async def store(
        self, group_id: str, offsets: Sequence[CommittedOffset], cluster_epoch: int
    ) -> None:
        """Store a group's offsets.

        Raises:
            TimeoutError: they were not stored within the limit; the outcome is unknown.
            PenstockError: as `ControlPlane.commit_offsets`.
        """
        batch = self._batch
        if (
            batch is None
            or batch.cluster_epoch != cluster_epoch
            or batch.count + len(offsets) > OFFSETS_PER_CALL_MAX
        ):
            batch = self._batch = _CommitBatch(cluster_epoch)
            asyncio.get_running_loop().call_soon(self._begin, batch)
        error = await batch.add(group_id, offsets)
        if isinstance(error, InvalidError | BugError) and len(batch.commits) > 1:
            # The database has rejected a row, which may be another group's.
            async with asyncio.timeout(self._limit_seconds):
                await self._store([(group_id, offsets)], cluster_epoch=cluster_epoch)
        elif error is not None:
            raise error

    def _begin(self, batch: _CommitBatch) -> None:
        """Store a batch with the commits of requests that arrived in its turn and the next one."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(batch))
        self._running[task] = loop.call_later(self._limit_seconds, task.cancel)
        task.add_done_callback(self._ended)

    async def _run(self, batch: _CommitBatch) -> None:
        if self._batch is batch:
            self._batch = None
        error: Exception | None = None
        try:
            await self._store(batch.commits, cluster_epoch=batch.cluster_epoch)
        except asyncio.CancelledError:
            error = TimeoutError()
        except Exception as failure:  # every commit must get an outcome
            error = failure
        for outcome in batch.outcomes:
            if not outcome.done():  # else its request was cancelled
                outcome.set_result(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task).cancel()


class GroupCoordinator(Coordinator):
    """Group coordinator of one broker; belongs to the event-loop thread."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: Cluster,
        lag: Callable[[], CommitObserver] | None = None,
        syncs_offsets: bool = True,
    ) -> None:
        """`lag` returns the observer of commits; it is called when offsets first change.

        `syncs_offsets` is whether offsets outside of transactions are synced when committed.
        """
        self._settings = settings
        self._cluster = cluster
        self._lag = lag
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
        limit_seconds = settings.offsets_commit_timeout_ms / 1000
        self._commits = OffsetCommits(control, limit_seconds, synced=syncs_offsets)
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
        streams = partial(self._streams, turn, classic)
        return Groups(turn, [classic, consumer, share], {"streams": streams})

    def _streams(self, turn: Turn, classic: ClassicGroups) -> Kind:
        from penstock.broker.groups.streams import StreamsGroups, StreamsLimits

        settings, image = self._settings, self._seen or self._cluster.image
        limits = StreamsLimits(
            groups_max=settings.groups_max,
            max_size=settings.group_streams_max_size,
            configs=self._configs,
        )
        streams = StreamsGroups(turn, limits)
        streams.topics = image.topics
        streams.convert_empty(classic)
        return streams

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

    async def delete(self, group_id: str) -> Refused | None:
        """Delete a group; return the error if it may not be deleted. Raises as `call`."""
        response = await self.call(DeleteGroup(group_id=group_id))
        if isinstance(response, Refused):
            return response
        if self._lag is not None:
            self._lag().forget(group_id)
        return None

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
        """Return those of the given topics that members read, whose offsets must not be deleted."""
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
        try:
            if transaction is None:
                await self._fenced(self._commits.store(group_id, offsets, epoch))
            else:
                stage = self._control.stage_offsets(
                    transaction=transaction, group_id=group_id, offsets=offsets, cluster_epoch=epoch
                )
                async with asyncio.timeout(limit_ms / 1000):
                    await self._fenced(stage)
        except TimeoutError:
            raise CoordinatorNotAvailable(
                f"offsets of {group_id!r} were not stored within offsets.commit.timeout.ms ="
                f" {limit_ms}"
            ) from None
        if transaction is not None:
            self._offsets_changed(group_id)
        elif self._lag is not None:
            self._lag().committed(group_id, offsets)

    async def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Delete offsets of a group of this broker; raises as `commit`."""
        await self._fenced(
            self._control.delete_offsets(
                group_id=group_id, partitions=partitions, cluster_epoch=self.ownership.cluster_epoch
            )
        )
        self._offsets_changed(group_id)

    async def expire_offsets_of(self, group_id: str, *, committed_by_ms: int, limit: int) -> int:
        """Delete offsets of a group that were committed at a time or before; return the count.

        Deletes at most `limit` offsets, and none that an open transaction may change. Raises as
        `commit`.
        """
        deleted = await self._fenced(
            self._control.expire_offsets_of(
                group_id=group_id,
                committed_by_ms=committed_by_ms,
                limit=limit,
                cluster_epoch=self.ownership.cluster_epoch,
            )
        )
        if deleted:
            self._offsets_changed(group_id)
        return deleted

    def _offsets_changed(self, group_id: str) -> None:
        if self._lag is not None:
            self._lag().changed(group_id)

    async def _fenced(self, write: Awaitable[T]) -> T:
        try:
            return await write
        except StaleClusterEpoch:
            await self._cluster.refresh()
            raise

    def prune(self, with_offsets: Collection[str]) -> None:
        self.runtime.handle(Prune(with_offsets=with_offsets))
