"""The bounds of consumer groups: settings by Kafka's names, some of which a group may have its own
of, and facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.broker.group_configs import GroupConfigs

REGEX_RETRY_MS: Final = 10_000
"""Regular expressions of a group are not resolved again within this time, whatever asks for it;
Kafka's value."""

WAITING_HEARTBEAT_MS: Final = 500
"""A member that waits for what others are to give up is told to come again this soon."""

WAITING_HEARTBEAT_MS_PER_MEMBER: Final = 5
"""But not sooner than this times the members: 200 such heartbeats a second of a group."""


class MigrationPolicy(Enum):
    """Into which kind groups may be converted while they have members."""

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
    """Bounds of consumer groups; times in milliseconds. `configs` are those of one group, which
    are in the place of the broker's settings, if they are given."""

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
