"""Base of the cores of consumer, streams and share groups.

Members of these groups send heartbeats, and the coordinator computes a target: the partitions that
each member is to get.

    a change ──▶ group epoch + 1 ──▶ a computation of a target ──▶ assignment epoch
                      ▲                                                   │
                      └──── changes meanwhile: one more computation ◀─────┘

A heartbeat that needs a new target waits until the target is computed; others are answered with the
current target. Two targets of a group are at least the assignment interval apart, so that members
that join together share one. The first target waits until no more members join.

Source: Kafka's `GroupMetadataManager`; KIP-848, KIP-1263 (targets in batches, apart from requests).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from penstock.broker.groups.modern.group import (
    GroupSaver,
    ModernGroup,
    ModernMember,
    Parked,
    Target,
    TargetWork,
)
from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.runtime.core import (
    Compute,
    Computed,
    Saved,
    SaveFailed,
    Stored,
    Work,
)
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    NOT_COORDINATOR,
    DeleteGroup,
    Handler,
    ListedGroup,
    NewTopics,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
    Turn,
)

if TYPE_CHECKING:
    from penstock.control import Topic


EMPTY_GROUP_GRACE_MS: Final = 60_000
"""Time after its last use at which an empty group without committed offsets may be deleted."""
MEMBER_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of topic names and regex in one member's subscription."""
GATHERING_MS: Final = 100
"""Time without a join after which a group that was empty gets its first target.

Members that start together share that target. Otherwise the first member would get all partitions,
and would have to revoke most of them soon.
"""


class ModernLimits(Protocol):
    def assignment_interval_ms(self, group_id: str) -> int: ...

    def session_timeout_ms(self, group_id: str) -> int: ...

    def heartbeat_interval_ms(self, group_id: str) -> int: ...


EMPTY: Final = "Empty"
NON_EMPTY_GROUP: Final = "non_empty_group"
UNKNOWN_MEMBER_ID: Final = "unknown_member_id"

M = TypeVar("M", bound=ModernMember)
G = TypeVar("G", bound=ModernGroup[Any])


class ModernGroups(ABC, Generic[G, M]):
    name: ClassVar[str]
    protocol_type: ClassVar[str]
    handlers: Mapping[type, Handler]

    def __init__(self, turn: Turn, limits: ModernLimits) -> None:
        self.turn = turn
        self.limits = limits
        self.groups: dict[str, G] = {}
        self.foreign: dict[type, Handler] = {}
        self.topics: Mapping[str, Topic] = {}
        self.racks: Mapping[int, str] = {}
        self.saver = GroupSaver(turn, self.groups, rows=self.encode, gone=self.forget)
        self._ticket = 0

    @property
    def ids(self) -> Collection[str]:
        return self.groups

    # -- kind-specific parts ----------------------------------------------------------------

    @abstractmethod
    def encode(self, group: G) -> Mapping[str, bytes]: ...

    @abstractmethod
    def decode(self, group_id: str, rows: Mapping[str, bytes]) -> tuple[G, str]:
        """Return the group of stored rows, and the fingerprint that its topics had when saved."""

    @abstractmethod
    def watch(self, group: G, member: M) -> None:
        """Start the timers of a member that was loaded from its row, such as its session."""

    @abstractmethod
    def state(self, group: G) -> str:
        """Return the name of the group's state, as ListGroups shows it."""

    @abstractmethod
    def assignor(self, group: G) -> str:
        """Return the name of the assignor that computes the next target."""

    @abstractmethod
    def resume(self, group: G, parked: Parked) -> None:
        """Answer a waiting heartbeat whose target has been computed."""

    def ready(self, group: G) -> bool:
        """Whether a target can be computed: for example, the topics of all regexes are known."""
        return True

    def prepare(self, group: G) -> None:
        """Start to find what a target still needs, for example the topics of new regexes."""

    # -- changes ----------------------------------------------------------------------------

    def changed(self, group: G) -> None:
        group.version += 1

    def bump(self, group: G) -> None:
        first, _ = group.requested_ms
        up_to_date = group.assignment_epoch >= group.epoch
        group.requested_ms = self.turn.now_ms if up_to_date else first, self.turn.now_ms
        group.epoch += 1
        self.changed(group)

    def finish_event(self, group: G) -> None:
        """Save changes, and start to compute a target if one is due. Called after each event."""
        if self.groups.get(group.group_id) is not group:
            return
        if not group.members and group.assignment_epoch < group.epoch:
            group.assignment_epoch = group.epoch
        self._start_target(group)
        self.saver.save(group)

    def park(self, group: G, member: M, token: int, event: Any) -> None:
        """Hold a heartbeat until the target that it needs is computed."""
        member.parked = Parked(epoch=group.epoch, token=token, event=event)

    def unpark(self, member: M, error: str, message: str) -> None:
        parked, member.parked = member.parked, None
        if parked is not None:
            self.turn.refuse(parked.token, error, message)

    def expel(self, group: G, member: M) -> None:
        self.unpark(member, UNKNOWN_MEMBER_ID, "the member left the group or expired")
        self.stop_timers(member)
        group.remove(member)
        self.bump(group)
        group.touched_ms = self.turn.now_ms

    def stop_timers(self, member: M) -> None:
        self.turn.timers.stop(member.timer)

    # -- targets ----------------------------------------------------------------------------

    def _start_target(self, group: G) -> None:
        if group.ticket or group.assignment_epoch >= group.epoch:
            return
        due_ms = self.due_ms(group)
        if due_ms > self.turn.now_ms:
            group.target_timer.fire = partial(self.finish_event, group)
            self.turn.timers.start(group.target_timer, due_ms)
            return
        if not self.ready(group):
            return
        group.look(self.topics)
        self._ticket += 1
        group.ticket = self._ticket
        work = self.work(group)
        self.turn.effects.append(Compute(key=group.group_id, ticket=group.ticket, work=work))

    def work(self, group: G) -> Work:
        """Return the computation of the group's next target, whose result is a `Target`."""
        return TargetWork(
            epoch=group.epoch,
            assignor=self.assignor(group),
            spec=group.spec(self.topics, self.racks),
        )

    def due_ms(self, group: G) -> int:
        """Return the earliest time of the next target."""
        if not group.gathers:
            return group.next_target_ms
        first, last = group.requested_ms
        latest = first + self.limits.assignment_interval_ms(group.group_id)
        return max(group.next_target_ms, min(last + GATHERING_MS, latest))

    def computed(self, event: Computed, token: int) -> None:
        group = self.groups.get(event.key)
        if group is None or group.ticket != event.ticket:
            return
        group.ticket = 0
        group.next_target_ms = self.turn.now_ms + self.limits.assignment_interval_ms(event.key)
        if isinstance(event.result, Target):
            self._take_target(group, event.result)
        else:
            group.next_target_ms = max(group.next_target_ms, self.turn.now_ms + 1_000)
            for member in group.members.values():
                self.unpark(member, COORDINATOR_NOT_AVAILABLE, f"no target: {event.reason}")
        self.finish_event(group)

    def _take_target(self, group: G, target: Target) -> None:
        group.assignment_epoch, group.assignor = target.epoch, target.assignor
        group.gathers = False
        self.changed(group)
        for member in group.members.values():
            partitions, row = target.members.get(member.member_id, (member.target, None))
            if row is not None:
                member.target = partitions
                member.rows.pop("", None)
                member.rows["target"] = row
        for member in list(group.members.values()):
            parked = member.parked
            if parked is not None and parked.epoch <= target.epoch:
                member.parked = None
                self.resume(group, parked)

    def topics_changed(self, event: NewTopics) -> None:
        """Request new targets of the groups that read changed topics."""
        self.topics, self.racks = event.topics, event.racks
        for group in list(self.groups.values()):
            if event.changed is None or not group.readers.keys().isdisjoint(event.changed):
                self.look_again(group)
                self.finish_event(group)

    def look_again(self, group: G) -> None:
        self.look_since(group, group.fingerprint)

    def look_since(self, group: G, before: str | None) -> None:
        """Request a new target if the group's topics no longer have the fingerprint `before`.

        None means an unknown fingerprint; it requests no target.
        """
        group.fingerprint = None
        if group.look(self.topics) != before and before is not None and group.members:
            self.bump(group)

    # -- the runtime's reports --------------------------------------------------------------

    def saved(self, event: Saved, token: int) -> None:
        group = self.groups.get(event.key)
        if group is not None:
            self.saver.saved(group)
            self.finish_event(group)

    def save_failed(self, event: SaveFailed, token: int) -> None:
        group = self.groups.get(event.key)
        if group is not None:
            self.saver.failed(group, event.reason)

    def load(self, stored: Stored) -> None:
        """Add a group from its stored rows, and restart the sessions of its members."""
        group_id = stored.key
        if stored.rows:
            group, seen = self.decode(group_id, stored.rows)
            if group_id in self.groups:
                self.hand_over(group_id, f"another broker has coordinated group {group_id!r}")
            group.touched_ms = self.turn.now_ms
            self.groups[group_id] = group
            for member in group.members.values():
                self.watch(group, member)
            group.fingerprint = seen
            if self.ready(group):
                self.look_again(group)
            else:
                self.prepare(group)
            self.finish_event(group)
        if stored.has_offsets and group_id in self.groups:
            self.groups[group_id].has_offsets = True

    def hand_over(self, group_id: str, reason: str) -> None:
        group = self.groups[group_id]
        tokens = [
            *(group.removal_tokens or ()),
            *(pending.token for pending in group.pending_responses),
        ]
        for member in group.members.values():
            self.unpark(member, NOT_COORDINATOR, reason)
        for token in tokens:
            self.turn.refuse(token, NOT_COORDINATOR, reason)
        self.forget(group)

    def forget(self, group: G) -> None:
        for member in group.members.values():
            self.stop_timers(member)
        for timer in group.timers:
            self.turn.timers.stop(timer)
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    # -- administration ---------------------------------------------------------------------

    def busy(self, group: G) -> str:
        """Return the reason why requests are refused at present; empty if they are served."""
        if group.removal_tokens is not None:
            return f"group {group.group_id!r} is being deleted"
        return group.failing

    def refuse(self, event: Any, token: int) -> None:
        self.turn.refuse(
            token, GROUP_ID_NOT_FOUND, f"group {event.group_id!r} is a {self.name} group"
        )

    def missing(self, event: Any, token: int) -> None:
        self.turn.refuse(token, GROUP_ID_NOT_FOUND, f"there is no group {event.group_id!r}")

    def listed(self) -> Iterable[ListedGroup]:
        for group_id, group in self.groups.items():
            yield ListedGroup(
                group_id=group_id,
                protocol_type=self.protocol_type,
                state=self.state(group),
                group_type=self.name,
            )

    def delete(self, event: DeleteGroup, token: int) -> None:
        """Delete a group; the response waits until the removal is durable."""
        group = self.groups.get(event.group_id)
        if group is None:
            self.missing(event, token)
        elif group.members:
            self.turn.refuse(
                token, NON_EMPTY_GROUP, f"group {group.group_id!r} is {self.state(group)}"
            )
        elif group.failing:
            self.turn.refuse(token, COORDINATOR_NOT_AVAILABLE, group.failing)
        else:
            self.saver.remove(group, [token])

    def check_offset_delete(self, event: OffsetDeleteCheck, token: int) -> None:
        group = self.groups.get(event.group_id)
        if group is None:
            self.missing(event, token)
            return
        subscribed = frozenset([topic for topic in event.topics if topic in group.readers])
        self.turn.reply(token, OffsetsDeletable(subscribed=subscribed))

    def prune(self, event: Prune) -> None:
        for group_id, group in list(self.groups.items()):
            group.has_offsets = group_id in event.with_offsets
            unused = not group.members and not group.has_offsets and not self.busy(group)
            if unused and group.touched_ms + EMPTY_GROUP_GRACE_MS <= self.turn.now_ms:
                self.saver.remove(group, [])


JOIN: Final = 0
LEAVE: Final = -1
"""Epochs in the heartbeats of a member that joins (`JOIN`) or leaves (`LEAVE`)."""


class HeartbeatResponse(Struct, frozen=True, kw_only=True):
    """Heartbeat response. `assigned` is the assignment of the member; None if it is unchanged."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None
