"""Share groups at their coordinator: membership and assignment of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from msgspec import Struct

from penstock.broker.configuration.groups import GroupConfigs
from penstock.broker.groups.modern.core import (
    EMPTY,
    JOIN,
    LEAVE,
    MEMBER_BYTES_MAX,
    UNKNOWN_MEMBER_ID,
    HeartbeatResponse,
    ModernGroups,
)
from penstock.broker.groups.modern.group import (
    ModernGroup,
    ModernMember,
    Parked,
    decode_partitions,
    decode_rows,
    encode_rows,
    outdate,
    row_of,
)
from penstock.broker.groups.runtime.assignors import SIMPLE, Partitions
from penstock.broker.groups.runtime.core import Computed, Refused, Saved, SaveFailed
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    DeleteGroup,
    DescribeGroup,
    Handler,
    Prune,
    Turn,
)

# State of a share group and its members. Members may share partitions, so none waits for another.
#
# Source: Kafka's `ShareGroup` and `ShareGroupMember`.


class ShareMember(ModernMember):
    """Member of a share group. `last_sent` is the assignment that it received last, or None."""

    __slots__ = ("last_sent",)

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.last_sent: Partitions | None = None


ShareGroup = ModernGroup[ShareMember]


# Stored rows of a share group: one for the group, and one for each member.
#
# Rows are JSON. The group's own row has the empty member id:
#
#     {"kind": "share", "format": 1, "epoch": int, "assignment_epoch": int, "assignor": text,
#      "topics": text (fingerprint of the topics that members read)}
#
# A member's row, under its id:
#
#     {"member": {"rack": text | null, "client": text, "host": text, "topics": [text, …]},
#      "current": {"epoch": int, "previous_epoch": int}, "target": partitions}
#
# Partitions are {topic id in hexadecimal: [int, …], …}. The states of records are in other rows
# (`broker/share/stored.py`).


KIND: Final = "share"
FORMAT: Final = 1


def encode_group(group: ShareGroup) -> dict[str, bytes]:
    return encode_rows(group, kind=KIND, row_format=FORMAT, member=_member, current=_current)


def _member(member: ShareMember) -> bytes:
    return row_of(
        {
            "rack": member.rack_id,
            "client": member.client_id,
            "host": member.client_host,
            "topics": sorted(member.topics),
        }
    )


def _current(member: ShareMember) -> bytes:
    return b'{"epoch":%d,"previous_epoch":%d}' % (member.epoch, member.previous_epoch)


def decode_group(group_id: str, rows: Mapping[str, bytes]) -> tuple[ShareGroup, str]:
    """Return the group of stored rows, and the fingerprint that its topics had when it was saved.

    The timers of its members are not started.

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    empty = ShareGroup(group_id, touched_ms=0)
    return decode_rows(empty, rows, row_format=FORMAT, member=_decode_member)


def _decode_member(member_id: str, saved: Mapping[str, Any]) -> ShareMember:
    member = ShareMember(member_id)
    fields, current = saved["member"], saved["current"]
    member.rack_id = fields["rack"]
    member.client_id, member.client_host = fields["client"], fields["host"]
    member.topics = frozenset(fields["topics"])
    member.epoch, member.previous_epoch = int(current["epoch"]), int(current["previous_epoch"])
    member.target = decode_partitions(saved["target"])
    return member


# Core of share groups: members join, heartbeat, leave and get assignments.
#
#     epoch 0    the member joins or rejoins
#     epoch > 0  heartbeat; an epoch other than the current or the previous one is fenced
#     epoch −1   the member leaves
#
# A member gets a new target in the response to its next heartbeat. Members may share a partition,
# so no other member has to revoke it first. `broker/share/` tracks the records that members
# acquire.
#
# Source: Kafka's `GroupMetadataManager.shareGroupHeartbeat`; KIP-932.


class ShareHeartbeat(Struct, frozen=True, kw_only=True):
    """ShareGroupHeartbeat request: a member joins, stays or leaves. None means unchanged."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    topics: frozenset[str] | None = None


class EnsureShareGroup(Struct, frozen=True, kw_only=True):
    """Request to describe a share group, which is created if no group has this id."""

    group_id: str


class DescribedShareMember(Struct, frozen=True, kw_only=True):
    """Member of a described share group. It has no instance id: members are never static."""

    member_id: str
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: Partitions
    group_instance_id: str | None = None


class DescribedShareGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedShareMember, ...]
    protocol_type: str = "share"

    @property
    def protocol(self) -> str:
        """Name of the assignor, shown where a classic group shows its protocol."""
        return self.assignor


class ShareGroupLimits(Struct, frozen=True, kw_only=True):
    """Limits of share groups; times in ms. `configs` returns the settings of a single group."""

    configs: Callable[[str], GroupConfigs]
    groups_max: int = 100_000
    max_size: int = 200
    assignment_interval: int = 1_000

    def session_timeout_ms(self, group_id: str) -> int:
        return self.configs(group_id).share_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.configs(group_id).share_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        return self.assignment_interval


FENCED_MEMBER_EPOCH: Final = "fenced_member_epoch"
GROUP_MAX_SIZE_REACHED: Final = "group_max_size_reached"
INVALID_REQUEST: Final = "invalid_request"
STABLE: Final = "Stable"


class ShareGroups(ModernGroups[ShareGroup, ShareMember]):
    name: ClassVar[str] = KIND
    protocol_type: ClassVar[str] = "share"

    def __init__(self, turn: Turn, limits: ShareGroupLimits) -> None:
        self.limits: ShareGroupLimits = limits
        super().__init__(turn, limits)
        self.handlers: Mapping[type, Handler] = {
            ShareHeartbeat: self.heartbeat,
            DescribeGroup: self.describe,
            EnsureShareGroup: self.ensure,
            DeleteGroup: self.delete,
            Computed: self.computed,
            Saved: self.saved,
            SaveFailed: self.save_failed,
        }

    # -- kind-specific parts ----------------------------------------------------------------

    def encode(self, group: ShareGroup) -> Mapping[str, bytes]:
        return encode_group(group)

    def decode(self, group_id: str, rows: Mapping[str, bytes]) -> tuple[ShareGroup, str]:
        return decode_group(group_id, rows)

    def state(self, group: ShareGroup) -> str:
        return STABLE if group.members else EMPTY

    def assignor(self, group: ShareGroup) -> str:
        return SIMPLE

    def prune(self, event: Prune) -> None:
        """Do nothing: share groups exist until they are deleted, even without members."""

    def watch(self, group: ShareGroup, member: ShareMember) -> None:
        member.timer.fire = partial(self._expire, group, member)
        self._start_session(group, member)

    def resume(self, group: ShareGroup, parked: Parked) -> None:
        event: ShareHeartbeat = parked.event
        self._answer(group, group.members[event.member_id], event, parked.token)

    # -- heartbeats -------------------------------------------------------------------------

    def heartbeat(self, event: ShareHeartbeat, token: int) -> None:
        refusal = _refuse_malformed(event)
        if refusal is None and event.epoch == LEAVE:
            self._leave(event, token)
            return
        group = self.groups.get(event.group_id)
        refusal = refusal or self._refuse_group(group, event)
        if refusal is None and group is not None:
            refusal = _refuse_epoch(group.members.get(event.member_id), event)
        if refusal is not None:
            self.turn.reply(token, refusal)
            return
        if group is None:
            group = self._create(event.group_id)
        self._beat(group, event, token)
        self.finish_event(group)

    def _create(self, group_id: str) -> ShareGroup:
        group = self.groups[group_id] = ShareGroup(group_id, touched_ms=self.turn.now_ms)
        return group

    def _refuse_creation(self) -> Refused | None:
        count = self.turn.count()
        if count < self.limits.groups_max:
            return None
        limit = self.limits.groups_max
        message = f"there are {count} groups, groups.max = {limit} allows no more"
        return Refused(error=COORDINATOR_NOT_AVAILABLE, message=message)

    def _refuse_group(self, group: ShareGroup | None, event: ShareHeartbeat) -> Refused | None:
        if group is None:
            if event.epoch != JOIN:
                message = f"Group {event.group_id} not found."
                return Refused(error=GROUP_ID_NOT_FOUND, message=message)
            return self._refuse_creation()
        busy, member = self.busy(group), group.members.get(event.member_id)
        if busy:
            if member is not None:
                self._start_session(group, member)
            return Refused(error=COORDINATOR_NOT_AVAILABLE, message=busy)
        size, limit = len(group.members), self.limits.max_size
        if member is None and size >= limit:
            return Refused(
                error=GROUP_MAX_SIZE_REACHED,
                message=f"group {group.group_id!r} has {size} members, group.share.max.size is"
                f" {limit}",
            )
        return None

    def _beat(self, group: ShareGroup, event: ShareHeartbeat, token: int) -> None:
        member = group.members.get(event.member_id)
        if member is None:
            member = ShareMember(event.member_id)
            member.timer.fire = partial(self._expire, group, member)
            group.add(member)
        self.unpark(member, COORDINATOR_NOT_AVAILABLE, "a newer heartbeat replaces this one")
        if event.epoch == JOIN and member.epoch != JOIN:
            self._move(group, member, JOIN)
        needs_target = self._update(group, member, event)
        if needs_target:
            self.bump(group)
        self._start_session(group, member)
        if group.assignment_epoch < group.epoch and (needs_target or event.epoch == JOIN):
            self.park(group, member, token, event)
        else:
            self._answer(group, member, event, token)

    def _update(self, group: ShareGroup, member: ShareMember, event: ShareHeartbeat) -> bool:
        known = (member.rack_id, member.client_id, member.client_host, member.topics)
        if event.rack_id is not None:
            member.rack_id = event.rack_id
        member.client_id, member.client_host = event.client_id, event.client_host
        topics = member.topics if event.topics is None else event.topics
        differs = group.subscribe(member, topics, "")
        now = (member.rack_id, member.client_id, member.client_host, member.topics)
        if now != known or not member.rows:
            outdate(member, "member")
            self.changed(group)
        return differs or group.epoch == 0

    def _answer(
        self, group: ShareGroup, member: ShareMember, event: ShareHeartbeat, token: int
    ) -> None:
        if member.epoch != group.assignment_epoch:
            self._move(group, member, group.assignment_epoch)
        changed = (
            event.epoch == JOIN or event.topics is not None or member.last_sent != member.target
        )
        member.last_sent = member.target
        response = HeartbeatResponse(
            member_id=member.member_id,
            epoch=member.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms(group.group_id),
            assigned=member.target if changed else None,
        )
        self.saver.answer(group, token, response)

    def _move(self, group: ShareGroup, member: ShareMember, epoch: int) -> None:
        member.previous_epoch, member.epoch = member.epoch, epoch
        outdate(member, "current")
        self.changed(group)

    def _leave(self, event: ShareHeartbeat, token: int) -> None:
        group = self.groups.get(event.group_id)
        if group is None:
            self.missing(event, token)
            return
        busy, member = self.busy(group), group.members.get(event.member_id)
        if busy:
            self.turn.refuse(token, COORDINATOR_NOT_AVAILABLE, busy)
        elif member is None:
            self.turn.refuse(token, UNKNOWN_MEMBER_ID, _unknown(event))
        else:
            self.expel(group, member)
            left = HeartbeatResponse(member_id=event.member_id, epoch=LEAVE)
            self.saver.answer(group, token, left)
            self.finish_event(group)

    # -- time -------------------------------------------------------------------------------

    def _start_session(self, group: ShareGroup, member: ShareMember) -> None:
        timeout_ms = self.limits.session_timeout_ms(group.group_id)
        self.turn.timers.start(member.timer, self.turn.now_ms + timeout_ms)

    def _expire(self, group: ShareGroup, member: ShareMember) -> None:
        if group.members.get(member.member_id) is member:
            self.expel(group, member)
            self.finish_event(group)

    # -- queries ----------------------------------------------------------------------------

    def describe(self, event: DescribeGroup, token: int) -> None:
        self.turn.reply(token, self._described(self.groups[event.group_id]))

    def ensure(self, event: EnsureShareGroup, token: int) -> None:
        """Create a share group unless it exists; respond once the group is durable."""
        group = self.groups.get(event.group_id)
        if group is None:
            refusal = self._refuse_creation()
            if refusal is not None:
                self.turn.reply(token, refusal)
                return
            group = self._create(event.group_id)
            self.changed(group)
        busy = self.busy(group)
        if busy:
            self.turn.refuse(token, COORDINATOR_NOT_AVAILABLE, busy)
            return
        self.saver.answer(group, token, self._described(group))
        self.finish_event(group)

    def _described(self, group: ShareGroup) -> DescribedShareGroup:
        members = tuple(
            DescribedShareMember(
                member_id=member.member_id,
                rack_id=member.rack_id,
                epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=tuple(sorted(member.topics)),
                assigned=member.target,
            )
            for member in group.members.values()
        )
        return DescribedShareGroup(
            group_id=group.group_id,
            state=self.state(group),
            epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=SIMPLE,
            members=members,
        )


def _refuse_malformed(event: ShareHeartbeat) -> Refused | None:
    """Return the error of a heartbeat that is invalid for every group; None if it is valid."""
    for name, text in (
        ("GroupId", event.group_id), ("MemberId", event.member_id), ("RackId", event.rack_id)
    ):  # fmt: skip
        if text is not None and not text.strip():
            return Refused(error=INVALID_REQUEST, message=f"{name} can't be empty.")
    message = ""
    size = sum(map(len, event.topics or ()))
    if event.epoch < LEAVE:
        message = f"MemberEpoch {event.epoch} is invalid."
    elif event.epoch == JOIN and not event.topics:
        message = "SubscribedTopicNames must be set in first request."
    elif size > MEMBER_BYTES_MAX:
        message = f"the subscription has {size} bytes, at most {MEMBER_BYTES_MAX} are allowed"
    return Refused(error=INVALID_REQUEST, message=message) if message else None


def _refuse_epoch(member: ShareMember | None, event: ShareHeartbeat) -> Refused | None:
    """Return the error of a stale or unknown epoch; None if the epoch is valid.

    The previous epoch is valid too: the response with the current epoch may have been lost.
    """
    if event.epoch == JOIN:
        return None
    if member is None:
        return Refused(error=UNKNOWN_MEMBER_ID, message=_unknown(event))
    if event.epoch in (member.epoch, member.previous_epoch):
        return None
    side = "greater" if event.epoch > member.epoch else "smaller"
    return Refused(
        error=FENCED_MEMBER_EPOCH,
        message=f"The share group member has a {side} member epoch ({event.epoch}) than the one"
        f" known by the group coordinator ({member.epoch}). The member must rejoin.",
    )


def _unknown(event: ShareHeartbeat) -> str:
    return f"{event.member_id!r} is not a member of group {event.group_id!r}"
