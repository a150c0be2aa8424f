"""Reconciliation of a member's assignment with its target: revocation before assignment.

    STABLE ──target epoch changed──▶ next
    UNREVOKED ──member owns no partition to be revoked──▶ next
    UNRELEASED ──▶ next

    next:  partitions outside the target are not revoked yet       UNREVOKED, epoch unchanged
           partitions of the target belong to another member       UNRELEASED, target epoch
           otherwise                                               STABLE, target epoch

A partition belongs to a member from its assignment until the member's heartbeat confirms that it
owns the partition no more; no other member is assigned it in between.

Source: Kafka's `CurrentAssignmentBuilder`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct, field

from penstock.broker.coordination.assignors import Partitions, both, fewer, merged, overlap


class MemberState(Enum):
    """Progress of a member towards its target; the values are stored."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


class Current(Struct, frozen=True, kw_only=True):
    """Assigned partitions of a member, and those that it must revoke."""

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
    """Return the next step of a member; `owned` is what it reports to own, if it does."""
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
