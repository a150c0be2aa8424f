"""Core of classic groups: handles requests of clients, and the runtime's reports on saved rows.

A heartbeat takes a few microseconds, however many groups there are: all deadlines are in one heap
(`Timers` in `groups/runtime/core.py`), and postponing a deadline is one assignment.

Source: Kafka's `GroupCoordinatorService` and `GroupMetadataManager`, classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from penstock.broker.groups.classic import joining, membership
from penstock.broker.groups.classic.group import Group, decode_group
from penstock.broker.groups.classic.rebalance import GroupLimits, Rebalancer
from penstock.broker.groups.classic.states import (
    DELETE_ERRORS,
    INVALID_GROUP_ID,
    NON_EMPTY_GROUP,
    REBALANCE_IN_PROGRESS,
    GroupState,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from penstock.broker.groups.runtime.core import Saved, SaveFailed, Stored
from penstock.broker.groups.runtime.kinds import (
    GROUP_ID_NOT_FOUND,
    CommitCheck,
    DeleteGroup,
    DescribedGroup,
    DescribedMember,
    DescribeGroup,
    FetchCheck,
    Handler,
    ListedGroup,
    NewTopics,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
    Turn,
)

# Administration of classic groups: describe, list and delete them; check deletions of offsets.
#
# Source: Kafka's `ClassicGroup.asDescribedGroup`, `validateDeleteGroup`, `validateOffsetDelete`;
# KIP-229 (deletion), KIP-496 (offset deletion).


EMPTY_GROUP_GRACE_MS: Final = 60_000
"""Time after its last use at which an empty group without committed offsets may be deleted."""

CLASSIC: Final = "classic"


def describe(rebalancer: Rebalancer, event: DescribeGroup, token: int) -> None:
    group = rebalancer.groups.get(event.group_id)
    if group is None:
        rebalancer.refuse(token, GROUP_ID_NOT_FOUND, f"there is no group {event.group_id!r}")
        return
    stable = group.state is GroupState.STABLE
    members = tuple(
        DescribedMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            metadata=member.metadata(group.protocol) if stable else b"",
            assignment=member.assignment if stable else b"",
        )
        for member in group.members.values()
    )
    rebalancer.reply(
        token,
        DescribedGroup(
            group_id=group.group_id,
            state=group.state.value,
            protocol_type=group.protocol_type,
            protocol=group.protocol if stable else "",
            members=members,
        ),
    )


def listed(rebalancer: Rebalancer) -> Iterator[ListedGroup]:
    for group_id, group in rebalancer.groups.items():
        yield ListedGroup(
            group_id=group_id,
            protocol_type=group.protocol_type,
            state=group.state.value,
            group_type=CLASSIC,
        )


def delete(rebalancer: Rebalancer, event: DeleteGroup, token: int) -> None:
    """Delete a group; the response waits until the removal is durable."""
    group = rebalancer.groups.get(event.group_id)
    if group is None:
        rebalancer.refuse(token, GROUP_ID_NOT_FOUND, f"there is no group {event.group_id!r}")
    elif DELETE_ERRORS[group.state]:
        rebalancer.refuse(
            token,
            DELETE_ERRORS[group.state],
            f"group {group.group_id!r} is {group.state.value}",
        )
    else:
        _remove(rebalancer, group, [token])


def _remove(rebalancer: Rebalancer, group: Group, tokens: list[int]) -> None:
    for member_id in list(group.pending):
        rebalancer.drop_pending(group, member_id)
    rebalancer.timers.stop(group.save_timer)
    group.enter(GroupState.DEAD)
    group.removal_tokens = tokens
    rebalancer.remove(group)


def check_offset_delete(rebalancer: Rebalancer, event: OffsetDeleteCheck, token: int) -> None:
    group = rebalancer.groups.get(event.group_id)
    if not event.group_id:
        rebalancer.refuse(token, INVALID_GROUP_ID, "the group id is empty")
    elif group is None or group.state is GroupState.DEAD:
        rebalancer.refuse(token, GROUP_ID_NOT_FOUND, f"there is no group {event.group_id!r}")
    elif group.state is not GroupState.EMPTY and not group.is_consumer:
        rebalancer.refuse(
            token,
            NON_EMPTY_GROUP,
            f"group {group.group_id!r} of protocol type {group.protocol_type!r} has members;"
            " stop them before you delete offsets",
        )
    else:
        group.touched_ms = rebalancer.now_ms
        subscribed = frozenset(topic for topic in event.topics if group.subscribes(topic))
        rebalancer.reply(token, OffsetsDeletable(subscribed=subscribed))


def prune(rebalancer: Rebalancer, event: Prune) -> None:
    """Delete empty groups without committed offsets `EMPTY_GROUP_GRACE_MS` after their last use."""
    for group_id, group in list(rebalancer.groups.items()):
        group.has_offsets = group_id in event.with_offsets
        if (
            group.state is not GroupState.EMPTY
            or group.pending
            or group.has_offsets
            or group.touched_ms + EMPTY_GROUP_GRACE_MS > rebalancer.now_ms
        ):
            continue
        _remove(rebalancer, group, [])


_HANDLERS: Final[Mapping[type, Callable[[Rebalancer, Any, int], None]]] = {
    JoinGroup: joining.join,
    SyncGroup: membership.sync,
    Heartbeat: membership.heartbeat,
    LeaveGroup: membership.leave,
    CommitCheck: membership.check_commit,
    FetchCheck: membership.check_fetch,
    DescribeGroup: describe,
    DeleteGroup: delete,
    OffsetDeleteCheck: check_offset_delete,
    Saved: membership.saved,
    SaveFailed: membership.save_failed,
}


class ClassicGroups:
    """Classic groups of this broker, including groups that only have committed offsets.

    `epoch` is the epoch of the registered broker, which rises with each incarnation.
    """

    name: ClassVar[str] = CLASSIC

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
        return listed(self._rebalancer)

    def prune(self, event: Prune) -> None:
        prune(self._rebalancer, event)

    def topics_changed(self, event: NewTopics) -> None:
        """Do nothing: clients of classic groups detect changed topics themselves."""

    def counts(self) -> dict[GroupState, int]:
        counts = dict.fromkeys(GroupState, 0)
        for group in self._rebalancer.groups.values():
            counts[group.state] += 1
        return counts
