"""What of a tiered log stays on this broker's disk.

`local.retention.ms` and `local.retention.bytes` are in the place of the topic's retention, which
the archive is kept by; -2 is the same as that. Nothing goes that is not in the archive: the owner
of the log says up to where it is (`tiered_offset`), and until it does, all stays.

Source: KIP-405; Kafka's `LogConfig.localRetentionMs` and `UnifiedLog.deletableSegments`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.storage.config import LogConfig

AS_WHOLE: Final = -2
"""A local retention that is that of the whole log."""


def kept_here(
    config: LogConfig, committed_offset: int, tiered_offset: int
) -> tuple[LogConfig, int]:
    """By which configuration retention goes over a log's files, and below which offset."""
    if not config.remote_storage_enable:
        return config, committed_offset
    local_ms, local_bytes = config.local_retention_ms, config.local_retention_bytes
    kept = replace(
        config,
        retention_ms=config.retention_ms if local_ms == AS_WHOLE else local_ms,
        retention_bytes=config.retention_bytes if local_bytes == AS_WHOLE else local_bytes,
    )
    return kept, min(committed_offset, tiered_offset)
