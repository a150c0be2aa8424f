"""The shell around the group core: it waits, stores, keeps time, and decides nothing.

Requests become events of the core; the core's effects are performed here, in order. A save is
written by compare-and-set and reported back to the core, which gives the answers that rest on
it only then. Groups are loaded at the first request that needs them.

A group belongs to one of the registered brokers, by its id. When brokers come or go, groups that
another one owns now are forgotten, and those that this one owns now are loaded; requests wait
meanwhile. Only what this broker owns is pruned, expired or deleted here. A group that was another
one's in between, unseen, is loaded again: its version has risen.

Every write names the membership of the image by which this broker owns the group. The control
plane refuses it once brokers have come or gone: so a coordinator that was paused, or cut off, or
has not heard yet, writes nothing into what is another one's now. It loads the image again then;
who committed offsets is told to look for the coordinator, a save of a group that is still this
broker's is made again.

Committed offsets do not pass through the core: it says whether the committer may, and they go to
the control plane, which gathers commits of all groups into few transactions.

The clock is wall time that never goes back: it starts at the wall clock and runs on with the
monotonic one, so that a clock that is set expires no member. Nor does a process that was held
up: what members sent meanwhile has not been read, so it is read first.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`; KIP-211 for the retention
of offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.base.errors import BugError, InvalidError, PenstockError
from penstock.broker.coordination.classic import (
    CommitCheck,
    DescribedGroup,
    DescribeGroup,
    Effect,
    Event,
    GroupRemoved,
    GroupSaved,
    ListedGroup,
    ListedGroups,
    ListGroups,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
    Refused,
    RemoveFailed,
    RemoveGroup,
    Reply,
    Response,
    SaveFailed,
    SaveGroup,
    Tick,
)
from penstock.broker.coordination.classic.coordinator import NO_TOKEN, GroupCoordinator
from penstock.broker.coordination.classic.limits import GroupLimits
from penstock.broker.coordination.classic.record import CorruptGroup
from penstock.broker.coordination.ownership import CoordinatorNotAvailable, NotCoordinator, owner_of
from penstock.broker.limits import HELD_UP_SECONDS
from penstock.control import CommittedOffset, GroupRecord, StaleGroup, StaleMembership

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane

logger = logging.getLogger(__name__)

SAVE_ATTEMPTS_MAX: Final = 5
"""How often a group is saved anew because brokers came or went; then its members look for it."""

OFFSETS_EXPIRED_AT_ONCE_MAX: Final = 10_000
"""Offsets that one pass of the housekeeping deletes; the rest waits for the next."""

HEARD_MS: Final = 1000
"""How long members are listened to after the process was held up, before any is expired."""

DEAD: Final = "Dead"
EMPTY: Final = "Empty"


class GroupIdNotFound(InvalidError):
    """There is no such group."""

    code: ClassVar[str] = "group_id_not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorParts:
    """What the coordinator of groups uses."""

    settings: BrokerSettings
    node_id: int
    control: ControlPlane
    clock: Clock
    cluster: ClusterMetadata


def _unanswered(response: Response) -> PenstockError:
    """Why a question about groups has no answer, which must not be taken for an empty one."""
    if isinstance(response, Refused):
        return CoordinatorNotAvailable(response.message)
    return BugError(f"the group core answered with {type(response).__name__}")


class Coordinator:
    """The group coordinator of one broker; belongs to the event-loop thread."""

    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts
        clock = parts.clock
        self._monotonic = clock.monotonic
        self._wall_offset_ms = clock.now_ms() - int(clock.monotonic() * 1000)
        self._core: GroupCoordinator | None = None
        self._ready = False
        self._membership = -1
        self._loading: asyncio.Task[GroupCoordinator] | None = None
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._next_token = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ticks_from_ms = 0
        self._housekeeper: asyncio.TimerHandle | None = None
        self._loaded_ms = 0
        self._active_ms: dict[str, int] = {}
        self._stopped = False
        self.suspended = False

    # Requests

    def suspend(self) -> None:
        """Refuse group requests: this broker may have lost its groups and cannot look."""
        self.suspended = True

    def resume(self) -> None:
        """End `suspend`; the image is known to be of now."""
        self.suspended = False

    async def call(self, event: Event) -> Response:
        """Give the core a request and wait for its answer.

        Raises:
            PenstockError: the groups cannot be loaded.
        """
        core = self._core if self._ready and self._core else await self._load()
        if self._stopped or self.suspended:
            reason = "is stopping" if self._stopped else "has lost touch with the control plane"
            return Refused(error=CoordinatorNotAvailable.code, message=f"the broker {reason}")
        self._next_token = token = self._next_token + 1
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        try:
            self._handle(core, event, token)
            return await answer
        finally:
            self._waiting.pop(token, None)

    def check_owner(self, group_id: str) -> None:
        """Raise unless this broker coordinates the group.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: it does not, or nobody does.
        """
        owner = owner_of(self._parts.cluster.image, group_id)
        if owner.broker_id != self._parts.node_id:
            raise NotCoordinator(f"broker {owner.broker_id} coordinates group {group_id!r}")

    def _owns(self, group_id: str) -> bool:
        image = self._parts.cluster.image
        return bool(image.brokers) and owner_of(image, group_id).broker_id == self._parts.node_id

    async def list_groups(
        self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
    ) -> tuple[ListedGroup, ...]:
        """The groups of this coordinator, by id.

        Raises:
            CoordinatorNotAvailable: they may be another broker's now, or it is stopping.
        """
        response = await self.call(ListGroups(states=states, types=types))
        if isinstance(response, ListedGroups):
            return response.groups
        raise _unanswered(response)

    async def describe(self, group_id: str) -> DescribedGroup | None:
        """One group; None if there is none of this id. Raises as `list_groups`."""
        response = await self.call(DescribeGroup(group_id=group_id))
        if isinstance(response, DescribedGroup):
            return None if response.state == DEAD else response
        if isinstance(response, Refused) and response.error == GroupIdNotFound.code:
            return None
        raise _unanswered(response)

    async def check_commit(self, check: CommitCheck) -> Refused | None:
        """Whether a commit may be stored: None if so, else why not."""
        self.check_owner(check.group_id)
        response = await self.call(check)
        return response if isinstance(response, Refused) else None

    async def commit(self, group_id: str, offsets: Sequence[CommittedOffset]) -> None:
        """Store offsets; they are durable when this returns.

        Raises:
            StaleMembership: brokers have come or gone; as for clients, another one coordinates.
        """
        try:
            await self._parts.control.commit_offsets(
                group_id=group_id, offsets=offsets, membership=self._parts.cluster.image.membership
            )
        except StaleMembership:
            await self._parts.cluster.refresh()
            raise

    async def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget offsets of a group that this broker owns; raises as `commit`."""
        try:
            await self._parts.control.delete_offsets(
                group_id=group_id,
                partitions=partitions,
                membership=self._parts.cluster.image.membership,
            )
        except StaleMembership:
            await self._parts.cluster.refresh()
            raise

    async def subscribed(self, group_id: str, topics: Iterable[str]) -> frozenset[str] | Refused:
        """Which of these topics members read, so that their offsets must stay."""
        self.check_owner(group_id)
        response = await self.call(OffsetDeleteCheck(group_id=group_id, topics=tuple(topics)))
        if isinstance(response, Refused):
            return response
        if isinstance(response, OffsetsDeletable):
            return response.subscribed
        raise _unanswered(response)

    # The core

    def _now_ms(self) -> int:
        return int(self._monotonic() * 1000) + self._wall_offset_ms

    def _handle(self, core: GroupCoordinator, event: Event, token: int = NO_TOKEN) -> None:
        for effect in core.handle(event, self._now_ms(), token):
            self._perform(core, effect)
        self._arm(core)

    def _perform(self, core: GroupCoordinator, effect: Effect) -> None:
        if isinstance(effect, Reply):
            answer = self._waiting.get(effect.token)
            if answer is not None and not answer.done():
                answer.set_result(effect.response)
        elif isinstance(effect, SaveGroup):
            self._run(self._save(core, effect))
        else:
            self._run(self._remove(core, effect))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save(self, core: GroupCoordinator, effect: SaveGroup) -> None:
        group_id = effect.record.group_id
        event: Event
        try:
            event = GroupSaved(group_id=group_id, version=await self._stored_as(effect))
        except StaleMembership as error:
            event = SaveFailed(group_id=group_id, fenced=True, reason=str(error))
        except StaleGroup as error:
            logger.warning("%s", error)
            version = await self._stored_version(group_id)
            event = SaveFailed(group_id=group_id, fenced=True, version=version, reason=str(error))
        except PenstockError as error:
            logger.error("saving group %r failed: %s", group_id, error)
            event = await self._outcome(effect, str(error))
        self._handle(core, event)

    async def _stored_as(self, effect: SaveGroup) -> int:
        """The version of a saved group; saved anew where brokers changed and it is still ours."""
        group_id, parts = effect.record.group_id, self._parts
        for attempt in range(SAVE_ATTEMPTS_MAX):
            try:
                return await parts.control.save_group(
                    effect.record,
                    expected_version=effect.expected_version,
                    membership=parts.cluster.image.membership,
                )
            except StaleMembership:
                await parts.cluster.refresh()
                if not self._owns(group_id) or attempt + 1 == SAVE_ATTEMPTS_MAX:
                    raise
        raise BugError(f"group {group_id!r} was neither saved nor refused")

    async def _outcome(self, effect: SaveGroup, reason: str) -> Event:
        """What became of a save that failed, as the control plane has it now.

        It may have been stored all the same. A version of one's own must not be taken for another
        coordinator's when the group is saved again, nor another's for one's own.
        """
        group_id = effect.record.group_id
        try:
            stored = await self._stored(group_id)
        except PenstockError:
            return SaveFailed(group_id=group_id, reason=reason)
        version = 0 if stored is None else stored.version
        if version == effect.expected_version:
            return SaveFailed(group_id=group_id, version=version, reason=reason)
        if stored is not None and replace(stored, version=0) == replace(effect.record, version=0):
            return GroupSaved(group_id=group_id, version=version)
        return SaveFailed(group_id=group_id, fenced=True, version=version, reason=reason)

    async def _stored_version(self, group_id: str) -> int | None:
        """The version that the control plane holds, 0 for none; None if it cannot be read."""
        try:
            stored = await self._stored(group_id)
        except PenstockError:
            return None
        return 0 if stored is None else stored.version

    async def _stored(self, group_id: str) -> GroupRecord | None:
        records = await self._parts.control.groups()
        return next((record for record in records if record.group_id == group_id), None)

    async def _remove(self, core: GroupCoordinator, effect: RemoveGroup) -> None:
        event: Event
        try:
            self.check_owner(effect.group_id)
            await self._parts.control.delete_group(
                effect.group_id, membership=self._parts.cluster.image.membership
            )
            event = GroupRemoved(group_id=effect.group_id)
        except PenstockError as error:
            logger.error("group %r could not be deleted: %s", effect.group_id, error)
            event = RemoveFailed(group_id=effect.group_id, reason=str(error))
        self._active_ms.pop(effect.group_id, None)
        self._handle(core, event)

    # Loading and time

    def start(self) -> None:
        """Begin to load the groups, so that the sessions of their members run."""
        self._run(self._start())

    async def _start(self) -> None:
        try:
            await self._load()
        except PenstockError as error:
            logger.warning("groups will be loaded at the first request: %s", error)

    async def _load(self) -> GroupCoordinator:
        """Load all groups, once; requests that come meanwhile wait for the same loading."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._loaded())
        try:
            return await asyncio.shield(self._loading)
        except PenstockError:
            self._loading = None
            raise

    def image_changed(self) -> None:
        """Brokers may have come or gone: hand over what others own, load what this one owns."""
        core = self._core
        if (
            core is None
            or self._stopped
            or self._parts.cluster.image.membership == self._membership
        ):
            return
        self._membership = self._parts.cluster.image.membership
        for group_id in core.group_ids():
            if not self._owns(group_id):
                self._active_ms.pop(group_id, None)
                for effect in core.forget(group_id):
                    self._perform(core, effect)
        if self._ready:
            self._ready, self._loading = False, None
            self.start()

    async def _loaded(self) -> GroupCoordinator:
        """Load the groups that this broker owns, and does not know or not as they are."""
        control = self._parts.control
        first = self._core is None
        while True:
            membership = self._parts.cluster.image.membership
            known = {} if self._core is None else self._core.versions()
            records = await control.groups()
            with_offsets = await control.offset_group_ids()
            if membership == self._parts.cluster.image.membership:
                break
        core = self._core = self._core or self._new_core()
        self._membership = membership
        self._forget_changed(core, known, records)
        self._restore(core, records, with_offsets)
        self._loaded_ms = self._parts.clock.now_ms()
        self._ready = True
        self._arm(core)
        if first:
            self._plan_housekeeping()
        return core

    def _forget_changed(
        self, core: GroupCoordinator, known: Mapping[str, int], records: Iterable[GroupRecord]
    ) -> None:
        """Forget groups that another broker has saved or deleted while they were its own.

        `known` are the versions of before the records were read. What is being saved is left to
        its compare-and-set.
        """
        stored = {record.group_id: record.version for record in records}
        now = core.versions()
        for group_id, version in known.items():
            if now.get(group_id) == version and version and stored.get(group_id) != version:
                for effect in core.forget(group_id):
                    self._perform(core, effect)

    def _new_core(self) -> GroupCoordinator:
        settings = self._parts.settings
        registered = self._parts.cluster.image.broker(self._parts.node_id)
        return GroupCoordinator(
            GroupLimits(
                groups_max=settings.groups_max,
                group_max_size=settings.group_max_size,
                group_min_session_timeout_ms=settings.group_min_session_timeout_ms,
                group_max_session_timeout_ms=settings.group_max_session_timeout_ms,
                group_initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            ),
            epoch=0 if registered is None else registered.epoch,
        )

    def _restore(
        self, core: GroupCoordinator, records: Iterable[GroupRecord], with_offsets: Iterable[str]
    ) -> None:
        now_ms, known = self._now_ms(), frozenset(core.group_ids())
        for record in records:
            if record.group_id in known or not self._owns(record.group_id):
                continue
            try:
                effects = core.restore(record, now_ms)
            except CorruptGroup as error:
                logger.error("%s", error)
                continue
            for effect in effects:
                self._perform(core, effect)
        core.restore_offsets(filter(self._owns, with_offsets), now_ms)

    def _arm(self, core: GroupCoordinator) -> None:
        """See to it that the core gets a Tick at its next deadline; early ones do no harm."""
        deadline_ms = core.next_deadline_ms()
        if deadline_ms is None or self._stopped:
            return
        deadline_ms = max(deadline_ms, self._ticks_from_ms)
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_seconds = max(0, deadline_ms - self._now_ms()) / 1000
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._tick, core)

    def _tick(self, core: GroupCoordinator) -> None:
        self._timer = None
        now_ms = self._now_ms()
        if now_ms - self._timer_ms < HELD_UP_SECONDS * 1000:
            self._handle(core, Tick())
            return
        self._ticks_from_ms = now_ms + HEARD_MS
        self._arm(core)

    def _plan_housekeeping(self) -> None:
        seconds = self._parts.settings.offsets_retention_check_interval_ms / 1000
        self._housekeeper = asyncio.get_running_loop().call_later(seconds, self._keep_house)

    def _keep_house(self) -> None:
        if not self._stopped:
            self._run(self._housekeeping())
            self._plan_housekeeping()

    async def _housekeeping(self) -> None:
        try:
            await self.expire_offsets()
        except PenstockError as error:
            logger.warning("expired offsets could not be deleted: %s", error)

    async def expire_offsets(self) -> int:
        """Delete offsets past their retention, then groups that are left with nothing.

        An offset expires at the time that its commit gave, else `offsets.retention.minutes`
        after it was committed and its group was last seen with members. A group counts as seen
        when this broker loaded it. An expiry of its own needs no owner's knowledge: any broker
        deletes such offsets. Returns how many offsets were deleted.
        """
        core = await self._load()
        control, now_ms = self._parts.control, self._parts.clock.now_ms()
        retention_ms = self._parts.settings.offsets_retention_minutes * 60_000
        limit = OFFSETS_EXPIRED_AT_ONCE_MAX
        deleted = await control.expire_offsets(now_ms=now_ms, limit=limit)
        for group in await self.list_groups():
            if group.state != EMPTY:
                self._active_ms[group.group_id] = now_ms
                continue
            seen_ms = self._active_ms.get(group.group_id, self._loaded_ms)
            if not group.protocol_type:
                seen_ms = 0
            if seen_ms + retention_ms > now_ms or deleted >= limit:
                continue
            expired = [
                (offset.topic, offset.partition)
                for offset in await control.committed_offsets(group.group_id, None)
                if offset.expire_timestamp_ms is None
                and offset.commit_timestamp_ms + retention_ms <= now_ms
            ][: limit - deleted]
            if expired and self._owns(group.group_id):
                await self.delete_offsets(group.group_id, expired)
                deleted += len(expired)
        self._handle(core, Prune(with_offsets=frozenset(await control.offset_group_ids())))
        return deleted

    async def stop(self) -> None:
        """Answer whoever waits, finish what is being saved, keep no timer. Idempotent."""
        self._stopped = True
        for timer in (self._timer, self._housekeeper):
            if timer is not None:
                timer.cancel()
        refused = Refused(error=NotCoordinator.code, message="the broker is stopping")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(refused)
        if self._tasks:
            await asyncio.wait(self._tasks)
