"""Bounds of share groups: broker settings and settings of single groups, by Kafka's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.group_configs import GroupConfigs


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupLimits:
    """Bounds in milliseconds; `configs` returns the settings of a group."""

    configs: Callable[[str], GroupConfigs]
    groups_max: int = 100_000
    max_size: int = 200
    assignment_interval: int = 1_000

    def session_timeout_ms(self, group_id: str) -> int:
        return self.configs(group_id).share_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.configs(group_id).share_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        return self.assignment_interval
