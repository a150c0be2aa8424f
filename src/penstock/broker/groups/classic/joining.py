"""Handler of JoinGroup: assigns member ids, admits members, and decides whether to rebalance.

    empty id ──┬── dynamic, version ≥ 4 ──▶ the response contains a new id, which is reserved
               │                            until the member joins with it (KIP-394)
               ├── dynamic, older       ──▶ a new member
               └── static               ──▶ a new member, or it replaces the member
                                            with its instance id (KIP-345)
    other id ──┬── a reserved id        ──▶ a new member
               └── the id of a member   ──▶ joins the rebalance, or gets its last response again

Source: Kafka's `GroupMetadataManager.classicGroupJoin`; KIP-345, KIP-389 (size), KIP-394, KIP-814.
"""

from __future__ import annotations

from penstock.base.errors import BugError
from penstock.broker.groups.classic.group import Group, Member, Purpose, SaveWaiter, protocols_bytes
from penstock.broker.groups.classic.rebalance import (
    RESERVED_ID_DELAY_MS,
    GroupLimits,
    Rebalancer,
)
from penstock.broker.groups.classic.states import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_REQUEST,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    REJOIN,
    UNKNOWN_MEMBER_ID,
    GroupState,
    JoinGroup,
    OnRejoin,
)
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import COORDINATOR_NOT_AVAILABLE


def join(rebalancer: Rebalancer, event: JoinGroup, token: int) -> None:
    refusal = refuse_malformed(rebalancer.limits, event)
    if refusal is not None:
        rebalancer.reply(token, refusal)
        return
    group = rebalancer.groups.get(event.group_id)
    if group is None:
        if event.member_id:
            rebalancer.refuse(token, UNKNOWN_MEMBER_ID, f"there is no group {event.group_id!r}")
            return
        if rebalancer.turn.count() >= rebalancer.limits.groups_max:
            rebalancer.refuse(
                token,
                COORDINATOR_NOT_AVAILABLE,
                f"there are {rebalancer.turn.count()} groups, groups.max ="
                f" {rebalancer.limits.groups_max} allows no more",
            )
            return
        group = rebalancer.groups[event.group_id] = Group(
            event.group_id, touched_ms=rebalancer.now_ms
        )
    refusal = _refuse(rebalancer.limits, group, event)
    if refusal is not None:
        rebalancer.reply(token, refusal)
    elif event.member_id:
        _join_known(rebalancer, group, event, token)
    else:
        _join_unknown(rebalancer, group, event, token)


def refuse_malformed(limits: GroupLimits, event: JoinGroup) -> Refused | None:
    """Return the error of a JoinGroup that is invalid for every group; None if it is valid."""
    if not event.group_id:
        return Refused(error=INVALID_GROUP_ID, message="the group id is empty")
    low, high = limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms
    if not low <= event.session_timeout_ms <= high:
        return Refused(
            error=INVALID_SESSION_TIMEOUT,
            message=f"session timeout {event.session_timeout_ms} ms is not between "
            f"group.min.session.timeout.ms = {low} and group.max.session.timeout.ms = {high}",
        )
    if not event.protocol_type or not event.protocols:
        return Refused(
            error=INCONSISTENT_GROUP_PROTOCOL,
            message="JoinGroup must contain a protocol type and at least one protocol",
        )
    count = len(event.protocols)
    if count > limits.member_protocols_max:
        return Refused(
            error=INVALID_REQUEST,
            message=f"JoinGroup contains {count} protocols, at most"
            f" {limits.member_protocols_max} are allowed",
        )
    size = protocols_bytes(event.protocols)
    if size > limits.member_bytes_max:
        return Refused(
            error=INVALID_REQUEST,
            message=f"JoinGroup contains {size} bytes of subscriptions, at most"
            f" {limits.member_bytes_max} are allowed",
        )
    return None


def _refuse(limits: GroupLimits, group: Group, event: JoinGroup) -> Refused | None:
    if group.state is GroupState.DEAD:
        return Refused(
            error=COORDINATOR_NOT_AVAILABLE, message=f"group {group.group_id!r} is being deleted"
        )
    if not _has_room(limits, group, event):
        return Refused(
            error=GROUP_MAX_SIZE_REACHED,
            message=f"group {group.group_id!r} has {len(group.members)} members, "
            f"group.max.size is {limits.group_max_size}",
        )
    member = group.members.get(event.member_id)
    replaced_bytes = 0 if member is None else member.size_bytes
    size = group.size_bytes - replaced_bytes + protocols_bytes(event.protocols)
    if size > limits.group_bytes_max:
        return Refused(
            error=GROUP_MAX_SIZE_REACHED,
            message=f"group {group.group_id!r} would hold {size} bytes of subscriptions, "
            f"at most {limits.group_bytes_max} are allowed",
        )
    if not group.supports(event.protocol_type, event.protocols):
        return Refused(
            error=INCONSISTENT_GROUP_PROTOCOL,
            message=f"group {group.group_id!r} of type {group.protocol_type!r} has no protocol "
            "in common with this member",
        )
    return None


def _has_room(limits: GroupLimits, group: Group, event: JoinGroup) -> bool:
    """Whether `group_max_size` allows a JoinGroup.

    During a rebalance, only the first `group_max_size` members to join are allowed. At other times
    a JoinGroup of a present member is always allowed.
    """
    most = limits.group_max_size
    if not event.member_id and len(group.pending) >= most:
        return False
    if group.state is GroupState.EMPTY:
        return True
    member = group.members.get(event.member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        parked = member is not None and member.join_token is not None
        return parked or group.joined_count < most
    return member is not None or _replaces(group, event) or len(group.members) < most


def _replaces(group: Group, event: JoinGroup) -> bool:
    return not event.member_id and event.group_instance_id in group.static


def _join_unknown(rebalancer: Rebalancer, group: Group, event: JoinGroup, token: int) -> None:
    instance = event.group_instance_id
    member_id = f"{instance if instance is not None else event.client_id}-{event.fresh_id}"
    if member_id in group.members or member_id in group.pending:
        raise BugError(f"group {group.group_id!r} already has the new member id {member_id!r}")
    if instance is None and event.member_id_required:
        rebalancer.add_pending(group, member_id, event.session_timeout_ms)
        is_new = group.state is GroupState.EMPTY or group.is_gathering
        waits = rebalancer.limits.group_initial_rebalance_delay_ms >= RESERVED_ID_DELAY_MS
        refused = Refused(
            error=MEMBER_ID_REQUIRED,
            message="join again with the member id in this response",
            member_id=member_id,
            delay_ms=RESERVED_ID_DELAY_MS if is_new and not waits else 0,
        )
        rebalancer.reply(token, refused)
    elif instance is not None and instance in group.static:
        _replace_static(rebalancer, group, event, token, member_id)
    else:
        _enter(rebalancer, group, event, token, member_id)


def _enter(
    rebalancer: Rebalancer, group: Group, event: JoinGroup, token: int, member_id: str
) -> None:
    member = Member.of(event, member_id)
    member.is_new = True
    rebalancer.admit(group, member, event.protocol_type)
    rebalancer.park_join(group, member, token)
    if group.is_gathering:
        rebalancer.wait_for_more(group)
    else:
        rebalancer.rebalance(group)


def _join_known(rebalancer: Rebalancer, group: Group, event: JoinGroup, token: int) -> None:
    member_id = event.member_id
    if member_id in group.pending and event.group_instance_id is None:
        rebalancer.drop_pending(group, member_id)
        _enter(rebalancer, group, event, token, member_id)
        return
    error = group.validate(member_id, event.group_instance_id)
    if error:
        rebalancer.refuse(token, error)
        return
    member = group.members[member_id]
    action = REJOIN[group.state]
    if action in (OnRejoin.UNKNOWN, OnRejoin.NOT_AVAILABLE):
        rebalancer.refuse(token, action.value)
    elif _same_again(group, member, event, action):
        rebalancer.reply(token, rebalancer.joined(group, member))
        rebalancer.start_session(member)
    else:
        group.update(member, event)
        rebalancer.park_join(group, member, token)
        rebalancer.rebalance(group)


def _same_again(group: Group, member: Member, event: JoinGroup, action: OnRejoin) -> bool:
    if action is OnRejoin.REBALANCE or member.protocols != event.protocols:
        return False
    return action is OnRejoin.REBALANCE_IF_CHANGED or group.leader != member.member_id


def _replace_static(
    rebalancer: Rebalancer, group: Group, event: JoinGroup, token: int, new_id: str
) -> None:
    """Give a restarted static member a new id; it keeps its instance id and assignment.

    The group does not rebalance if it is stable and its selected protocol does not change.
    """
    old_id = group.static[event.group_instance_id or ""]
    previous_leader = group.leader
    member = group.members[old_id]
    fenced = Refused(
        error=FENCED_INSTANCE_ID,
        message=f"another process joined as instance {event.group_instance_id!r}",
        member_id=old_id,
    )
    rebalancer.answer_join(group, member, fenced)
    rebalancer.answer_sync(member, fenced)
    group.replace_static(old_id, new_id)
    group.update(member, event)
    rebalancer.park_join(group, member, token)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol:
        rebalancer.save(
            group,
            SaveWaiter(
                purpose=Purpose.REJOIN,
                generation=group.generation,
                member_id=new_id,
                previous_leader=previous_leader,
                skip_assignment_known=event.skip_assignment_known,
            ),
        )
    else:
        rebalancer.rebalance(group)
