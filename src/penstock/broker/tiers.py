"""Checks of the tiered storage configurations of a topic.

| configuration                                    | rule                                          |
|--------------------------------------------------|-----------------------------------------------|
| `remote.storage.enable`                          | requires the brokers'                         |
|                                                  | `remote.log.storage.system.enable`, excludes  |
|                                                  | compaction and diskless                       |
| a local retention                                | at most the topic's retention                 |
| `remote.log.copy.disable`                        | requires local retention = the topic's        |
|                                                  | retention                                     |
| `remote.storage.enable` = false, after true      | requires `remote.log.delete.on.disable`, which|
|                                                  | deletes the archived segments                 |

Source: KIP-405, KIP-950; Kafka's `LogConfig.validateRemoteStorage…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.broker.admin_errors import InvalidConfig
from penstock.control.tiers.rules import REMOTE_CONFIG
from penstock.storage.rolling import AS_WHOLE

if TYPE_CHECKING:
    from penstock.storage.config import LogConfig


def check_tiers(
    name: str,
    current: Mapping[str, str],
    configs: Mapping[str, str],
    effective: LogConfig,
    *,
    enabled: bool,
) -> None:
    """Check the tiered storage configurations of a new or changed topic; raises InvalidConfig.

    `current` are its stored configurations, `effective` is the configuration in effect after the
    change. `enabled`: the brokers have tiered storage.
    """
    reason = _refusal(current, effective, enabled=enabled)
    if reason:
        raise InvalidConfig(f"topic {name!r}: {reason}")


def _refusal(current: Mapping[str, str], config: LogConfig, *, enabled: bool) -> str:
    was = current.get(REMOTE_CONFIG) == "true"
    if not config.remote_storage_enable:
        if was and not config.remote_log_delete_on_disable:
            return (
                f"{REMOTE_CONFIG} cannot be set to false while the archive has segments of the"
                " topic. To delete them, also set remote.log.delete.on.disable = true. To keep them"
                " readable, set remote.log.copy.disable = true instead"
            )
        return ""
    if not enabled and not was:
        return (
            f"{REMOTE_CONFIG} = true needs remote.log.storage.system.enable = true in the"
            " configuration of all brokers"
        )
    if config.diskless_enable:
        return f"{REMOTE_CONFIG} = true and diskless.enable = true exclude each other"
    if "compact" in config.cleanup_policy:
        policy = ",".join(config.cleanup_policy)
        return f"{REMOTE_CONFIG} = true needs cleanup.policy = delete, not {policy}"
    return _local_refusal(config)


def _local_refusal(config: LogConfig) -> str:
    for unit, local, whole in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local == AS_WHOLE:
            continue
        if whole >= 0 and (local < 0 or local > whole):
            return (
                f"local.retention.{unit} = {local} must not exceed retention.{unit} = {whole};"
                f" {AS_WHOLE} means the same value"
            )
        if config.remote_log_copy_disable and local != whole:
            return (
                f"remote.log.copy.disable = true needs local.retention.{unit} = {AS_WHOLE} or the"
                f" same value as retention.{unit} = {whole}, not {local}"
            )
    return ""
