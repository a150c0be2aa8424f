"""State of a consumer group and its members, with the owner of each partition.

Source: Kafka's `ConsumerGroup` and `ConsumerGroupMember`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from msgspec import Struct, field

from penstock.base.errors import BugError
from penstock.broker.groups.classic import Protocol
from penstock.broker.groups.modern.group import ModernGroup, ModernMember, idle, outdate
from penstock.broker.groups.runtime.assignors import (
    NOTHING,
    Partitions,
    both,
    fewer,
    merged,
    overlap,
)
from penstock.broker.groups.runtime.core import Timer

# Reconciliation of a member: changes its assignment to its target, step by step.
#
# A member first revokes partitions, then gets new ones. It takes the next step at a heartbeat:
#
#     | state      | next step when                                                       |
#     |------------|----------------------------------------------------------------------|
#     | STABLE     | the target epoch has changed                                         |
#     | UNREVOKED  | the member reports that it owns none of the partitions to be revoked |
#     | UNRELEASED | at every heartbeat                                                   |
#
#     | next step: the first condition that holds             | new state  | member epoch     |
#     |-------------------------------------------------------|------------|------------------|
#     | the member still owns partitions outside the target   | UNREVOKED  | unchanged        |
#     | partitions of the target belong to other members      | UNRELEASED | the target epoch |
#     | otherwise                                             | STABLE     | the target epoch |
#
# An assigned partition belongs to its member until a heartbeat of the member confirms that it no
# longer owns the partition. Only then can another member get it.
#
# Source: Kafka's `CurrentAssignmentBuilder`; KIP-848.


class MemberState(Enum):
    """State of a member on the way to its target; the values are stored."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


class Current(Struct, frozen=True, kw_only=True):
    """Reconciliation state of a member: its assigned partitions, and those that it must revoke."""

    state: MemberState
    epoch: int
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)


Taken = Callable[[Partitions], Partitions]


def reconcile(
    current: Current,
    *,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    taken: Taken,
) -> Current:
    """Return a member's next state on the way to its target, after a heartbeat.

    The member first revokes partitions outside of the target, then gets those that are free.
    `owned` are the partitions that the heartbeat reports; None if it reports none. `taken` returns
    those of the given partitions that still belong to a member.
    """
    if current.state is MemberState.STABLE:
        if current.epoch == target_epoch:
            return current
        epoch = current.epoch
    elif current.state is MemberState.UNREVOKED_PARTITIONS:
        if _has_any(owned, current.revoking):
            return current
        epoch = current.epoch + 1
    else:
        epoch = current.epoch
    return _next(current, min(epoch, target_epoch), target_epoch, target, owned, taken)


def _has_any(owned: Partitions | None, partitions: Partitions) -> bool:
    return owned is None or overlap(owned, partitions)


def _next(
    current: Current,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    taken: Taken,
) -> Current:
    kept = both(current.assigned, target)
    revoking = fewer(current.assigned, kept)
    if revoking and _has_any(owned, revoking):
        return Current(
            state=MemberState.UNREVOKED_PARTITIONS, epoch=epoch, assigned=kept, revoking=revoking
        )
    added = fewer(target, kept)
    unreleased = taken(added)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return Current(state=state, epoch=target_epoch, assigned=merged(kept, fewer(added, unreleased)))


class GroupState(Enum):
    """State of a consumer group; the values are the names in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerMember(ModernMember):
    """Member of a consumer group. `classic` is set while it uses the classic protocol."""

    __slots__ = (
        "assigned",
        "assignor",
        "classic",
        "rebalance_timeout_ms",
        "rebalance_timer",
        "revoking",
        "state",
    )

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.rebalance_timeout_ms = 0
        self.assignor = ""
        self.state = MemberState.STABLE
        self.assigned: Partitions = NOTHING
        self.revoking: Partitions = NOTHING
        self.rebalance_timer = Timer(idle)
        self.classic: ClassicSide | None = None

    @property
    def current(self) -> Current:
        return Current(
            state=self.state, epoch=self.epoch, assigned=self.assigned, revoking=self.revoking
        )

    def may_commit(self, epoch: int) -> bool:
        """Whether the member may commit offsets with this epoch."""
        return epoch == self.epoch

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


class ConsumerGroup(ModernGroup[ConsumerMember]):
    """Consumer group. `owners` maps each partition to the member that has not revoked it yet."""

    def __init__(self, group_id: str, *, touched_ms: int) -> None:
        super().__init__(group_id, touched_ms=touched_ms)
        self.owners: dict[bytes, dict[int, str]] = {}
        self.visible: Callable[[str], bool] | None = None
        """Function that returns whether regexes may match a topic; set by the newest subscriber."""
        self.regex_ticket = 0
        self.regex_stale = False
        """Whether topics changed after the running resolution of regexes had begun."""
        self.regex_timer = Timer(idle)
        self.next_regex_ms = 0

    @property
    def timers(self) -> list[Timer]:
        return [*super().timers, self.regex_timer]

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.assignment_epoch < self.epoch:
            return GroupState.ASSIGNING
        reconciled = all(m.is_reconciled(self.assignment_epoch) for m in self.members.values())
        return GroupState.STABLE if reconciled else GroupState.RECONCILING

    # -- owners ------------------------------------------------------------------------------

    def add(self, member: ConsumerMember) -> None:
        super().add(member)
        self._own(member)

    def remove(self, member: ConsumerMember) -> None:
        super().remove(member)
        self._disown(member)

    def move(self, member: ConsumerMember, current: Current) -> None:
        self._disown(member)
        if current.epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, current.epoch
        member.state = current.state
        member.assigned, member.revoking = current.assigned, current.revoking
        self._own(member)
        outdate(member, "current")

    def rename(self, member: ConsumerMember, member_id: str) -> None:
        gathers = self.gathers  # the group is not empty, even if this is its only member
        self.remove(member)
        member.member_id = member_id
        self.add(member)
        self.gathers = gathers
        member.rows.clear()

    def taken(self, partitions: Partitions) -> Partitions:
        """Return the given partitions that have an owner."""
        found: dict[bytes, frozenset[int]] = {}
        for topic, numbers in partitions.items():
            owners = self.owners.get(topic)
            if owners:
                owned = numbers & owners.keys()
                if owned:
                    found[topic] = owned
        return found

    def taken_from(self, member: ConsumerMember) -> Taken:
        """Return the function that returns which partitions a member cannot get yet."""
        return self.taken

    def released(self, member: ConsumerMember) -> bool:
        """Whether all partitions that a member waits for have been released by their owners."""
        for topic, numbers in member.target.items():
            has = member.assigned.get(topic, frozenset())
            if self.taken({topic: numbers - has}):
                return False
        return True

    def _own(self, member: ConsumerMember) -> None:
        member_id = member.member_id
        for partitions in (member.assigned, member.revoking):
            for topic, numbers in partitions.items():
                owners = self.owners.setdefault(topic, {})
                for number in numbers:
                    if owners.setdefault(number, member_id) != member_id:
                        raise BugError(
                            f"partition {number} of topic {topic.hex()} belongs to"
                            f" {owners[number]!r} and to {member_id!r} in group {self.group_id!r}"
                        )

    def _disown(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic, numbers in partitions.items():
                owners: Mapping[int, str] | None = self.owners.get(topic)
                for number in numbers if owners else ():
                    if self.owners[topic].get(number) == member.member_id:
                        del self.owners[topic][number]
                if topic in self.owners and not self.owners[topic]:
                    del self.owners[topic]

    # -- queries ----------------------------------------------------------------------------

    def votes(self) -> str:
        """Return the assignor that most members request; empty if no member requests one."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor:
                counts[member.assignor] = counts.get(member.assignor, 0) + 1
        return max(counts, key=lambda name: (counts[name], name), default="")


# Additional state of a consumer group's member that uses the classic protocol.
#
# Source: Kafka's `ConsumerGroupMemberMetadataValue.ClassicMemberMetadata`; KIP-848.


class ClassicSide(Struct, frozen=True, kw_only=True):
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
