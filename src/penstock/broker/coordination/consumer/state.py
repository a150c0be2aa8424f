"""Consumer groups of this broker: their rows, timers and regular expressions.

Source: Kafka's `GroupMetadataManager`, consumer protocol; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import ClassVar

from msgspec import Struct

from penstock.broker.coordination.consumer.group import ConsumerGroup, ConsumerMember
from penstock.broker.coordination.consumer.reconciliation import MemberState
from penstock.broker.coordination.consumer.record import KIND, decode_group, encode_group
from penstock.broker.coordination.consumer.regexes import Regexes
from penstock.broker.coordination.core import Computed
from penstock.broker.coordination.modern.core import ModernGroups
from penstock.broker.coordination.modern.topics import NewTopics
from penstock.broker.coordination.turn import Turn
from penstock.broker.group_configs import GroupConfigs


class MigrationPolicy(Enum):
    """Allowed conversions of groups with members: to consumer (upgrade), to classic (downgrade)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class ConsumerLimits(Struct, frozen=True, kw_only=True):
    """Limits of consumer groups; times in ms. `configs` returns the settings of a single group."""

    groups_max: int = 100_000
    max_size: int = 2_147_483_647
    session_timeout: int = 45_000
    heartbeat_interval: int = 5_000
    assignment_interval: int = 1_000
    assignors: tuple[str, ...] = ("uniform", "range")
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    regex_refresh_ms: int = 600_000
    configs: Callable[[str], GroupConfigs] | None = None

    def session_timeout_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.session_timeout
        return self.configs(group_id).consumer_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.heartbeat_interval
        return self.configs(group_id).consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.assignment_interval
        return self.configs(group_id).consumer_assignment_interval_ms


class ConsumerState(ModernGroups[ConsumerGroup, ConsumerMember]):
    """Base of `ConsumerGroups`: everything except the handlers of requests."""

    name: ClassVar[str] = KIND
    protocol_type: ClassVar[str] = "consumer"

    def __init__(self, turn: Turn, limits: ConsumerLimits | None = None) -> None:
        self.limits: ConsumerLimits = limits or ConsumerLimits()
        super().__init__(turn, self.limits)
        self.may_be_classic: Callable[[ConsumerGroup], bool] = lambda group: False
        """Called after each event: converts a group whose members all use the classic protocol to a
        classic group, and returns whether it did."""
        self.regexes = Regexes(
            turn,
            refresh_ms=self.limits.regex_refresh_ms,
            topics=lambda: self.topics,
            resolved=self._resolved,
        )

    def finish_event(self, group: ConsumerGroup) -> None:
        there = self.groups.get(group.group_id) is group
        if not (there and self.may_be_classic(group)):
            super().finish_event(group)

    def create(self, group_id: str) -> ConsumerGroup:
        group = self.groups[group_id] = ConsumerGroup(group_id, touched_ms=self.turn.now_ms)
        return group

    # -- kind-specific parts ----------------------------------------------------------------

    def encode(self, group: ConsumerGroup) -> Mapping[str, bytes]:
        return encode_group(group)

    def decode(self, group_id: str, rows: Mapping[str, bytes]) -> tuple[ConsumerGroup, str]:
        return decode_group(group_id, rows)

    def state(self, group: ConsumerGroup) -> str:
        return group.state.value

    def assignor(self, group: ConsumerGroup) -> str:
        return group.votes() or self.limits.assignors[0]

    def ready(self, group: ConsumerGroup) -> bool:
        return self.regexes.ready(group)

    def prepare(self, group: ConsumerGroup) -> None:
        self.regexes.look(group)

    def computed(self, event: Computed, token: int) -> None:
        group = self.groups.get(event.key)
        if group is not None and group.regex_ticket == event.ticket:
            self.regexes.resolved(group, event)
        else:
            super().computed(event, token)

    def _resolved(self, group: ConsumerGroup, before: str | None) -> None:
        if self.ready(group):
            self.look_since(group, before)
        self.finish_event(group)

    def topics_changed(self, event: NewTopics) -> None:
        before = self.topics
        super().topics_changed(event)
        if event.changed is None or any(
            (name in before) != (name in event.topics) for name in event.changed
        ):
            for group in self.groups.values():
                self.regexes.refresh(group)

    # -- timers -----------------------------------------------------------------------------

    def watch(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        member.timer.fire = partial(self.expire, group, member)
        self.start_session(group, member)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self.await_revocation(group, member)

    def start_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        timeout_ms = self.limits.session_timeout_ms(group.group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self.turn.timers.start(member.timer, self.turn.now_ms + timeout_ms)

    def await_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        timer = member.rebalance_timer
        timer.fire = partial(self.expire, group, member)
        self.turn.timers.start(timer, self.turn.now_ms + member.rebalance_timeout_ms)

    def stop_timers(self, member: ConsumerMember) -> None:
        super().stop_timers(member)
        self.turn.timers.stop(member.rebalance_timer)

    def expire(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if group.members.get(member.member_id) is member:
            self.expel(group, member)
            self.regexes.look(group)
            self.finish_event(group)
