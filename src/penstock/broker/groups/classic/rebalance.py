"""Rebalance of classic groups: from the first JoinGroup to the next generation.

`Rebalancer` holds the groups. Its methods are the steps of a rebalance; the handlers of requests
(`joining`, `membership`) and timers call them:

    prepare ──▶ (initial delay | everyone joined | rebalance timeout) ──▶ complete_join
        ▲                                                                     │
        └── a member joins, changes, leaves, expires, does not sync ◀─────────┘

Source: Kafka's `GroupMetadataManager`; KIP-134 (initial delay), KIP-345 (static members).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Struct

from penstock.broker.groups.classic.group import (
    GENERATIONS_PER_EPOCH,
    Group,
    Member,
    Purpose,
    SaveWaiter,
    encode_group,
)
from penstock.broker.groups.classic.states import (
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    GroupState,
    Joined,
    Response,
)
from penstock.broker.groups.runtime.core import Refused, Save, Timer
from penstock.broker.groups.runtime.kinds import NOT_COORDINATOR, Turn

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Session timeout of a new member while its JoinGroup waits for a response; Kafka's value.

The member cannot send heartbeats yet. Without this timeout, members of disconnected clients would
never be removed.
"""

ARRIVALS_PAUSE_MS: Final = 100
"""Time without a new member after which a burst of members of a new group counts as over."""
RESERVED_ID_DELAY_MS: Final = 20
"""Delay of the response that reserves an id for a member of a new group without initial delay.

If members start together, others have then reserved ids, too, and the group waits for them. A
member that begins alone learns of the others with its next heartbeat, up to 3 s later.
"""


class GroupLimits(Struct, frozen=True, kw_only=True):
    """Limits of classic groups: counts, bytes, and times in milliseconds."""

    groups_max: int = 100_000
    group_max_size: int = 10_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    member_protocols_max: int = 64
    member_bytes_max: int = 4 << 20
    group_bytes_max: int = 32 << 20


class Rebalancer:
    """Classic groups of this broker, with the steps of their rebalances."""

    def __init__(self, turn: Turn, limits: GroupLimits, *, epoch: int) -> None:
        self.turn = turn
        self.limits = limits
        self.epoch = epoch
        self.groups: dict[str, Group] = {}
        self.timers = turn.timers
        self.reply = turn.reply
        self.refuse = turn.refuse

    @property
    def now_ms(self) -> int:
        return self.turn.now_ms

    # -- answers ----------------------------------------------------------------------------

    def answer_join(self, group: Group, member: Member, response: Response) -> None:
        """Answer the member's waiting JoinGroup, if there is one, and restart its session."""
        token = group.take_join(member)
        if token is not None:
            self.reply(token, response)
        self.start_session(member)

    def answer_sync(self, member: Member, response: Response) -> None:
        token = member.sync_token
        if token is not None:
            member.sync_token = None
            self.reply(token, response)
        self.start_session(member)

    def park_join(self, group: Group, member: Member, token: int) -> None:
        """Hold a JoinGroup until the rebalance completes, and stop its member's session timer.

        The timer of a new member is set to `NEW_MEMBER_JOIN_TIMEOUT_MS` instead.
        """
        replaced = group.park_join(member, token)
        if replaced is not None:
            self.refuse(replaced, REBALANCE_IN_PROGRESS, "a newer JoinGroup replaces this one")
        if not member.is_new:
            self.timers.stop(member.timer)
        elif replaced is None:
            self.timers.start(member.timer, self.now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)

    def park_sync(self, member: Member, token: int) -> None:
        if member.sync_token is not None:
            self.refuse(
                member.sync_token, REBALANCE_IN_PROGRESS, "a newer SyncGroup replaces this one"
            )
        member.sync_token = token
        self.timers.stop(member.timer)

    # -- sessions ---------------------------------------------------------------------------

    def start_session(self, member: Member) -> None:
        if not member.waits:
            self.timers.start(member.timer, self.now_ms + member.session_timeout_ms)

    def admit(self, group: Group, member: Member, protocol_type: str) -> None:
        group.add(member, protocol_type)
        self.watch(group, member)

    def watch(self, group: Group, member: Member) -> None:
        member.timer.fire = partial(self._expire_member, group, member)

    def _expire_member(self, group: Group, member: Member) -> None:
        if group.members.get(member.member_id) is not member:
            return
        self.drop(group, member)
        self.members_left(group)

    def drop(self, group: Group, member: Member) -> None:
        self.timers.stop(member.timer)
        join_token, sync_token = member.join_token, member.sync_token
        group.remove(member.member_id)
        for token in (join_token, sync_token):
            if token is not None:
                self.refuse(token, UNKNOWN_MEMBER_ID, "the member left the group or expired")
        member.join_token = member.sync_token = None

    def members_left(self, group: Group) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group)
        else:
            self.complete_if_all_joined(group)

    def add_pending(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Reserve a new member id until its member joins with it, or `timeout_ms` have passed."""
        timer = group.pending[member_id] = Timer(partial(self._expire_pending, group, member_id))
        self.timers.start(timer, self.now_ms + timeout_ms)
        if group.is_gathering:
            self.wait_for_more(group)

    def drop_pending(self, group: Group, member_id: str) -> None:
        self.timers.stop(group.pending.pop(member_id))

    def _expire_pending(self, group: Group, member_id: str) -> None:
        if group.pending.pop(member_id, None) is not None:
            self.complete_if_all_joined(group)
            self.forget_if_unused(group)

    # -- the rebalance ----------------------------------------------------------------------

    def rebalance(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group)
        else:
            self.prepare(group)

    def prepare(self, group: Group) -> None:
        """Begin a rebalance: wait until all members have rejoined.

        A group that was empty waits until no member has arrived for
        `group.initial.rebalance.delay.ms` instead, at most for the rebalance timeout.
        """
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.refuse_syncs(group, REBALANCE_IN_PROGRESS)
        self.timers.stop(group.sync_timer)
        group.pending_sync.clear()
        is_initial = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE)
        if not is_initial:
            self._complete_or_wait(group)
            return
        delay_ms = self.limits.group_initial_rebalance_delay_ms
        group.initial_until_ms = self.now_ms + max(group.rebalance_timeout_ms, delay_ms)
        self.wait_for_more(group)

    def wait_for_more(self, group: Group) -> None:
        """Wait for more members of a group that was empty, from the newest arrival on.

        Without a delay, a member that is alone begins at once. If others are arriving, the wait
        ends when none has arrived for `ARRIVALS_PAUSE_MS`.
        """
        delay_ms = self.limits.group_initial_rebalance_delay_ms
        if group.pending or len(group.members) > 1:
            delay_ms = max(delay_ms, ARRIVALS_PAUSE_MS)
        if delay_ms == 0:
            self.complete_join(group)
        else:
            self._complete_at(group, min(self.now_ms + delay_ms, group.initial_until_ms))

    def _complete_or_wait(self, group: Group) -> None:
        if group.all_joined:
            self.complete_join(group)
        elif group.join_timer.deadline_ms is None:
            self._complete_at(group, self.now_ms + group.rebalance_timeout_ms)

    def _complete_at(self, group: Group, at_ms: int) -> None:
        group.join_timer.fire = partial(self.complete_join, group)
        self.timers.start(group.join_timer, at_ms)

    def complete_if_all_joined(self, group: Group) -> None:
        """Complete the join if all members have joined, except during the initial delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.all_joined
            and not (group.is_gathering and group.members)
        ):
            self.complete_join(group)

    def complete_join(self, group: Group) -> None:
        """Begin the next generation with the members that joined; remove other dynamic members.

        Static members remain until their session expires, because they may be restarting.
        """
        self.timers.stop(group.join_timer)
        for member in group.not_rejoined():
            if member.group_instance_id is None:
                self.drop(group, member)
        if group.members and not group.elect_joined_leader():
            self._complete_at(group, self.now_ms + group.rebalance_timeout_ms)
            return
        group.begin_generation(self.epoch)
        group.touched_ms = self.now_ms
        if group.state is GroupState.EMPTY:
            self.save_emptiness(group)
            self.forget_if_unused(group)
            return
        for member in list(group.members.values()):
            group.pending_sync[member.member_id] = None
            member.is_new = False
            self.answer_join(group, member, self.joined(group, member))
        group.sync_timer.fire = partial(self._expire_sync, group, group.generation)
        self.timers.start(group.sync_timer, self.now_ms + group.rebalance_timeout_ms)

    def joined(self, group: Group, member: Member, *, skip_assignment: bool = False) -> Joined:
        leads = group.leader == member.member_id
        return Joined(
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader,
            member_id=member.member_id,
            members=group.member_list() if leads else (),
            skip_assignment=skip_assignment,
        )

    def refuse_syncs(self, group: Group, error: str) -> None:
        group.proposed = None
        for member in group.members.values():
            member.assignment = b""
            if member.sync_token is not None:
                self.answer_sync(member, Refused(error=error))

    def _expire_sync(self, group: Group, generation: int) -> None:
        if group.generation != generation or not group.pending_sync:
            return
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        for member_id in list(group.pending_sync):
            self.drop(group, group.members[member_id])
        self.prepare(group)

    # -- saves ------------------------------------------------------------------------------

    def save(self, group: Group, waiter: SaveWaiter) -> None:
        group.next_waiters.append(waiter)
        self.start_save(group)

    def start_save(self, group: Group) -> None:
        """Save a group if a requested save is still needed, and no other save is under way."""
        waiters = [waiter for waiter in group.next_waiters if group.is_current(waiter)]
        if group.store_busy:
            group.next_waiters = waiters
            return
        group.next_waiters = []
        if not waiters:
            return
        self.timers.stop(group.save_timer)
        group.save_waiters = waiters
        group.store_busy = True
        self.turn.effects.append(Save(key=group.group_id, rows=encode_group(group)))

    def remove(self, group: Group) -> None:
        if not group.store_busy:
            group.store_busy = group.removing = True
            self.turn.effects.append(Save(key=group.group_id, rows={}, deletes_offsets=True))

    def save_emptiness(self, group: Group) -> None:
        """Save that a group has no members any more. No request waits for this save."""
        self.save(group, SaveWaiter(purpose=Purpose.EMPTINESS, generation=group.generation))

    def forget_if_unused(self, group: Group) -> None:
        """Drop a group that was created for a JoinGroup and never had a generation or offsets."""
        if (
            group.state is GroupState.EMPTY
            and not group.pending
            and group.generation == 0
            and not group.has_offsets
            and not group.store_busy
        ):
            self.forget(group)

    def take_over(self, group: Group, *, handed_out: int) -> None:
        """Add a group loaded from its stored rows, and restart the sessions of its members.

        `handed_out` is the last generation that this broker sent to members when it coordinated the
        group earlier, 0 if it did not. The next generation is higher, so that no number is reused.
        """
        gap = handed_out + GENERATIONS_PER_EPOCH - group.generation
        if handed_out:
            group.generation_gap = max(group.generation_gap, gap)
        self.groups[group.group_id] = group
        for member in group.members.values():
            self.watch(group, member)
            self.start_session(member)
        if len(group.members) > self.limits.group_max_size:
            self.prepare(group)

    def hand_over(self, group: Group, reason: str) -> None:
        """Drop a group that another broker coordinates, and refuse its waiting requests."""
        for token in group.removal_tokens or ():
            self.refuse(token, NOT_COORDINATOR, reason)
        self.release(group, NOT_COORDINATOR, reason)

    def release(self, group: Group, error: str, reason: str) -> None:
        """Drop a group, and refuse the waiting requests of its members."""
        for member in group.members.values():
            for token in (member.join_token, member.sync_token):
                if token is not None:
                    self.refuse(token, error, reason)
        self.forget(group)

    def adopt(self, group: Group) -> None:
        """Add a group that was a consumer group, and rebalance it if it has members.

        Its next generation is above all generations that were used before.
        """
        group.generation_gap += GENERATIONS_PER_EPOCH * (self.epoch + 1)
        group.epoch = self.epoch
        if group.members:
            group.protocol = group.select_protocol()
            group.state = GroupState.STABLE
        self.take_over(group, handed_out=0)
        if group.state is GroupState.STABLE:
            self.prepare(group)

    def forget(self, group: Group) -> None:
        for timer in (group.join_timer, group.sync_timer, group.save_timer):
            self.timers.stop(timer)
        for timer in group.pending.values():
            self.timers.stop(timer)
        for member in group.members.values():
            self.timers.stop(member.timer)
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
