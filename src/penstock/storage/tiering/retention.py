"""Local retention of a tiered log.

`local.retention.ms` and `local.retention.bytes` replace the topic's retention, which applies to the
archive; -2 means the same as the topic's. Segments stay until they are archived: the owner of the
log sets the offset (`tiered_offset`).

Source: KIP-405; Kafka's `LogConfig.localRetentionMs` and `UnifiedLog.deletableSegments`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.storage.config import LogConfig

AS_WHOLE: Final = -2
"""Local retention equal to the topic's."""


def kept_here(
    config: LogConfig, committed_offset: int, tiered_offset: int
) -> tuple[LogConfig, int]:
    """Return the configuration for local retention, and the offset below which it applies."""
    if not config.remote_storage_enable:
        return config, committed_offset
    local_ms, local_bytes = config.local_retention_ms, config.local_retention_bytes
    kept = replace(
        config,
        retention_ms=config.retention_ms if local_ms == AS_WHOLE else local_ms,
        retention_bytes=config.retention_bytes if local_bytes == AS_WHOLE else local_bytes,
    )
    return kept, min(committed_offset, tiered_offset)
