"""The bounds of quotas."""

from __future__ import annotations

from typing import Final

METERS_MAX: Final = 10_000
"""Users, client ids or addresses whose use is known, of each kind of quota; beyond it those that
used nothing for longest are forgotten and begin anew."""

CLIENTS_MAX: Final = 10_000
"""Pairs of user and client id for which it is remembered what bounds them."""

MUTE_SECONDS_MAX: Final = 600.0
"""Longest time for which a connection is not read because of quotas."""

ACCEPT_SECONDS_MAX: Final = 30.0
"""Longest time for which a new connection is not read; clients give requests up after that."""

FILTERS_MAX: Final = 3
"""Components of a filter, of which there is one for each type of entity."""

SERIES_MAX: Final = 100
"""Entities, of those nearest to their quotas, that metrics name."""
