"""The group coordinator: one entrance for all that happens to consumer groups.

`handle(event, now_ms, token)` decides and returns effects; it never waits and holds nothing of
the outside. The shell keeps a table of tokens and pending answers, performs saves, reports them
as events, and sends a `Tick` when `next_deadline_ms()` has come. The same events at the same
times give the same effects.

A heartbeat costs a few microseconds, whatever the number of groups: deadlines wait in one heap
(`timers`), and putting one off is an assignment.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.broker.coordination.classic import administration, joining, membership, saving
from penstock.broker.coordination.classic.effects import Effect
from penstock.broker.coordination.classic.events import (
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    Event,
    GroupRemoved,
    GroupSaved,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OffsetDeleteCheck,
    Prune,
    RemoveFailed,
    SaveFailed,
    SyncGroup,
    Tick,
)
from penstock.broker.coordination.classic.group import Group
from penstock.broker.coordination.classic.limits import GroupLimits
from penstock.broker.coordination.classic.rebalance import Rebalancer
from penstock.broker.coordination.classic.record import decode_group
from penstock.broker.coordination.classic.states import GroupState
from penstock.control import GroupRecord

NO_TOKEN: Final = 0

_Handler = Callable[[Rebalancer, Any, int], None]


def _tick(rebalancer: Rebalancer, event: Tick, token: int) -> None:
    for timer in rebalancer.timers.due(rebalancer.now_ms):
        timer.fire()


_HANDLERS: Final[Mapping[type, _Handler]] = {
    JoinGroup: joining.join,
    SyncGroup: membership.sync,
    Heartbeat: membership.heartbeat,
    LeaveGroup: membership.leave,
    CommitCheck: membership.check_commit,
    DescribeGroup: administration.describe,
    ListGroups: administration.list_groups,
    DeleteGroup: administration.delete,
    OffsetDeleteCheck: administration.check_offset_delete,
    Prune: administration.prune,
    GroupSaved: saving.saved,
    SaveFailed: saving.save_failed,
    GroupRemoved: saving.removed,
    RemoveFailed: saving.remove_failed,
    Tick: _tick,
}


class GroupCoordinator:
    """The groups that this broker coordinates.

    `epoch` rises with each incarnation of the coordinator, as a registered broker's does.
    """

    def __init__(self, limits: GroupLimits | None = None, *, epoch: int = 0) -> None:
        self._rebalancer = Rebalancer(limits or GroupLimits(), epoch=epoch)

    def handle(self, event: Event, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        """Decide what an event leads to.

        `now_ms` comes from a clock that does not jump. `token` is whatever tells the shell which
        answer a later `Reply` belongs to; every request is answered exactly once.
        """
        rebalancer = self._rebalancer
        rebalancer.now_ms = now_ms
        effects: list[Effect] = []
        rebalancer.effects = effects
        _HANDLERS[type(event)](rebalancer, event, token)
        return effects

    def next_deadline_ms(self) -> int | None:
        """When the next `Tick` is due; None while nothing waits."""
        return self._rebalancer.timers.next_deadline_ms()

    def restore(self, record: GroupRecord, now_ms: int) -> list[Effect]:
        """Take over a saved group after a restart; its members' sessions start anew.

        Raises:
            CorruptGroup: the record cannot be read; the other groups are not affected.
        """
        rebalancer = self._rebalancer
        rebalancer.now_ms = now_ms
        effects: list[Effect] = []
        rebalancer.effects = effects
        group = decode_group(record, epoch=rebalancer.epoch, now_ms=now_ms)
        rebalancer.groups[group.group_id] = group
        for member in group.members.values():
            rebalancer.watch(group, member)
            rebalancer.start_session(member)
        if len(group.members) > rebalancer.limits.group_max_size:
            rebalancer.prepare(group)
        return effects

    def restore_offsets(self, group_ids: Iterable[str], now_ms: int) -> None:
        """Know the groups that have offsets; those without a record are simple, and empty."""
        groups = self._rebalancer.groups
        for group_id in group_ids:
            group = groups.get(group_id)
            if group is None:
                group = groups[group_id] = Group(group_id, touched_ms=now_ms)
            group.has_offsets = True

    def forget(self, group_id: str) -> list[Effect]:
        """Drop a group that another broker coordinates from now on; refuses who waits in it."""
        rebalancer = self._rebalancer
        effects: list[Effect] = []
        rebalancer.effects = effects
        group = rebalancer.groups.get(group_id)
        if group is not None:
            rebalancer.hand_over(group, f"another broker coordinates group {group_id!r} now")
        return effects

    def versions(self) -> dict[str, int]:
        """The groups by id that are not just being stored, and the versions that they have."""
        return {
            group_id: group.version
            for group_id, group in self._rebalancer.groups.items()
            if not group.store_busy
        }

    def group_ids(self) -> list[str]:
        """The groups that this coordinator knows."""
        return list(self._rebalancer.groups)

    def counts(self) -> dict[GroupState, int]:
        """How many groups are in each state."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._rebalancer.groups.values():
            counts[group.state] += 1
        return counts

    def member_count(self) -> int:
        """How many members all groups have together."""
        return sum(len(group.members) for group in self._rebalancer.groups.values())

    def timer_entries(self) -> int:
        """Entries of the timer heap, which stays within a small multiple of the members."""
        return len(self._rebalancer.timers)
