"""The bounds of the control plane, each with its name."""

from __future__ import annotations

from typing import Final

WAITING_OPERATIONS_MAX: Final = 10_000
"""Operations that may wait for the database's thread; more are refused as busy."""

GROUP_OPERATIONS_MAX: Final = 512
"""Operations that share one transaction and one sync."""

BUSY_TIMEOUT_SECONDS: Final = 2.0
"""How long the database's owner is waited for when it is opened."""

TOPIC_PARTITIONS_MAX: Final = 100_000
"""Partitions of one topic, whatever the broker's own limit says."""

OFFSETS_PER_CALL_MAX: Final = 100_000
"""Offsets in one commit or deletion."""

GROUP_STATE_BYTES_MAX: Final = 128 << 20
"""Bytes of one saved group."""

PRODUCER_IDS_PER_CALL_MAX: Final = 1_000_000
"""Producer ids allocated by one call."""
