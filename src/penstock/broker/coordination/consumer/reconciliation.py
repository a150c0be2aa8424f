"""How a member comes from what it has to what it is to have: revocation before assignment.

    STABLE ──target's epoch is another──▶ next
    UNREVOKED ──owns nothing any more that it was to give up──▶ next
    UNRELEASED ──▶ next

    next:  it has what it is not to have, and has not given that up   UNREVOKED, its epoch as it was
           something it is to have is still another member's          UNRELEASED, target's epoch
           otherwise                                                  STABLE, target's epoch

A partition belongs to a member from the moment that it is assigned until the member has said, by
its heartbeat, that it owns it no more; nobody else is assigned it in between.

Source: Kafka's `CurrentAssignmentBuilder`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from penstock.broker.coordination.assignors import Partitions, both, fewer, merged, overlap


class MemberState(Enum):
    """Where a member is on its way to its target; the values are stored."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What a member has: what it may read, and what it has been told to give up."""

    state: MemberState
    epoch: int
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)


Taken = Callable[[Partitions], Partitions]
"""Those of some partitions that belong to a member."""


def reconcile(
    current: Current,
    *,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    taken: Taken,
) -> Current:
    """The next step of a member; `owned` is what it says that it owns, None if it does not say."""
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
    wanted = fewer(target, kept)
    unreleased = taken(wanted)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return Current(
        state=state, epoch=target_epoch, assigned=merged(kept, fewer(wanted, unreleased))
    )
