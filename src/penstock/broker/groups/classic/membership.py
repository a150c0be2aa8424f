"""Handlers of SyncGroup, Heartbeat and LeaveGroup, and checks of offset commits and fetches.

Source: Kafka's `GroupMetadataManager.classicGroupSync`, `…Heartbeat`, `…Leave` and
`ClassicGroup.validateOffsetCommit`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from penstock.broker.groups.classic.group import Group, Member, Purpose, SaveWaiter
from penstock.broker.groups.classic.rebalance import Rebalancer
from penstock.broker.groups.classic.states import (
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
    Heartbeat,
    Joined,
    LeaveGroup,
    LeavingMember,
    Left,
    LeftMember,
    OnSync,
    Synced,
    SyncGroup,
)
from penstock.broker.groups.runtime.core import Refused, Saved, SaveFailed
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    Accepted,
    CommitCheck,
    FetchCheck,
)

# Handlers of the outcomes of saves and removals of classic groups.
#
# A group has at most one save under way (`Rebalancer.save`). A save has one or more purposes: to
# store the leader's assignment, the return of a static member, or that the group became empty. Once
# the save is durable, each purpose is fulfilled if the group still has the same state and
# generation. Other purposes are dropped, because a later rebalance saves the group again. If the
# save fails, the waiting members get COORDINATOR_NOT_AVAILABLE and join again.
#
# Source: Kafka's `storeGroup` and its callbacks.


SAVE_RETRY_MS: Final = 1_000
"""Pause before the retry of a failed save for which no request waits."""


def saved(rebalancer: Rebalancer, event: Saved, token: int) -> None:
    group = rebalancer.groups.get(event.key)
    if group is None or not group.store_busy:
        return
    if group.removing:
        rebalancer.forget(group)
        for waiting in group.removal_tokens or ():
            rebalancer.reply(waiting, Accepted())
        return
    for waiter in _finished(group):
        if group.is_current(waiter):
            _fulfil(rebalancer, group, waiter)
    _start_next_save(rebalancer, group)


def save_failed(rebalancer: Rebalancer, event: SaveFailed, token: int) -> None:
    """Handle a failed save or removal of a group, or one whose outcome is unknown.

    Waiting requests get COORDINATOR_NOT_AVAILABLE. If an assignment was to be saved, the group
    rebalances again. The save of an empty group is retried later.
    """
    group = rebalancer.groups.get(event.key)
    if group is None or not group.store_busy:
        return
    if group.removing:
        _remove_failed(rebalancer, group, event.reason)
        return
    for waiter in _finished(group):
        if group.is_current(waiter):
            _fail_waiter(rebalancer, group, waiter, event.reason)
    _start_next_save(rebalancer, group)


def _remove_failed(rebalancer: Rebalancer, group: Group, reason: str) -> None:
    group.store_busy = group.removing = False
    group.enter(GroupState.EMPTY)
    tokens, group.removal_tokens = group.removal_tokens or [], None
    for waiting in tokens:
        rebalancer.refuse(waiting, COORDINATOR_NOT_AVAILABLE, reason)


def _finished(group: Group) -> list[SaveWaiter]:
    group.store_busy = False
    waiters, group.save_waiters = group.save_waiters, []
    return waiters


def _start_next_save(rebalancer: Rebalancer, group: Group) -> None:
    if group.state is GroupState.DEAD:
        rebalancer.remove(group)
    elif rebalancer.groups.get(group.group_id) is group:
        rebalancer.start_save(group)


def _fulfil(rebalancer: Rebalancer, group: Group, waiter: SaveWaiter) -> None:
    if waiter.purpose is Purpose.ASSIGNMENT:
        proposed = group.proposed or {}
        group.proposed = None
        group.enter(GroupState.STABLE)
        group.touched_ms = rebalancer.now_ms
        for member in group.members.values():
            member.assignment = proposed.get(member.member_id, b"")
            rebalancer.answer_sync(member, synced(group, member.assignment))
    elif waiter.purpose is Purpose.REJOIN:
        member = group.members[waiter.member_id]
        rebalancer.answer_join(group, member, _rejoined(rebalancer, group, member, waiter))


def _rejoined(rebalancer: Rebalancer, group: Group, member: Member, waiter: SaveWaiter) -> Joined:
    """Return the JoinGroup response to a static member that returned without a rebalance.

    If the member is the leader, it must not assign partitions. A client that can skip the
    assignment gets the members and the flag to skip it (KIP-814). An older client gets its former
    member id as the id of the leader (KIP-345).
    """
    leads = group.leader == member.member_id
    response = rebalancer.joined(group, member, skip_assignment=leads)
    if waiter.skip_assignment_known:
        return response
    return replace(response, leader=waiter.previous_leader, members=(), skip_assignment=False)


def _fail_waiter(rebalancer: Rebalancer, group: Group, waiter: SaveWaiter, reason: str) -> None:
    if waiter.purpose is Purpose.ASSIGNMENT:
        rebalancer.refuse_syncs(group, COORDINATOR_NOT_AVAILABLE)
        rebalancer.rebalance(group)
    elif waiter.purpose is Purpose.REJOIN:
        refused = Refused(error=COORDINATOR_NOT_AVAILABLE, message=reason)
        rebalancer.answer_join(group, group.members[waiter.member_id], refused)
    else:
        group.save_timer.fire = partial(rebalancer.save, group, waiter)
        rebalancer.timers.start(group.save_timer, rebalancer.now_ms + SAVE_RETRY_MS)


def synced(group: Group, assignment: bytes) -> Synced:
    return Synced(protocol_type=group.protocol_type, protocol=group.protocol, assignment=assignment)


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
