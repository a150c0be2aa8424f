"""Conversion of groups between the classic and the consumer protocol, even while they have members.

    classic group          a member joins with the consumer protocol          ──▶ consumer group
    consumer group         its last member with the consumer protocol leaves  ──▶ classic group
    empty consumer group   a member joins with the classic protocol           ──▶ classic group

`group.consumer.migration.policy` limits conversions of groups with members. Members keep their
assignment and their protocol; requests that wait for a rebalance get REBALANCE_IN_PROGRESS. A group
is converted only while it has no save under way: the outcome of a save must be reported to the kind
of group that started it.

Source: Kafka's `GroupMetadataManager.convertToConsumerGroup`, `convertToClassicGroup`; KIP-848.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.coordination.assignors import fewer
from penstock.broker.coordination.classic import ClassicGroups, JoinGroup
from penstock.broker.coordination.classic.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from penstock.broker.coordination.classic.joining import refuse_malformed
from penstock.broker.coordination.classic.states import REBALANCE_IN_PROGRESS, GroupState
from penstock.broker.coordination.consumer import (
    ConsumerGroups,
    ConsumerHeartbeat,
    classic_requests,
)
from penstock.broker.coordination.consumer.classic_member import ClassicSide
from penstock.broker.coordination.consumer.group import ConsumerGroup, ConsumerMember
from penstock.broker.coordination.consumer.heartbeat import refuse_malformed as refuse_heartbeat
from penstock.broker.coordination.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from penstock.broker.coordination.group_events import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
)
from penstock.broker.coordination.modern.events import JOIN, HeartbeatResponse
from penstock.broker.coordination.turn import Turn

BUSY: Final = "the group can be converted once its current save is durable"


class Conversion:
    def __init__(self, turn: Turn, classic: ClassicGroups, consumer: ConsumerGroups) -> None:
        self._turn = turn
        self._classic = classic
        self._consumer = consumer
        classic.foreign[ConsumerHeartbeat] = self.heartbeat_to_classic
        consumer.foreign[JoinGroup] = self.join_to_consumer
        consumer.may_be_classic = self.downgrade

    # -- to a consumer group ----------------------------------------------------------------

    def heartbeat_to_classic(self, event: ConsumerHeartbeat, token: int) -> None:
        """Handle a ConsumerGroupHeartbeat to a classic group, which is converted if allowed."""
        group = self._classic.group(event.group_id)
        refusal = refuse_heartbeat(event, self._consumer.limits.assignors)
        if refusal is not None:
            self._turn.reply(token, refusal)
            return
        why = self._not_upgraded(group, event)
        if why:
            self._turn.refuse(
                token, GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group: {why}"
            )
        elif group.store_busy:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, BUSY)
        else:
            try:
                made = self._consumer_group(group)
            except ValueError as error:
                self._turn.refuse(token, GROUP_ID_NOT_FOUND, str(error))
                return
            self._classic.release(group)
            self._take(made)
            self._consumer.handlers[ConsumerHeartbeat](event, token)

    def _not_upgraded(self, group: Group, event: ConsumerHeartbeat) -> str:
        if event.epoch != JOIN:
            return "it is classic"
        if group.state is GroupState.DEAD:
            return "it is being deleted"
        if not group.members and not group.pending:
            return ""
        if not self._consumer.limits.migration.upgrades:
            return "group.consumer.migration.policy allows no upgrade"
        if group.members and not group.is_consumer:
            return f"its protocol type is {group.protocol_type!r}"
        if len(group.members) >= self._consumer.limits.max_size:
            limit = self._consumer.limits.max_size
            return f"it has {len(group.members)} members, group.consumer.max.size is {limit}"
        return ""

    def _consumer_group(self, group: Group) -> ConsumerGroup:
        made = ConsumerGroup(group.group_id, touched_ms=self._turn.now_ms)
        made.assignment_epoch = group.generation
        made.epoch = group.generation + group.generation_gap - 1
        made.has_offsets = group.has_offsets
        for member in group.members.values():
            made.add(self._consumer_member(group, made, member))
        return made

    def _consumer_member(self, group: Group, made: ConsumerGroup, member: Member) -> ConsumerMember:
        protocols = sorted(member.protocols, key=lambda protocol: protocol.name != group.protocol)
        subscription = decode_subscription(protocols[0].metadata)
        assigned = decode_assignment(member.assignment)
        read = classic_requests.by_id(assigned, self._consumer.topics)
        found = ConsumerMember(member.member_id)
        found.instance_id, found.rack_id = member.group_instance_id, subscription.rack_id
        found.client_id, found.client_host = member.client_id, member.client_host
        found.topics = subscription.topics
        found.rebalance_timeout_ms = member.rebalance_timeout_ms
        found.epoch = found.previous_epoch = group.generation
        found.assigned = found.target = fewer(read, made.taken(read))
        found.classic = ClassicSide(
            session_timeout_ms=member.session_timeout_ms, protocols=tuple(protocols)
        )
        return found

    def _take(self, group: ConsumerGroup) -> None:
        consumer = self._consumer
        consumer.groups[group.group_id] = group
        for member in group.members.values():
            consumer.watch(group, member)
        consumer.changed(group)

    # -- to a classic group -----------------------------------------------------------------

    def join_to_consumer(self, event: JoinGroup, token: int) -> None:
        """Handle a JoinGroup to a consumer group: convert the group if it is empty."""
        group = self._consumer.groups[event.group_id]
        refusal = refuse_malformed(self._classic.limits, event)
        if refusal is not None:
            self._turn.reply(token, refusal)
        elif group.members:
            classic_requests.join(self._consumer, event, token)
        elif group.saving is not None:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, BUSY)
        else:
            self._consumer.forget(group)
            self._classic.adopt(self._classic_group(group))
            self._classic.handlers[JoinGroup](event, token)

    def _classic_group(self, group: ConsumerGroup) -> Group:
        made = Group(group.group_id, touched_ms=self._turn.now_ms)
        epochs = [member.epoch for member in group.members.values()]
        made.generation = max(epochs, default=group.epoch)
        made.generation_gap += group.epoch - made.generation
        made.has_offsets = group.has_offsets
        for member in group.members.values():
            made.add(self._classic_member(member), CONSUMER_PROTOCOL_TYPE)
        return made

    def downgrade(self, group: ConsumerGroup) -> bool:
        """Convert a consumer group to a classic group if all members use the classic protocol.

        Returns whether the group was converted.
        """
        members = group.members.values()
        if not members or not self._consumer.limits.migration.downgrades:
            return False
        if len(members) > self._classic.limits.group_max_size or group.saving is not None:
            return False
        if any(member.classic is None for member in members):
            return False
        for pending in group.pending_responses:
            if isinstance(pending.response, HeartbeatResponse):  # its member has left already
                self._turn.reply(pending.token, pending.response)
            else:
                self._turn.refuse(pending.token, REBALANCE_IN_PROGRESS)
        for member in members:
            self._consumer.unpark(
                member, REBALANCE_IN_PROGRESS, "the group was converted to classic"
            )
        made = self._classic_group(group)
        self._consumer.forget(group)
        self._classic.adopt(made)
        return True

    def _classic_member(self, member: ConsumerMember) -> Member:
        side = member.classic
        if side is None:
            raise ValueError(f"member {member.member_id!r} does not use the classic protocol")
        version = decode_subscription(side.protocols[0].metadata).version
        assigned = classic_requests.by_name(member.assigned, self._consumer.topics)
        return Member(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=side.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=side.protocols,
            assignment=encode_assignment(assigned, version),
        )
