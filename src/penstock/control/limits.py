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

SINKS_MAX: Final = 10_000
"""Queries whose commits to the log are remembered."""

SINK_LANES_MAX: Final = 50_000
"""Partitions that one query's commit, and those before it, have written to."""

SINK_MANIFEST_BYTES_MAX: Final = 16 << 20
"""Bytes of one saved manifest, which is compressed."""
