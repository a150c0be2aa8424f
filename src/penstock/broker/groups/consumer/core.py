"""Core of consumer groups: passes each event to its handler.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, consumer protocol; KIP-848.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.broker.groups.classic import Heartbeat, LeaveGroup, SyncGroup
from penstock.broker.groups.consumer import classic_requests, heartbeat
from penstock.broker.groups.consumer.events import (
    Beat,
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.broker.groups.consumer.state import ConsumerLimits, ConsumerState
from penstock.broker.groups.modern.core import UNKNOWN_MEMBER_ID
from penstock.broker.groups.modern.group import Parked
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


def describe(groups: ConsumerState, event: DescribeGroup, token: int) -> None:
    group = groups.groups[event.group_id]
    response = DescribedConsumerGroup(
        group_id=group.group_id,
        state=group.state.value,
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=group.votes() or groups.limits.assignors[0],
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


def check_commit(groups: ConsumerState, event: CommitCheck, token: int) -> None:
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


def _refuse_commit(
    groups: ConsumerState, group: ConsumerGroup, event: CommitCheck
) -> Refused | None:
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


def check_fetch(groups: ConsumerState, event: FetchCheck, token: int) -> None:
    """Check an offset fetch; a client that names no member is accepted."""
    group = groups.groups[event.group_id]
    refusal = None
    if event.member_id is not None or event.epoch >= 0:
        refusal = _refuse_epoch(group, event.member_id or "", event.epoch)
    groups.turn.reply(token, refusal or Accepted())


class ConsumerGroups(ConsumerState):
    def __init__(self, turn: Turn, limits: ConsumerLimits | None = None) -> None:
        super().__init__(turn, limits)
        self.handlers: Mapping[type, Handler] = {
            ConsumerHeartbeat: partial(heartbeat.heartbeat, self),
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

    def refuse_malformed(self, event: ConsumerHeartbeat) -> Refused | None:
        return heartbeat.refuse_malformed(event, self.limits.assignors)

    def update(
        self, group: ConsumerGroup, member: ConsumerMember, event: ConsumerHeartbeat
    ) -> bool:
        return heartbeat.update(self, group, member, event)

    def answer(self, group: ConsumerGroup, member: ConsumerMember, beat: Beat, token: int) -> None:
        heartbeat.answer(self, group, member, beat, token)

    def resume(self, group: ConsumerGroup, parked: Parked) -> None:
        if isinstance(parked.event, classic_requests.Rejoin):
            classic_requests.resume(self, group, parked)
        else:
            super().resume(group, parked)
