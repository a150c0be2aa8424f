"""Bounds of clients' metrics."""

from __future__ import annotations

from typing import Final

INSTANCES_MAX: Final = 16_384
"""Client instances; above, the longest unused are discarded (as in Kafka)."""

FORGOTTEN_AFTER_INTERVALS: Final = 3
"""Intervals without a push after which a client and its metrics are discarded."""

INFLATED_BYTES_MAX: Final = 4 << 20
"""Bytes of one push after decompression."""

POINTS_MAX: Final = 2_000
"""Data points read from one push."""

CLIENTS_MAX: Final = 1_000
"""Clients whose metrics are exposed."""

SERIES_PER_CLIENT_MAX: Final = 200
"""Exposed series of one client; more are counted and dropped."""

ATTRIBUTES_MAX: Final = 8
"""Attributes of a data point that become labels."""

TEXT_CHARACTERS_MAX: Final = 200
"""Characters of a name or label; longer ones are truncated."""

MATCHES_MAX: Final = 20
"""Patterns of one subscription."""

PREFIXES_MAX: Final = 500
"""Prefixes of metrics in one subscription."""
