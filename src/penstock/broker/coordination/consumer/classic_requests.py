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

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.classic import (
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
from penstock.broker.coordination.classic.states import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
)
from penstock.broker.coordination.consumer.classic_member import ClassicSide
from penstock.broker.coordination.consumer.group import ConsumerGroup, ConsumerMember
from penstock.broker.coordination.consumer.heartbeat import step
from penstock.broker.coordination.consumer.reconciliation import MemberState
from penstock.broker.coordination.consumer.state import ConsumerState
from penstock.broker.coordination.consumer_protocol import (
    Owned,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import COORDINATOR_NOT_AVAILABLE, Accepted
from penstock.broker.coordination.modern.core import UNKNOWN_MEMBER_ID
from penstock.broker.coordination.modern.events import JOIN
from penstock.broker.coordination.modern.group import Parked
from penstock.broker.coordination.modern.group_saver import outdate

if TYPE_CHECKING:
    from penstock.control import Topic

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


def join(groups: ConsumerState, event: JoinGroup, token: int) -> None:
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
    groups: ConsumerState, group: ConsumerGroup, event: JoinGroup
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
    groups: ConsumerState, group: ConsumerGroup, event: JoinGroup, member_id: str
) -> ConsumerMember:
    member = ConsumerMember(member_id)
    member.instance_id = event.group_instance_id
    group.add(member)
    member.timer.fire = partial(groups.expire, group, member)
    return member


def _returning(
    groups: ConsumerState, group: ConsumerGroup, holder: ConsumerMember, event: JoinGroup
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
    groups: ConsumerState,
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


def resume(groups: ConsumerState, group: ConsumerGroup, parked: Parked) -> None:
    _answer(groups, group, parked.event, parked.token)


def _answer(groups: ConsumerState, group: ConsumerGroup, rejoin: Rejoin, token: int) -> None:
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


def sync(groups: ConsumerState, event: SyncGroup, token: int) -> None:
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


def heartbeat(groups: ConsumerState, event: Heartbeat, token: int) -> None:
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


def _must_rejoin(groups: ConsumerState, member: ConsumerMember, token: int) -> None:
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


def leave(groups: ConsumerState, event: LeaveGroup, token: int) -> None:
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


def _leave(groups: ConsumerState, group: ConsumerGroup, leaving: LeavingMember) -> str:
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
