"""Bounds of consumer groups: constants, broker settings and settings of single groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.group_configs import GroupConfigs

REGEX_RETRY_MS: Final = 10_000
"""Least interval between resolutions of a group's regular expressions; Kafka's value."""

WAITING_HEARTBEAT_MS: Final = 500
"""Heartbeat interval of a member that waits for revocations by others."""

WAITING_HEARTBEAT_MS_PER_MEMBER: Final = 5
"""Least such interval per member: at most 200 of these heartbeats a second per group."""


class MigrationPolicy(Enum):
    """Allowed conversions of groups that have members."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """Bounds in milliseconds; `configs` returns overriding settings of a group."""

    groups_max: int = 100_000
    max_size: int = 2_147_483_647
    session_timeout: int = 45_000
    heartbeat_interval: int = 5_000
    assignment_interval: int = 1_000
    assignors: tuple[str, ...] = ("uniform", "range")
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    regex_refresh_ms: int = 600_000
    configs: Callable[[str], GroupConfigs] | None = None

    def session_timeout_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.session_timeout
        return self.configs(group_id).consumer_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.heartbeat_interval
        return self.configs(group_id).consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.assignment_interval
        return self.configs(group_id).consumer_assignment_interval_ms
