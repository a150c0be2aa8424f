"""Saving: one save of a group is under way at a time, and what depends on it waits.

A save takes the group as it is when the save starts. What it is for is kept beside it: the
leader's assignment, the return of a static member, or the emptiness of the group. When the save
is durable, each purpose that still holds (same state, same generation) is fulfilled; one that
has been overtaken by another rebalance is dropped, for that rebalance will save again.

When a save fails, the members are told that the coordinator is not available and join again;
when it fails because another coordinator has saved the group, they are told to look for it.

Source: Kafka's `storeGroup` and its callbacks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.groups.effects import Accepted, Joined, Refused, RemoveGroup, SaveGroup, Synced
from penstock.broker.groups.group import Group, Member, Purpose, SaveWaiter
from penstock.broker.groups.limits import GENERATIONS_PER_EPOCH, SAVE_RETRY_MS
from penstock.broker.groups.record import encode_group
from penstock.broker.groups.states import (
    COORDINATOR_NOT_AVAILABLE,
    GroupState,
)

if TYPE_CHECKING:
    from penstock.broker.groups.events import GroupRemoved, GroupSaved, RemoveFailed, SaveFailed
    from penstock.broker.groups.rebalance import Rebalancer

_STATE_OF_PURPOSE: Final = {
    Purpose.ASSIGNMENT: GroupState.COMPLETING_REBALANCE,
    Purpose.REJOIN: GroupState.STABLE,
    Purpose.EMPTINESS: GroupState.EMPTY,
}


class Saver:
    """Starts saves and removals, and goes on when they are done."""

    def __init__(self, rebalancer: Rebalancer) -> None:
        self._rebalancer = rebalancer

    def save(self, group: Group, waiter: SaveWaiter) -> None:
        """Save a group, now or when the save that is under way is done."""
        group.next_waiters.append(waiter)
        self._start(group)

    def remove(self, group: Group) -> None:
        """Remove a group that is Dead, now or when the save that is under way is done."""
        if not group.store_busy:
            group.store_busy = True
            self._rebalancer.effects.append(RemoveGroup(group_id=group.group_id))

    def _start(self, group: Group) -> None:
        if group.store_busy:
            group.next_waiters = [waiter for waiter in group.next_waiters if holds(group, waiter)]
            return
        waiters = [waiter for waiter in group.next_waiters if holds(group, waiter)]
        group.next_waiters = []
        if not waiters:
            return
        self._rebalancer.timers.stop(group.save_timer)
        group.save_waiters = waiters
        group.store_busy = True
        self._rebalancer.effects.append(
            SaveGroup(record=encode_group(group), expected_version=group.version)
        )

    def saved(self, event: GroupSaved) -> None:
        """A save is durable."""
        group = self._rebalancer.groups.get(event.group_id)
        if group is None:
            return
        group.version = event.version
        for waiter in self._finished(group):
            if holds(group, waiter):
                self._fulfil(group, waiter)
        self._go_on(group)

    def failed(self, event: SaveFailed) -> None:
        """A save is not durable, or not known to be."""
        group = self._rebalancer.groups.get(event.group_id)
        if group is None:
            return
        waiters = self._finished(group)
        if event.fenced:
            self._fenced(group, event)
            return
        if event.version is not None:
            group.version = event.version
        for waiter in waiters:
            if holds(group, waiter):
                self._disappoint(group, waiter, event.reason)
        self._go_on(group)

    def _finished(self, group: Group) -> list[SaveWaiter]:
        group.store_busy = False
        waiters, group.save_waiters = group.save_waiters, []
        return waiters

    def _go_on(self, group: Group) -> None:
        if group.state is GroupState.DEAD:
            self.remove(group)
        elif self._rebalancer.groups.get(group.group_id) is group:
            self._start(group)

    def _fulfil(self, group: Group, waiter: SaveWaiter) -> None:
        rebalancer = self._rebalancer
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
            rebalancer.answer_join(group, member, self._rejoined(group, member, waiter))

    def _rejoined(self, group: Group, member: Member, waiter: SaveWaiter) -> Joined:
        """The answer to a static member that returned without a rebalance.

        A leader of an old client is told that its former id leads, so that it does not assign
        (KIP-345); one that knows better gets the members and is told to skip it (KIP-814).
        """
        leads = group.leader == member.member_id
        response = self._rebalancer.joined(group, member, skip_assignment=leads)
        if waiter.skip_assignment_known:
            return response
        return replace(response, leader=waiter.previous_leader, members=(), skip_assignment=False)

    def _disappoint(self, group: Group, waiter: SaveWaiter, reason: str) -> None:
        rebalancer = self._rebalancer
        if waiter.purpose is Purpose.ASSIGNMENT:
            rebalancer.refuse_syncs(group, COORDINATOR_NOT_AVAILABLE)
            rebalancer.rebalance(group)
        elif waiter.purpose is Purpose.REJOIN:
            refused = Refused(error=COORDINATOR_NOT_AVAILABLE, message=reason)
            rebalancer.answer_join(group, group.members[waiter.member_id], refused)
        else:
            group.save_timer.fire = partial(self.save, group, waiter)
            rebalancer.timers.start(group.save_timer, rebalancer.now_ms + SAVE_RETRY_MS)

    def _fenced(self, group: Group, event: SaveFailed) -> None:
        """Another coordinator has saved the group: its members must look for it.

        If this one is asked again, it goes on above the version that the store holds and above
        its own last generation, with no members.
        """
        rebalancer = self._rebalancer
        rebalancer.hand_over(group, event.reason)
        if event.version:
            heir = Group(group.group_id, touched_ms=rebalancer.now_ms)
            heir.version = event.version
            heir.generation = group.generation
            heir.generation_gap = GENERATIONS_PER_EPOCH
            heir.epoch = rebalancer.epoch
            heir.has_offsets = True  # until Prune says otherwise
            rebalancer.groups[group.group_id] = heir

    def removed(self, event: GroupRemoved) -> None:
        """A removal is durable."""
        group = self._rebalancer.groups.get(event.group_id)
        if group is None:
            return
        self._rebalancer.forget(group)
        for token in group.removal_tokens or ():
            self._rebalancer.reply(token, Accepted())

    def remove_failed(self, event: RemoveFailed) -> None:
        """A removal is not durable: the group is as it was."""
        group = self._rebalancer.groups.get(event.group_id)
        if group is None:
            return
        group.store_busy = False
        group.enter(GroupState.EMPTY)
        tokens, group.removal_tokens = group.removal_tokens or [], None
        for token in tokens:
            self._rebalancer.refuse(token, COORDINATOR_NOT_AVAILABLE, event.reason)


def holds(group: Group, waiter: SaveWaiter) -> bool:
    """Whether what a save is for has not been overtaken."""
    if (
        group.state is not _STATE_OF_PURPOSE[waiter.purpose]
        or group.generation != waiter.generation
    ):
        return False
    if waiter.purpose is Purpose.REJOIN:
        member = group.members.get(waiter.member_id)
        return member is not None and member.join_token is not None
    return waiter.purpose is not Purpose.ASSIGNMENT or group.proposed is not None


def synced(group: Group, assignment: bytes) -> Synced:
    """The answer to a SyncGroup in the current generation."""
    return Synced(protocol_type=group.protocol_type, protocol=group.protocol, assignment=assignment)
