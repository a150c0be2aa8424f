"""The bounds of consumer groups: those that are settings, and those that are facts.

`GroupLimits` is filled from the broker's settings of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a member that joins for the first time is kept while its JoinGroup is parked: it
cannot heartbeat yet, and a client that went away would otherwise pile up. Kafka's value."""

SAVE_RETRY_MS: Final = 1_000
"""Pause before a failed save that nobody waits for is tried again."""

GENERATIONS_PER_EPOCH: Final = 100
"""A group that a later incarnation of the coordinator restores skips this many generations for
each epoch that has begun since it was saved. Generations are handed out before they are saved;
one that a crash made the store forget must not come again, or the assignment of its old leader
could be taken for the new one's."""

EMPTY_GROUP_GRACE_MS: Final = 60_000
"""An empty group untouched for this long may be forgotten when it has no offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Bounds of groups, members and bytes; times in milliseconds."""

    groups_max: int = 100_000
    group_max_size: int = 10_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    member_protocols_max: int = 64
    member_bytes_max: int = 4 << 20
    group_bytes_max: int = 32 << 20
