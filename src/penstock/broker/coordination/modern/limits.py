"""Bounds of groups whose members heartbeat."""

from __future__ import annotations

from typing import Final, Protocol

EMPTY_GROUP_GRACE_MS: Final = 60_000
"""Time after which an unused empty group without offsets may be dropped."""

MEMBER_BYTES_MAX: Final = 1 << 20
"""Bytes of topic names and regexes in one member's subscription."""


GATHERING_MS: Final = 100
"""Pause without joins before a group that was empty gets its first target.

Members that start together share that target; otherwise the first one would soon revoke partitions.
"""


class ModernLimits(Protocol):
    def assignment_interval_ms(self, group_id: str) -> int: ...

    def session_timeout_ms(self, group_id: str) -> int: ...

    def heartbeat_interval_ms(self, group_id: str) -> int: ...
