"""Core of consumer groups: queries, and the part of heartbeats that streams groups do not share.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, consumer protocol; KIP-848.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.broker.groups.classic import Heartbeat, LeaveGroup, SyncGroup
from penstock.broker.groups.consumer import classic_requests
from penstock.broker.groups.consumer.events import (
    UNCHANGED,
    Beat,
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
    E,
)
from penstock.broker.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.broker.groups.consumer.heartbeat import (
    heartbeat,
    interval_ms,
    refuse_malformed,
    step,
)
from penstock.broker.groups.consumer.state import (
    ConsumerLimits,
    Consumers,
    ConsumerState,
    G,
    decode_group,
    encode_group,
)
from penstock.broker.groups.modern.core import JOIN, UNKNOWN_MEMBER_ID, HeartbeatResponse
from penstock.broker.groups.modern.group import NO_TOPICS, Parked, outdate
from penstock.broker.groups.runtime.core import Computed, Refused, Saved, SaveFailed
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    Accepted,
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    FetchCheck,
    Handler,
    OffsetDeleteCheck,
    Turn,
)

# Queries of consumer groups: descriptions, and checks of offset commits and fetches.
#
# Source: Kafka's `ConsumerGroup.asDescribedGroup`, `validateOffsetCommit`, `validateOffsetFetch`.


ILLEGAL_GENERATION: Final = "illegal_generation"
STALE_MEMBER_EPOCH: Final = "stale_member_epoch"
UNSUPPORTED_VERSION: Final = "unsupported_version"


def describe(groups: Consumers, event: DescribeGroup, token: int) -> None:
    group = groups.groups[event.group_id]
    response = DescribedConsumerGroup(
        group_id=group.group_id,
        state=groups.state(group),
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=groups.assignor(group),
        members=tuple(map(described, group.members.values())),
    )
    groups.turn.reply(token, response)


def described(member: ConsumerMember) -> DescribedConsumer:
    return DescribedConsumer(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        rack_id=member.rack_id,
        epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(member.topics)),
        regex=member.regex,
        assigned=member.assigned,
        target=member.target,
        is_classic=member.classic is not None,
    )


def check_commit(groups: ConsumerState[G, E], event: CommitCheck, token: int) -> None:
    """Check an offset commit: its epoch must be the epoch of the member.

    A client that is not a member may commit while the group has no members.
    """
    group = groups.groups[event.group_id]
    refusal = _refuse_commit(groups, group, event)
    if refusal is not None:
        groups.turn.reply(token, refusal)
        return
    group.has_offsets = True
    group.touched_ms = groups.turn.now_ms
    groups.turn.reply(token, Accepted())


def _refuse_commit(groups: ConsumerState[G, E], group: G, event: CommitCheck) -> Refused | None:
    if group.removal_tokens is not None:
        return Refused(error=COORDINATOR_NOT_AVAILABLE, message=groups.busy(group))
    if event.generation < 0 and (
        not group.members or (event.transactional and not event.member_id)
    ):
        return None
    member = group.members.get(event.member_id)
    knows = event.knows_epochs or event.transactional
    if member is not None and member.classic is None and not knows:
        return Refused(
            error=UNSUPPORTED_VERSION,
            message="OffsetCommit version 9 or above must be used by members of consumer groups",
        )
    return _refuse_epoch(group, event.member_id, event.generation)


def _refuse_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> Refused | None:
    member = group.members.get(member_id)
    if member is None:
        return Refused(
            error=UNKNOWN_MEMBER_ID,
            message=f"{member_id!r} is not a member of group {group.group_id!r}",
        )
    if not member.may_commit(epoch):
        return Refused(
            error=STALE_MEMBER_EPOCH if member.classic is None else ILLEGAL_GENERATION,
            message=f"the epoch of member {member_id!r} is {member.epoch}, not {epoch}",
        )
    return None


def check_fetch(groups: ConsumerState[G, E], event: FetchCheck, token: int) -> None:
    """Check an offset fetch; a client that names no member is accepted."""
    group = groups.groups[event.group_id]
    refusal = None
    if event.member_id is not None or event.epoch >= 0:
        refusal = _refuse_epoch(group, event.member_id or "", event.epoch)
    groups.turn.reply(token, refusal or Accepted())


class ConsumerGroups(Consumers):
    def __init__(self, turn: Turn, limits: ConsumerLimits | None = None) -> None:
        super().__init__(turn, limits)
        self.handlers: Mapping[type, Handler] = {
            ConsumerHeartbeat: partial(heartbeat, self),
            SyncGroup: partial(classic_requests.sync, self),
            Heartbeat: partial(classic_requests.heartbeat, self),
            LeaveGroup: partial(classic_requests.leave, self),
            DescribeGroup: partial(describe, self),
            CommitCheck: partial(check_commit, self),
            FetchCheck: partial(check_fetch, self),
            DeleteGroup: self.delete,
            OffsetDeleteCheck: self.check_offset_delete,
            Computed: self.computed,
            Saved: self.saved,
            SaveFailed: self.save_failed,
        }

    def new_group(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, touched_ms=self.turn.now_ms)

    def new_member(self, member_id: str) -> ConsumerMember:
        return ConsumerMember(member_id)

    def encode(self, group: ConsumerGroup) -> Mapping[str, bytes]:
        return encode_group(group)

    def decode(self, group_id: str, rows: Mapping[str, bytes]) -> tuple[ConsumerGroup, str]:
        return decode_group(group_id, rows)

    def state(self, group: ConsumerGroup) -> str:
        return group.state.value

    def assignor(self, group: ConsumerGroup) -> str:
        return group.votes() or self.limits.assignors[0]

    def refuse_malformed(self, event: ConsumerHeartbeat) -> Refused | None:
        return refuse_malformed(event, self.limits.assignors)

    def update(
        self, group: ConsumerGroup, member: ConsumerMember, event: ConsumerHeartbeat
    ) -> bool:
        known = (
            member.rack_id, member.rebalance_timeout_ms, member.assignor, member.client_id,
            member.client_host, member.topics, member.regex, member.classic,
        )  # fmt: skip
        if event.rack_id is not None:
            member.rack_id = event.rack_id
        if event.rebalance_timeout_ms != UNCHANGED:
            member.rebalance_timeout_ms = event.rebalance_timeout_ms
        if event.assignor is not None:
            member.assignor = event.assignor
        member.client_id, member.client_host = event.client_id, event.client_host
        member.classic = None
        joins = event.epoch == JOIN  # a join always contains the full subscription
        topics = (NO_TOPICS if joins else member.topics) if event.topics is None else event.topics
        regex = ("" if joins else member.regex) if event.regex is None else event.regex
        if regex and event.visible is not None:
            self.regexes.seen_by(group, event.visible)
        differs = group.subscribe(member, topics, regex)
        if differs:
            self.regexes.look(group)
        now = (
            member.rack_id, member.rebalance_timeout_ms, member.assignor, member.client_id,
            member.client_host, member.topics, member.regex, member.classic,
        )  # fmt: skip
        if now != known or not member.rows:
            outdate(member, "member")
            self.changed(group)
        return differs or group.epoch == 0

    def answer(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        beat: Beat[ConsumerHeartbeat],
        token: int,
    ) -> None:
        event = beat.event
        step(self, group, member, event.owned)
        changed = event.epoch == JOIN or event.is_full or member.assigned != beat.before
        self.saver.answer(
            group,
            token,
            HeartbeatResponse(
                member_id=member.member_id,
                epoch=member.epoch,
                heartbeat_interval_ms=interval_ms(self, group, member),
                assigned=member.assigned if changed else None,
            ),
        )

    def resume(self, group: ConsumerGroup, parked: Parked) -> None:
        if isinstance(parked.event, classic_requests.Rejoin):
            classic_requests.resume(self, group, parked)
        else:
            super().resume(group, parked)
