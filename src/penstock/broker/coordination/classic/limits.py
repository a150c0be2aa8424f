"""Bounds of classic groups: settings and constants.

`GroupLimits` is filled from the broker's settings of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Session timeout of a new member while its JoinGroup is parked, as in Kafka.

It cannot heartbeat yet; without the limit, members of vanished clients would accumulate.
"""

SAVE_RETRY_MS: Final = 1_000
"""Pause before a failed save without a waiting request is retried."""

GENERATIONS_PER_EPOCH: Final = 100
"""Generations that a restored group skips for each coordinator epoch since it was saved.

Generations are handed out before they are saved. A generation that a crash lost must not be reused,
or the assignment of its old leader could be taken for the new one's.
"""

EMPTY_GROUP_GRACE_MS: Final = 60_000
"""Time after which an unused empty group without offsets may be dropped."""


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
