"""Core of classic groups: handles their requests, and the reports about their saves.

A heartbeat takes a few microseconds, however many groups there are: all deadlines are in one heap
(`timers.py`), and postponing a deadline is one assignment.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from penstock.broker.coordination.classic import administration, joining, membership, saving
from penstock.broker.coordination.classic.events import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from penstock.broker.coordination.classic.group import Group
from penstock.broker.coordination.classic.rebalance import GroupLimits, Rebalancer
from penstock.broker.coordination.classic.record import decode_group
from penstock.broker.coordination.classic.states import REBALANCE_IN_PROGRESS, GroupState
from penstock.broker.coordination.core import Saved, SaveFailed, Stored
from penstock.broker.coordination.group_events import (
    GROUP_ID_NOT_FOUND,
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    FetchCheck,
    ListedGroup,
    OffsetDeleteCheck,
    Prune,
)
from penstock.broker.coordination.kinds import Handler
from penstock.broker.coordination.modern.topics import NewTopics
from penstock.broker.coordination.turn import Turn

_HANDLERS: Final[Mapping[type, Callable[[Rebalancer, Any, int], None]]] = {
    JoinGroup: joining.join,
    SyncGroup: membership.sync,
    Heartbeat: membership.heartbeat,
    LeaveGroup: membership.leave,
    CommitCheck: membership.check_commit,
    FetchCheck: membership.check_fetch,
    DescribeGroup: administration.describe,
    DeleteGroup: administration.delete,
    OffsetDeleteCheck: administration.check_offset_delete,
    Saved: saving.saved,
    SaveFailed: saving.save_failed,
}


class ClassicGroups:
    """Classic groups of this broker, including groups that only have committed offsets.

    `epoch` is the epoch of the registered broker, which rises with each incarnation.
    """

    name: ClassVar[str] = administration.CLASSIC

    def __init__(self, turn: Turn, limits: GroupLimits | None = None, *, epoch: int = 0) -> None:
        self._rebalancer = Rebalancer(turn, limits or GroupLimits(), epoch=epoch)
        self.handlers: Mapping[type, Handler] = {
            event: partial(handler, self._rebalancer) for event, handler in _HANDLERS.items()
        }

        self.foreign: dict[type, Handler] = {}
        self.limits = self._rebalancer.limits

    @property
    def ids(self) -> Collection[str]:
        return self._rebalancer.groups

    # -- conversion ------------------------------------------------------------------------

    def group(self, group_id: str) -> Group:
        return self._rebalancer.groups[group_id]

    def release(self, group: Group) -> None:
        """Remove a group that was converted to a consumer group; its waiting members join again."""
        self._rebalancer.release(group, REBALANCE_IN_PROGRESS, "the group is a consumer group now")

    def adopt(self, group: Group) -> None:
        """Add a group that was converted from a consumer group; its members join again."""
        self._rebalancer.adopt(group)

    # -- kind-specific parts ----------------------------------------------------------------

    def refuse(self, event: Any, token: int) -> None:
        self._rebalancer.refuse(
            token, GROUP_ID_NOT_FOUND, f"group {event.group_id!r} is a classic group"
        )

    def load(self, stored: Stored) -> None:
        """Add a group from its stored rows, and restart the sessions of its members."""
        rebalancer, group_id = self._rebalancer, stored.key
        groups, now_ms = rebalancer.groups, rebalancer.now_ms
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

    def hand_over(self, group_id: str, reason: str) -> None:
        self._rebalancer.hand_over(self._rebalancer.groups[group_id], reason)

    def listed(self) -> Iterable[ListedGroup]:
        return administration.listed(self._rebalancer)

    def prune(self, event: Prune) -> None:
        administration.prune(self._rebalancer, event)

    def topics_changed(self, event: NewTopics) -> None:
        """Do nothing: clients of classic groups detect changed topics themselves."""

    def counts(self) -> dict[GroupState, int]:
        counts = dict.fromkeys(GroupState, 0)
        for group in self._rebalancer.groups.values():
            counts[group.state] += 1
        return counts
