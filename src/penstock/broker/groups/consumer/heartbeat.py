"""Handler of heartbeats to consumer and streams groups, by which members join, stay and leave.

    epoch 0    the member joins, or rejoins without partitions
    epoch > 0  heartbeat; an epoch other than the current or the previous one is fenced
    epoch −1   the member leaves
    epoch −2   a static member leaves and keeps its partitions for the session timeout

Source: Kafka's `GroupMetadataManager.consumerGroupHeartbeat`; KIP-848.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.groups.consumer.events import (
    LEAVE_FOR_A_WHILE,
    UNCHANGED,
    Beat,
    ConsumerHeartbeat,
    E,
)
from penstock.broker.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    Current,
    MemberState,
    reconcile,
)
from penstock.broker.groups.consumer.state import ConsumerState, G
from penstock.broker.groups.modern.core import (
    JOIN,
    LEAVE,
    MEMBER_BYTES_MAX,
    UNKNOWN_MEMBER_ID,
    HeartbeatResponse,
)
from penstock.broker.groups.modern.group import outdate
from penstock.broker.groups.runtime.assignors import Partitions, within
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import COORDINATOR_NOT_AVAILABLE, GROUP_ID_NOT_FOUND
from penstock.broker.groups.runtime.topic_regex import InvalidRegex, compile_regex

WAITING_HEARTBEAT_MS: Final = 500
"""Heartbeat interval of a member that waits until other members revoke partitions."""
WAITING_HEARTBEAT_MS_PER_MEMBER: Final = 5
"""Minimum of that interval for each member of the group: at most 200 heartbeats a second in all."""

FENCED_INSTANCE_ID: Final = "fenced_instance_id"
FENCED_MEMBER_EPOCH: Final = "fenced_member_epoch"
GROUP_MAX_SIZE_REACHED: Final = "group_max_size_reached"
INVALID_REGULAR_EXPRESSION: Final = "invalid_regular_expression"
INVALID_REQUEST: Final = "invalid_request"
UNRELEASED_INSTANCE_ID: Final = "unreleased_instance_id"
UNSUPPORTED_ASSIGNOR: Final = "unsupported_assignor"


def heartbeat(groups: ConsumerState[G, E], event: E, token: int) -> None:
    refusal = groups.refuse_malformed(event)
    if refusal is None and event.epoch < 0:
        _leave(groups, event, token)
        return
    group = groups.groups.get(event.group_id)
    if refusal is None:
        refusal = _refuse_group(groups, group, event)
    if refusal is None and group is not None:
        refusal = groups.refuse_update(group, event)
    if refusal is None:
        group = group or groups.create(event.group_id)
        member = _find_member(groups, group, event)
        if isinstance(member, Refused):
            refusal = member
        else:
            _beat(groups, group, member, event, token)
            groups.finish_event(group)
            return
    groups.turn.reply(token, refusal)


def refuse_malformed(event: ConsumerHeartbeat, assignors: tuple[str, ...]) -> Refused | None:
    """Return the error of a heartbeat that is invalid for every group; None if it is valid."""
    refusal = refuse_fields(event)
    if refusal is not None:
        return refusal
    missing = _missing(event)
    if missing:
        return invalid(missing)
    size = sum(len(name.encode()) for name in (*(event.topics or ()), event.regex or ""))
    if size > MEMBER_BYTES_MAX:
        return invalid(f"the subscription has {size} bytes, at most {MEMBER_BYTES_MAX} are allowed")
    if event.assignor is not None and event.assignor not in assignors:
        known = ", ".join(assignors)
        return Refused(
            error=UNSUPPORTED_ASSIGNOR,
            message=f"ServerAssignor {event.assignor} is not supported. Supported assignors:"
            f" {known}.",
        )
    return _refuse_regex(event.regex)


def refuse_fields(event: ConsumerHeartbeat, process_id: str | None = None) -> Refused | None:
    """Return the error of a field that heartbeats of all kinds of groups have; else None."""
    for name, text in (
        ("GroupId", event.group_id),
        ("InstanceId", event.instance_id),
        ("RackId", event.rack_id),
        ("MemberId", event.member_id or event.fresh_id),
        ("ProcessId", process_id),
    ):
        if text is not None and not text.strip():
            return invalid(f"{name} can't be empty.")
    if event.epoch < LEAVE_FOR_A_WHILE:
        return invalid(f"MemberEpoch {event.epoch} is invalid.")
    if event.epoch == LEAVE_FOR_A_WHILE and event.instance_id is None:
        return invalid("InstanceId can't be null.")
    if event.epoch == JOIN and event.rebalance_timeout_ms == UNCHANGED:
        return invalid("RebalanceTimeoutMs must be provided in first request.")
    return None


def _missing(event: ConsumerHeartbeat) -> str:
    """Return the error if a field that a join requires is missing or invalid; else empty."""
    if event.epoch != JOIN:
        return ""
    if event.owned is None or event.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if event.topics is None and event.regex is None:
        return "SubscribedTopicNames or SubscribedTopicRegex must be given to join."
    return ""


def _refuse_regex(regex: str | None) -> Refused | None:
    try:
        if regex:
            compile_regex(regex)
    except InvalidRegex as error:
        return Refused(
            error=INVALID_REGULAR_EXPRESSION,
            message=f"SubscribedTopicRegex {regex!r} is not a valid regular expression: {error}",
        )
    return None


def invalid(message: str) -> Refused:
    return Refused(error=INVALID_REQUEST, message=message)


def _refuse_group(groups: ConsumerState[G, E], group: G | None, event: E) -> Refused | None:
    """Return the error of a heartbeat that the group, or a new one, rejects; else None."""
    limits = groups.limits
    if group is None:
        if event.epoch != JOIN:
            return Refused(error=GROUP_ID_NOT_FOUND, message=f"Group {event.group_id} not found.")
        if groups.turn.count() >= limits.groups_max:
            return Refused(
                error=COORDINATOR_NOT_AVAILABLE,
                message=f"there are {groups.turn.count()} groups, groups.max ="
                f" {limits.groups_max} allows no more",
            )
        return None
    busy = groups.busy(group)
    if busy:
        member = group.members.get(event.member_id)
        if member is not None:
            groups.start_session(group, member)
        return Refused(error=COORDINATOR_NOT_AVAILABLE, message=busy)
    size = len(group.members)
    known = event.member_id in group.members or (event.instance_id or "") in group.static
    if size >= limits.max_size and not known:
        return Refused(
            error=GROUP_MAX_SIZE_REACHED,
            message=f"group {group.group_id!r} has {size} members,"
            f" group.{groups.name}.max.size is {limits.max_size}",
        )
    return None


def _find_member(groups: ConsumerState[G, E], group: G, event: E) -> ConsumerMember | Refused:
    member_id = event.member_id or event.fresh_id
    if event.instance_id is not None:
        holder_id = group.static.get(event.instance_id)
        holder = None if holder_id is None else group.members[holder_id]
        if holder is not None and holder_id != member_id:
            return _replace(groups, group, holder, event, member_id)
        if holder is None and event.epoch != JOIN:
            return Refused(
                error=UNKNOWN_MEMBER_ID, message=f"Instance id {event.instance_id} is unknown."
            )
    member = group.members.get(member_id)
    if event.epoch == JOIN:
        if member is None:
            member = groups.new_member(member_id)
            member.instance_id = event.instance_id
            group.add(member)
            member.timer.fire = partial(groups.expire, group, member)
        return member
    if member is None:
        return Refused(
            error=UNKNOWN_MEMBER_ID,
            message=f"Member {member_id} is not a member of group {group.group_id}.",
        )
    return _refuse_epoch(groups, member, event) or member


def _replace(
    groups: ConsumerState[G, E],
    group: G,
    holder: ConsumerMember,
    event: E,
    member_id: str,
) -> ConsumerMember | Refused:
    if event.epoch != JOIN:
        return Refused(
            error=FENCED_INSTANCE_ID,
            message=f"Static member {event.member_id} with instance id {event.instance_id} was"
            f" fenced by member {holder.member_id}.",
        )
    if holder.epoch != LEAVE_FOR_A_WHILE and holder.classic is None:
        return Refused(
            error=UNRELEASED_INSTANCE_ID,
            message=f"Static member {event.member_id} with instance id {event.instance_id} cannot"
            f" join the group because the instance id is owned by {holder.member_id} member.",
        )
    if member_id in group.members:
        return Refused(error=INVALID_REQUEST, message=f"{member_id} is another member's id.")
    groups.unpark(holder, FENCED_INSTANCE_ID, "another process joined as this instance")
    group.rename(holder, member_id)
    if group.ticket:  # the running computation has the former member id
        groups.bump(group)
    groups.changed(group)
    return holder


def _refuse_epoch(groups: ConsumerState[G, E], member: ConsumerMember, event: E) -> Refused | None:
    """Return the error of a stale or unknown epoch; None if the epoch is valid.

    The previous epoch is valid too if the member owns only partitions that are assigned to it: the
    response with the current epoch may have been lost.
    """
    if event.epoch == member.epoch:
        return None
    if event.epoch > member.epoch:
        side = "greater"
    elif (
        event.epoch == member.previous_epoch
        and event.owned is not None
        and within(event.owned, member.assigned)
    ):
        return None
    else:
        side = "smaller"
    return Refused(
        error=FENCED_MEMBER_EPOCH,
        message=f"The {groups.name} group member has a {side} member epoch ({event.epoch}) than the"
        f" one known by the group coordinator ({member.epoch}). The member must abandon all its"
        " partitions and rejoin.",
    )


def _beat(
    groups: ConsumerState[G, E],
    group: G,
    member: ConsumerMember,
    event: E,
    token: int,
) -> None:
    groups.unpark(member, COORDINATOR_NOT_AVAILABLE, "a newer heartbeat replaces this one")
    if event.epoch == JOIN and member.epoch == LEAVE_FOR_A_WHILE:
        member.previous_epoch = member.epoch = JOIN
        outdate(member, "current")
        groups.changed(group)
    needs_target = groups.update(group, member, event)
    if needs_target:
        groups.bump(group)
    groups.start_session(group, member)
    beat = Beat(event, member.assigned)
    outdated = group.assignment_epoch < group.epoch
    if outdated and (needs_target or event.epoch == JOIN) and not groups.delays(group):
        groups.park(group, member, token, beat)
    else:
        groups.answer(group, member, beat, token)


def interval_ms(groups: ConsumerState[G, E], group: G, member: ConsumerMember) -> int:
    """Return the heartbeat interval, which is shorter while a member waits for revocations."""
    usual = groups.limits.heartbeat_interval_ms(group.group_id)
    if member.current.state is not MemberState.UNRELEASED_PARTITIONS:
        return usual
    return min(usual, waiting_interval_ms(group))


def waiting_interval_ms(group: ConsumerGroup) -> int:
    """Return the longest heartbeat interval of a member that waits for partitions."""
    return max(WAITING_HEARTBEAT_MS, WAITING_HEARTBEAT_MS_PER_MEMBER * len(group.members))


def step(
    groups: ConsumerState[G, E], group: G, member: ConsumerMember, owned: Partitions | None
) -> None:
    before = member.current
    now = reconcile(
        before,
        target_epoch=group.assignment_epoch,
        target=member.target,
        owned=owned,
        taken=group.taken_from(member),
    )
    if now == before:
        return
    _move(groups, group, member, now)


def _move(groups: ConsumerState[G, E], group: G, member: ConsumerMember, now: Current) -> None:
    group.move(member, now)
    groups.changed(group)
    if now.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
        groups.await_revocation(group, member)
    else:
        groups.turn.timers.stop(member.rebalance_timer)


def _leave(groups: ConsumerState[G, E], event: E, token: int) -> None:
    """Remove a member; a static member that leaves temporarily keeps its partitions instead."""
    turn, group = groups.turn, groups.groups.get(event.group_id)
    if group is None:
        groups.missing(event, token)
        return
    busy = groups.busy(group)
    if busy:
        turn.refuse(token, COORDINATOR_NOT_AVAILABLE, busy)
        return
    member = group.members.get(event.member_id)
    if event.instance_id is not None:
        holder = group.static.get(event.instance_id)
        if holder is not None and holder != event.member_id:
            turn.refuse(
                token,
                FENCED_INSTANCE_ID,
                f"member {holder!r} has instance id {event.instance_id!r}",
            )
            return
        member = None if holder is None else member
    if member is None:
        turn.refuse(
            token,
            UNKNOWN_MEMBER_ID,
            f"{event.member_id!r} is not a member of group {group.group_id!r}",
        )
        return
    if event.epoch == LEAVE:
        groups.expel(group, member)
        groups.regexes.look(group)
    else:
        groups.unpark(member, UNKNOWN_MEMBER_ID, "the member left the group")
        current = Current(
            state=MemberState.STABLE, epoch=LEAVE_FOR_A_WHILE, assigned=member.assigned
        )
        _move(groups, group, member, current)
    groups.saver.answer(
        group, token, HeartbeatResponse(member_id=event.member_id, epoch=event.epoch)
    )
    groups.finish_event(group)
