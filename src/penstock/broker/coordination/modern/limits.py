"""The bounds of groups whose members heartbeat."""

from __future__ import annotations

from typing import Final, Protocol

EMPTY_GROUP_GRACE_MS: Final = 60_000
"""An empty group untouched for this long may be forgotten when it has no offsets."""

MEMBER_BYTES_MAX: Final = 1 << 20
"""Bytes of the names of topics, of regexes and the like that one member may give."""


GATHERING_MS: Final = 100
"""A group that was empty gets its first target when nobody has joined for this long: members that
start together share one, where the first would else have to give up what the others are to read."""


class ModernLimits(Protocol):
    """Settings, each as it is for one group."""

    def assignment_interval_ms(self, group_id: str) -> int: ...

    def session_timeout_ms(self, group_id: str) -> int: ...

    def heartbeat_interval_ms(self, group_id: str) -> int: ...
