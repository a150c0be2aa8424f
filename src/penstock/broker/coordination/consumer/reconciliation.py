"""Reconciliation of a member: changes its assignment to its target, step by step.

A member first revokes partitions, then gets new ones. It takes the next step at a heartbeat:

    | state      | next step when                                                       |
    |------------|----------------------------------------------------------------------|
    | STABLE     | the target epoch has changed                                         |
    | UNREVOKED  | the member reports that it owns none of the partitions to be revoked |
    | UNRELEASED | at every heartbeat                                                   |

    | next step: the first condition that holds             | new state  | member epoch     |
    |-------------------------------------------------------|------------|------------------|
    | the member still owns partitions outside the target   | UNREVOKED  | unchanged        |
    | partitions of the target belong to other members      | UNRELEASED | the target epoch |
    | otherwise                                             | STABLE     | the target epoch |

An assigned partition belongs to its member until a heartbeat of the member confirms that it no
longer owns the partition. Only then can another member get it.

Source: Kafka's `CurrentAssignmentBuilder`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct, field

from penstock.broker.coordination.assignors import Partitions, both, fewer, merged, overlap


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
    """Return the state of a member after a heartbeat.

    `owned` are the partitions that the heartbeat reports; None if it reports none. `taken` returns
    those of the given partitions that belong to a member.
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
