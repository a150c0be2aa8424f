"""Handlers of SyncGroup, Heartbeat and LeaveGroup, and checks of offset commits and fetches.

Source: Kafka's `GroupMetadataManager.classicGroupSync`, `…Heartbeat`, `…Leave` and
`ClassicGroup.validateOffsetCommit`.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.coordination.classic.events import (
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from penstock.broker.coordination.classic.group import Group, Purpose, SaveWaiter
from penstock.broker.coordination.classic.rebalance import Rebalancer
from penstock.broker.coordination.classic.responses import Left, LeftMember
from penstock.broker.coordination.classic.saving import synced
from penstock.broker.coordination.classic.states import (
    COMMIT_ERRORS,
    HEARTBEAT_ERRORS,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_REQUEST,
    NONE,
    SYNC,
    UNKNOWN_MEMBER_ID,
    GroupState,
    OnSync,
)
from penstock.broker.coordination.group_events import (
    COORDINATOR_NOT_AVAILABLE,
    Accepted,
    CommitCheck,
    FetchCheck,
)

ACCEPTED: Final = Accepted()


def sync(rebalancer: Rebalancer, event: SyncGroup, token: int) -> None:
    """Handle a SyncGroup. The leader's assignment is saved before any member receives its part."""
    group = rebalancer.groups.get(event.group_id)
    error = _refuse(group, event.group_id, event.member_id, event.group_instance_id)
    if group is None or error:
        rebalancer.refuse(token, error)
        return
    if event.generation != group.generation:
        rebalancer.refuse(token, ILLEGAL_GENERATION, _generation(group, event.generation))
        return
    if _differs(event.protocol_type, group.protocol_type) or _differs(
        event.protocol, group.protocol
    ):
        rebalancer.refuse(
            token,
            INCONSISTENT_GROUP_PROTOCOL,
            f"group {group.group_id!r} uses protocol {group.protocol!r} of type "
            f"{group.protocol_type!r}",
        )
        return
    action = SYNC[group.state]
    if action is OnSync.WAIT:
        _wait_for_assignment(rebalancer, group, event, token)
    elif action is OnSync.ANSWER:
        member = group.members[event.member_id]
        group.pending_sync.pop(event.member_id, None)
        rebalancer.reply(token, synced(group, member.assignment))
        rebalancer.start_session(member)
    else:
        rebalancer.refuse(token, action.value)


def _differs(given: str | None, chosen: str) -> bool:
    return given is not None and given != chosen


def _wait_for_assignment(
    rebalancer: Rebalancer, group: Group, event: SyncGroup, token: int
) -> None:
    leads = event.member_id == group.leader
    if leads:
        size = sum(len(given.assignment) for given in event.assignments)
        if size > rebalancer.limits.group_bytes_max:
            rebalancer.refuse(
                token,
                INVALID_REQUEST,
                f"SyncGroup contains {size} bytes of assignments, at most"
                f" {rebalancer.limits.group_bytes_max} are allowed",
            )
            return
    rebalancer.park_sync(group.members[event.member_id], token)
    group.pending_sync.pop(event.member_id, None)
    if leads and group.proposed is None:
        group.proposed = {given.member_id: given.assignment for given in event.assignments}
        rebalancer.save(group, SaveWaiter(purpose=Purpose.ASSIGNMENT, generation=group.generation))


def heartbeat(rebalancer: Rebalancer, event: Heartbeat, token: int) -> None:
    group = rebalancer.groups.get(event.group_id)
    error = _refuse(group, event.group_id, event.member_id, event.group_instance_id)
    if group is None or error:
        rebalancer.refuse(token, error)
        return
    if event.generation != group.generation:
        rebalancer.refuse(token, ILLEGAL_GENERATION, _generation(group, event.generation))
        return
    rebalancer.start_session(group.members[event.member_id])
    error = HEARTBEAT_ERRORS[group.state]
    if error:
        rebalancer.refuse(token, error)
    else:
        rebalancer.reply(token, ACCEPTED)


def _refuse(
    group: Group | None, group_id: str, member_id: str, group_instance_id: str | None
) -> str:
    if not group_id:
        return INVALID_GROUP_ID
    if group is None:
        return UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return COORDINATOR_NOT_AVAILABLE
    return group.validate(member_id, group_instance_id)


def _generation(group: Group, given: int) -> str:
    return f"group {group.group_id!r} is in generation {group.generation}, not {given}"


def leave(rebalancer: Rebalancer, event: LeaveGroup, token: int) -> None:
    """Remove the members that a LeaveGroup names; then rebalance once if any was removed."""
    group = rebalancer.groups.get(event.group_id)
    if not event.group_id:
        rebalancer.refuse(token, INVALID_GROUP_ID, "the group id is empty")
        return
    if group is not None and group.state is GroupState.DEAD:
        rebalancer.refuse(token, COORDINATOR_NOT_AVAILABLE)
        return
    count = len(event.members)
    if count > 2 * rebalancer.limits.group_max_size:
        rebalancer.refuse(
            token,
            INVALID_REQUEST,
            f"LeaveGroup names {count} members, at most twice group.max.size ="
            f" {rebalancer.limits.group_max_size} are allowed",
        )
        return
    members_before = 0 if group is None else len(group.members)
    left = tuple(
        LeftMember(
            member_id=leaving.member_id,
            group_instance_id=leaving.group_instance_id,
            error=UNKNOWN_MEMBER_ID if group is None else _leave(rebalancer, group, leaving),
        )
        for leaving in event.members
    )
    rebalancer.reply(token, Left(members=left))
    if group is None:
        return
    if len(group.members) < members_before:
        rebalancer.members_left(group)
    else:  # only reserved member ids were dropped, if any
        rebalancer.complete_if_all_joined(group)
        rebalancer.forget_if_unused(group)


def _leave(rebalancer: Rebalancer, group: Group, leaving: LeavingMember) -> str:
    member_id, instance = leaving.member_id, leaving.group_instance_id
    if not member_id:
        owner = group.static.get(instance) if instance is not None else None
        if owner is None:
            return UNKNOWN_MEMBER_ID
        member_id = owner
    elif member_id in group.pending and instance is None:
        rebalancer.drop_pending(group, member_id)
        return NONE
    else:
        error = group.validate(member_id, instance)
        if error:
            return error
    rebalancer.drop(group, group.members[member_id])
    return NONE


def check_commit(rebalancer: Rebalancer, event: CommitCheck, token: int) -> None:
    """Check an offset commit. Outside of a transaction it also restarts the member's session.

    As in Kafka, an empty group id is allowed; that group has no members.
    """
    group = rebalancer.groups.get(event.group_id)
    if group is None:
        _commit_to_new(rebalancer, event, token)
        return
    error = commit_error(group, event)
    if error:
        message = _generation(group, event.generation) if error == ILLEGAL_GENERATION else ""
        rebalancer.refuse(token, error, message)
        return
    group.has_offsets = True
    group.touched_ms = rebalancer.now_ms
    member = group.members.get(event.member_id)
    if member is not None and not event.transactional:
        rebalancer.start_session(member)
    rebalancer.reply(token, ACCEPTED)


def _commit_to_new(rebalancer: Rebalancer, event: CommitCheck, token: int) -> None:
    if event.generation >= 0:
        rebalancer.refuse(token, ILLEGAL_GENERATION, f"there is no group {event.group_id!r}")
        return
    if rebalancer.turn.count() >= rebalancer.limits.groups_max:
        rebalancer.refuse(
            token,
            COORDINATOR_NOT_AVAILABLE,
            f"there are {rebalancer.turn.count()} groups, groups.max ="
            f" {rebalancer.limits.groups_max} allows no more",
        )
        return
    group = Group(event.group_id, touched_ms=rebalancer.now_ms)
    group.has_offsets = True
    rebalancer.groups[event.group_id] = group
    rebalancer.reply(token, ACCEPTED)


def check_fetch(rebalancer: Rebalancer, event: FetchCheck, token: int) -> None:
    """Accept an offset fetch, unless it has a member epoch and its group does not exist."""
    if event.group_id not in rebalancer.groups and event.epoch >= 0:
        rebalancer.refuse(token, UNKNOWN_MEMBER_ID, f"there is no group {event.group_id!r}")
    else:
        rebalancer.reply(token, ACCEPTED)


def commit_error(group: Group, event: CommitCheck) -> str:
    """Return the error name of an offset commit; empty if the commit is accepted.

    A client without a generation may commit while the group has no members.
    """
    if group.state is GroupState.DEAD:
        return COORDINATOR_NOT_AVAILABLE
    if event.generation < 0 and group.state is GroupState.EMPTY:
        return NONE
    if event.generation >= 0 or event.member_id or event.group_instance_id is not None:
        error = group.validate(event.member_id, event.group_instance_id)
        if error:
            return error
        if event.generation != group.generation:
            return ILLEGAL_GENERATION
    elif not event.transactional:
        return UNKNOWN_MEMBER_ID
    return NONE if event.transactional else COMMIT_ERRORS[group.state]
