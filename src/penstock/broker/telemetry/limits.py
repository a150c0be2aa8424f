"""The bounds of clients' metrics."""

from __future__ import annotations

from typing import Final

INSTANCES_MAX: Final = 16_384
"""Clients that are known; those that asked for nothing for longest are forgotten (as in Kafka)."""

FORGOTTEN_AFTER_INTERVALS: Final = 3
"""A client, and its metrics, that has not pushed for so many of its intervals is forgotten."""

INFLATED_BYTES_MAX: Final = 4 << 20
"""Bytes of one push after decompression."""

POINTS_MAX: Final = 2_000
"""Data points that are looked at in one push."""

CLIENTS_MAX: Final = 1_000
"""Clients whose metrics are shown."""

SERIES_PER_CLIENT_MAX: Final = 200
"""Series of one client that are shown; others of it are counted and dropped."""

ATTRIBUTES_MAX: Final = 8
"""Attributes of a data point that become labels."""

TEXT_CHARACTERS_MAX: Final = 200
"""Characters of a name or label; longer ones are cut off."""

MATCHES_MAX: Final = 20
"""Patterns of one subscription."""

PREFIXES_MAX: Final = 500
"""Prefixes of metrics in one subscription."""
