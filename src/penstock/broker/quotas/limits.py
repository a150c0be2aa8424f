"""Bounds of quotas."""

from __future__ import annotations

from typing import Final

METERS_MAX: Final = 10_000
"""Measured users, client ids or addresses of each kind of quota; above, the longest unused are
discarded."""

CLIENTS_MAX: Final = 10_000
"""Pairs of user and client id whose quotas are cached."""

MUTE_SECONDS_MAX: Final = 600.0
"""Longest time for which quotas pause reading from a connection."""

ACCEPT_SECONDS_MAX: Final = 30.0
"""Longest time for which a new connection is not read; clients time out after that."""

FILTERS_MAX: Final = 3
"""Components of a filter, at most one for each entity type."""
