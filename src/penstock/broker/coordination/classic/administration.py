"""Administration of classic groups: describe, list and delete them; check deletions of offsets.

Source: Kafka's `ClassicGroup.asDescribedGroup`, `validateDeleteGroup`, `validateOffsetDelete`;
KIP-229 (deletion), KIP-496 (offset deletion).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.broker.coordination.classic.group import Group
from penstock.broker.coordination.classic.rebalance import Rebalancer
from penstock.broker.coordination.classic.states import (
    DELETE_ERRORS,
    INVALID_GROUP_ID,
    NON_EMPTY_GROUP,
    GroupState,
)
from penstock.broker.coordination.group_events import (
    GROUP_ID_NOT_FOUND,
    DeleteGroup,
    DescribedGroup,
    DescribedMember,
    DescribeGroup,
    ListedGroup,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Prune,
)

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
