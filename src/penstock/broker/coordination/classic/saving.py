"""Handlers of the outcomes of saves and removals of classic groups.

A group has at most one save under way (`Rebalancer.save`). A save has one or more purposes: to
store the leader's assignment, the return of a static member, or that the group became empty. Once
the save is durable, each purpose is fulfilled if the group still has the same state and generation.
Other purposes are dropped, because a later rebalance saves the group again. If the save fails, the
waiting members get COORDINATOR_NOT_AVAILABLE and join again.

Source: Kafka's `storeGroup` and its callbacks.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from penstock.broker.coordination.classic.group import Group, Member, Purpose, SaveWaiter
from penstock.broker.coordination.classic.rebalance import Rebalancer
from penstock.broker.coordination.classic.responses import Joined, Synced
from penstock.broker.coordination.classic.states import GroupState
from penstock.broker.coordination.core import Refused, Saved, SaveFailed
from penstock.broker.coordination.group_events import COORDINATOR_NOT_AVAILABLE, Accepted

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
    """Handle a save or removal that failed or whose outcome is unknown."""
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
