"""Handlers of requests to a consumer group from members that use the classic protocol.

    JoinGroup   updates the subscription and the owned partitions, like a ConsumerGroupHeartbeat.
                The response names no leader; its generation is the member epoch
    SyncGroup   returns the assignment
    Heartbeat   returns REBALANCE_IN_PROGRESS if the member must rejoin: to get a new target, to
                revoke partitions, or to get partitions that others have revoked. A member that
                does not rejoin within its rebalance timeout is removed
    LeaveGroup  removes members, as in a classic group

Source: Kafka's `GroupMetadataManager.classicGroupJoinToConsumerGroup` and similar methods; KIP-848.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.broker.groups.classic import (
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    LeftMember,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.classic.states import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
)
from penstock.broker.groups.consumer.group import (
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from penstock.broker.groups.consumer.heartbeat import step
from penstock.broker.groups.consumer.state import Consumers
from penstock.broker.groups.modern.core import JOIN, UNKNOWN_MEMBER_ID
from penstock.broker.groups.modern.group import Parked, outdate
from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import COORDINATOR_NOT_AVAILABLE, Accepted

if TYPE_CHECKING:
    from penstock.control import Topic


# Codec of the subscription and the assignment of members that use the classic protocol.
#
#   subscription  version int16 · topics · user data · v1: partitions owned · v2: generation int32
#                 · v3: rack
#   assignment    version int16 · partitions · user data
#   topics        count int32 · count × text          partitions  count int32 · count ×
#   text          length int16 · bytes                            (text, count int32, count × int32)
#   user data     length int32 (−1: none) · bytes
#
# Integers are big-endian. Bytes behind the last field of a version are ignored.
#
# Source: Kafka's `ConsumerProtocolSubscription.json` and `ConsumerProtocolAssignment.json`.


Owned = Mapping[str, frozenset[int]]
VERSION_MAX: Final = 3
OWNED_VERSION: Final = 1
RACK_VERSION: Final = 3


class Subscription(Struct, frozen=True, kw_only=True):
    """Topics and owned partitions of a member; `owned` is empty below version 1."""

    version: int
    topics: frozenset[str]
    owned: Owned
    rack_id: str | None = None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def data(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if length < 0 or len(found) != length:
            raise ValueError(f"a field of {length} bytes at byte {self._at} is truncated")
        self._at += length
        return found

    def text(self) -> str:
        return self.data(self.number(">h")).decode()

    def count(self, least_bytes: int) -> int:
        count = self.number(">i")
        if count < 0 or count * least_bytes > len(self._data) - self._at:
            raise ValueError(f"a list of {count} entries at byte {self._at} is truncated")
        return count

    def partitions(self) -> Owned:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count(6)):
            topic = self.text()
            numbers = [self.number(">i") for _ in range(self.count(4))]
            if numbers:
                found[topic] = found.get(topic, frozenset()).union(numbers)
        return found

    def user_data(self) -> None:
        length = self.number(">i")
        if length >= 0:
            self.data(length)


def decode_subscription(metadata: bytes) -> Subscription:
    """Decode the subscription in a member's metadata.

    Raises:
        ValueError: the bytes are not a subscription.
    """
    reader = _Reader(metadata)
    try:
        version = reader.number(">h")
        topics = frozenset([reader.text() for _ in range(reader.count(2))])
        reader.user_data()
        owned = reader.partitions() if version >= OWNED_VERSION else {}
        rack_id = None
        if version >= RACK_VERSION:
            reader.number(">i")
            length = reader.number(">h")
            rack_id = reader.data(length).decode() if length >= 0 else None
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the subscription cannot be decoded: {error}") from None
    if version < 0:
        raise ValueError(f"the subscription has the invalid version {version}")
    return Subscription(version=version, topics=topics, owned=owned, rack_id=rack_id)


def decode_assignment(assignment: bytes) -> Owned:
    """Decode the partitions of an assignment; empty bytes mean no partitions.

    Raises:
        ValueError: the bytes are not an assignment.
    """
    if not assignment:
        return {}
    reader = _Reader(assignment)
    try:
        if reader.number(">h") < 0:
            raise ValueError("the assignment has a negative version")
        return reader.partitions()
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the assignment cannot be decoded: {error}") from None


def encode_assignment(partitions: Owned, version: int) -> bytes:
    pieces = [struct.pack(">hi", min(version, VERSION_MAX), len(partitions))]
    for topic in sorted(partitions):
        name, numbers = topic.encode(), sorted(partitions[topic])
        pieces.append(struct.pack(">h", len(name)) + name)
        pieces.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    pieces.append(struct.pack(">i", -1))
    return b"".join(pieces)


CONSUMER: Final = "consumer"


class Rejoin(Struct, frozen=True):
    member_id: str
    owned: Partitions


def by_id(owned: Owned, topics: Mapping[str, Topic]) -> Partitions:
    """Return partitions by topic id; topics that do not exist are omitted."""
    return {
        topics[name].topic_id.bytes: numbers for name, numbers in owned.items() if name in topics
    }


def by_name(partitions: Partitions, topics: Mapping[str, Topic]) -> Owned:
    """Return partitions by topic name; topics that do not exist are omitted."""
    names = {topic.topic_id.bytes: name for name, topic in topics.items()}
    return {names[topic]: numbers for topic, numbers in partitions.items() if topic in names}


# -- JoinGroup ------------------------------------------------------------------------------


def join(groups: Consumers, event: JoinGroup, token: int) -> None:
    group = groups.groups[event.group_id]
    found = _joining(groups, group, event)
    if isinstance(found, Refused):
        groups.turn.reply(token, found)
        return
    member, subscription = found
    groups.unpark(member, REBALANCE_IN_PROGRESS, "a newer JoinGroup replaces this one")
    if _update(groups, group, member, event, subscription):
        groups.bump(group)
    groups.turn.timers.stop(member.rebalance_timer)
    groups.start_session(group, member)
    rejoin = Rejoin(member.member_id, by_id(subscription.owned, groups.topics))
    if group.assignment_epoch < group.epoch:
        groups.park(group, member, token, rejoin)
    else:
        _answer(groups, group, rejoin, token)
    groups.finish_event(group)


def _joining(
    groups: Consumers, group: ConsumerGroup, event: JoinGroup
) -> tuple[ConsumerMember, Subscription] | Refused:
    busy = groups.busy(group)
    if busy:
        return Refused(error=COORDINATOR_NOT_AVAILABLE, message=busy)
    names = {protocol.name for protocol in event.protocols}
    if event.protocol_type != CONSUMER or not names.intersection(*_protocols(group, event)):
        return Refused(
            error=INCONSISTENT_GROUP_PROTOCOL,
            message=f"consumer group {group.group_id!r} has no protocol in common with this member",
        )
    try:
        subscription = decode_subscription(event.protocols[0].metadata)
    except ValueError as error:
        return Refused(error=INCONSISTENT_GROUP_PROTOCOL, message=str(error))
    member_id = event.member_id
    if event.group_instance_id is not None:
        holder = group.static.get(event.group_instance_id)
        if holder is not None:
            if member_id and holder != member_id:
                return Refused(
                    error=FENCED_INSTANCE_ID,
                    message=f"member {holder!r} has instance id {event.group_instance_id!r}",
                )
            return _returning(groups, group, group.members[holder], event), subscription
    size = len(group.members)
    if size >= groups.limits.max_size and member_id not in group.members:
        return Refused(
            error=GROUP_MAX_SIZE_REACHED,
            message=f"group {group.group_id!r} has {size} members,"
            f" group.consumer.max.size is {groups.limits.max_size}",
        )
    if not member_id:
        instance = event.group_instance_id
        member_id = f"{instance if instance is not None else event.client_id}-{event.fresh_id}"
        if instance is None and event.member_id_required:
            return Refused(
                error=MEMBER_ID_REQUIRED,
                message="join again with the member id in this response",
                member_id=member_id,
            )
    return group.members.get(member_id) or _new(groups, group, event, member_id), subscription


def _protocols(group: ConsumerGroup, event: JoinGroup) -> list[set[str]]:
    return [
        {protocol.name for protocol in member.classic.protocols}
        for member in group.members.values()
        if member.classic is not None and member.member_id != event.member_id
    ]


def _new(
    groups: Consumers, group: ConsumerGroup, event: JoinGroup, member_id: str
) -> ConsumerMember:
    member = ConsumerMember(member_id)
    member.instance_id = event.group_instance_id
    group.add(member)
    member.timer.fire = partial(groups.expire, group, member)
    return member


def _returning(
    groups: Consumers, group: ConsumerGroup, holder: ConsumerMember, event: JoinGroup
) -> ConsumerMember:
    if not event.member_id:
        groups.unpark(holder, FENCED_INSTANCE_ID, "another process joined as this instance")
        group.rename(holder, f"{event.group_instance_id}-{event.fresh_id}")
        holder.previous_epoch = holder.epoch = JOIN
        groups.changed(group)
        if group.ticket:  # the running computation has the former member id
            groups.bump(group)
    return holder


def _update(
    groups: Consumers,
    group: ConsumerGroup,
    member: ConsumerMember,
    event: JoinGroup,
    subscription: Subscription,
) -> bool:
    """Update a member from its JoinGroup; return whether the group needs a new target."""
    member.classic = ClassicSide(
        session_timeout_ms=event.session_timeout_ms, protocols=event.protocols
    )
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    member.client_id, member.client_host = event.client_id, event.client_host
    member.rack_id = subscription.rack_id
    member.assignor = ""
    outdate(member, "member")
    groups.changed(group)
    differs = group.subscribe(member, subscription.topics, "")
    if differs:
        groups.regexes.look(group)
    return differs


def resume(groups: Consumers, group: ConsumerGroup, parked: Parked) -> None:
    _answer(groups, group, parked.event, parked.token)


def _answer(groups: Consumers, group: ConsumerGroup, rejoin: Rejoin, token: int) -> None:
    member = group.members[rejoin.member_id]
    step(groups, group, member, rejoin.owned)
    side = member.classic
    response = Joined(
        generation=member.epoch,
        protocol_type=CONSUMER,
        protocol="" if side is None else side.protocols[0].name,
        leader="",
        member_id=member.member_id,
    )
    groups.saver.answer(group, token, response)


# -- SyncGroup, Heartbeat, LeaveGroup -------------------------------------------------------


def sync(groups: Consumers, event: SyncGroup, token: int) -> None:
    group = groups.groups[event.group_id]
    member = _member(group, event.member_id, event.group_instance_id, event.generation)
    if isinstance(member, Refused):
        groups.turn.reply(token, member)
        return
    side = member.classic
    if side is None:
        groups.turn.refuse(
            token, UNKNOWN_MEMBER_ID, f"member {event.member_id!r} uses the consumer protocol"
        )
        return
    name = side.protocols[0].name
    if event.protocol_type not in (None, CONSUMER) or event.protocol not in (None, name):
        groups.turn.refuse(
            token,
            INCONSISTENT_GROUP_PROTOCOL,
            f"member {event.member_id!r} uses protocol {name!r} of type {CONSUMER!r}",
        )
        return
    groups.start_session(group, member)
    if member.epoch < group.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _must_rejoin(groups, member, token)
        return
    version = decode_subscription(side.protocols[0].metadata).version
    assignment = encode_assignment(by_name(member.assigned, groups.topics), version)
    response = Synced(protocol_type=CONSUMER, protocol=name, assignment=assignment)
    groups.saver.answer(group, token, response)


def heartbeat(groups: Consumers, event: Heartbeat, token: int) -> None:
    group = groups.groups[event.group_id]
    member = _member(group, event.member_id, event.group_instance_id, event.generation)
    if isinstance(member, Refused):
        groups.turn.reply(token, member)
        return
    groups.start_session(group, member)
    if (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and group.released(member))
    ):
        _must_rejoin(groups, member, token)
    else:
        groups.turn.reply(token, Accepted())


def _must_rejoin(groups: Consumers, member: ConsumerMember, token: int) -> None:
    timer, timers = member.rebalance_timer, groups.turn.timers
    if timer.deadline_ms is None:
        timer.fire = member.timer.fire
        timers.start(timer, groups.turn.now_ms + member.rebalance_timeout_ms)
    groups.turn.refuse(token, REBALANCE_IN_PROGRESS)


def _member(
    group: ConsumerGroup, member_id: str, instance: str | None, generation: int
) -> ConsumerMember | Refused:
    if instance is not None and group.static.get(instance, member_id) != member_id:
        return Refused(error=FENCED_INSTANCE_ID)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return Refused(error=UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        return Refused(
            error=ILLEGAL_GENERATION,
            message=f"the generation of {member_id!r} is {member.epoch}, not {generation}",
        )
    return member


def leave(groups: Consumers, event: LeaveGroup, token: int) -> None:
    group = groups.groups[event.group_id]
    busy = groups.busy(group)
    if busy:
        groups.turn.refuse(token, COORDINATOR_NOT_AVAILABLE, busy)
        return
    left = tuple(
        LeftMember(
            member_id=leaving.member_id,
            group_instance_id=leaving.group_instance_id,
            error=_leave(groups, group, leaving),
        )
        for leaving in event.members
    )
    groups.saver.answer(group, token, Left(members=left))
    groups.regexes.look(group)
    groups.finish_event(group)


def _leave(groups: Consumers, group: ConsumerGroup, leaving: LeavingMember) -> str:
    holder = None
    if leaving.group_instance_id is not None:
        holder = group.static.get(leaving.group_instance_id)
        if holder is None:
            return UNKNOWN_MEMBER_ID
        if leaving.member_id and holder != leaving.member_id:
            return FENCED_INSTANCE_ID
    member = group.members.get(leaving.member_id or holder or "")
    if member is None or (leaving.member_id and member.classic is None):
        return UNKNOWN_MEMBER_ID
    groups.expel(group, member)
    return NONE
