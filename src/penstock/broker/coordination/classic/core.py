"""The core of classic groups: one entrance for all that happens to them.

A heartbeat costs a few microseconds, whatever the number of groups: deadlines wait in one heap
(`timers`), and putting one off is an assignment.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from penstock.broker.coordination.classic import administration, joining, membership, saving
from penstock.broker.coordination.classic.events import (
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    Event,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OffsetDeleteCheck,
    Prune,
    SyncGroup,
)
from penstock.broker.coordination.classic.group import Group
from penstock.broker.coordination.classic.limits import GroupLimits
from penstock.broker.coordination.classic.rebalance import Rebalancer
from penstock.broker.coordination.classic.record import decode_group
from penstock.broker.coordination.classic.states import GroupState
from penstock.broker.coordination.core import NO_TOKEN, Effect, Saved, SaveFailed, Stored, Tick

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
    Saved: saving.saved,
    SaveFailed: saving.save_failed,
    Tick: _tick,
}


class ClassicGroups:
    """The groups that this broker coordinates, as a core of coordination.

    `epoch` rises with each incarnation of the coordinator, as a registered broker's does.
    """

    def __init__(self, limits: GroupLimits | None = None, *, epoch: int = 0) -> None:
        self._rebalancer = Rebalancer(limits or GroupLimits(), epoch=epoch)

    def handle(self, event: Event, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        rebalancer = self._rebalancer
        effects = rebalancer.begin(now_ms)
        _HANDLERS[type(event)](rebalancer, event, token)
        return effects

    def next_deadline_ms(self) -> int | None:
        return self._rebalancer.timers.next_deadline_ms()

    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        """Take over a stored group; its members' sessions start anew.

        Raises:
            CorruptGroup: the rows cannot be read.
        """
        rebalancer, group_id = self._rebalancer, stored.key
        effects = rebalancer.begin(now_ms)
        groups = rebalancer.groups
        known = groups.get(group_id)
        if stored.rows is not None:
            group = None
            if stored.rows:
                group = decode_group(group_id, stored.rows, epoch=rebalancer.epoch, now_ms=now_ms)
            if known is not None:
                rebalancer.hand_over(known, f"another broker has coordinated group {group_id!r}")
            if group is not None:
                rebalancer.take_over(group, handed_out=0 if known is None else known.generation)
        if stored.has_offsets:
            if group_id not in groups:
                groups[group_id] = Group(group_id, touched_ms=now_ms)
            groups[group_id].has_offsets = True
        return effects

    def forget(self, key: str) -> list[Effect]:
        rebalancer = self._rebalancer
        effects = rebalancer.begin(rebalancer.now_ms)
        group = rebalancer.groups.get(key)
        if group is not None:
            rebalancer.hand_over(group, f"another broker coordinates group {key!r} now")
        return effects

    def keys(self) -> Collection[str]:
        return self._rebalancer.groups.keys()

    def counts(self) -> dict[GroupState, int]:
        """How many groups are in each state."""
        counts = dict.fromkeys(GroupState, 0)
        for group in self._rebalancer.groups.values():
            counts[group.state] += 1
        return counts

    def timer_entries(self) -> int:
        """Entries of the timer heap, which stays within a small multiple of the members."""
        return len(self._rebalancer.timers)
