"""Quotas of clients, and the meters of their use.

For each kind of quota, the first in this order that matches the client applies:

    user and client id · user, default client id · user · default user and client id ·
    default user, default client id · default user · client id · default client id

Clients with a quota of their user share one meter per user. Clients with a quota of their client id
share one meter per client id. With a quota of both, each pair of user and client id has a meter. If
there are too many meters, the least recently used are discarded.

Source: Kafka's `ClientQuotaManager`; KIP-55, KIP-546.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from penstock.broker.quotas.entities import CLIENT_ID, IP, USER, of_text
from penstock.broker.quotas.keys import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST
from penstock.broker.quotas.rates import TokenBucket, WindowedRate, Windows
from penstock.control.values import QUOTA, EntityConfigs

METERS_MAX: Final = 10_000
"""Maximum number of meters of each kind of quota; above it, the least recently used are
discarded."""
CLIENTS_MAX: Final = 10_000
"""Maximum number of pairs of user and client id whose meters are cached."""

ALL: Final = "\0"
"""Placeholder for a dimension that a quota does not name: all users, or all client ids."""

Scope = tuple[str | None, str | None]
"""User and client id of a quota: a name, None for the default, or `ALL`."""


class Measured(Protocol):
    """Meter under a quota; `used_ms` is the time of its last use."""

    quota: float

    @property
    def used_ms(self) -> float: ...


Meter = TypeVar("Meter", bound=Measured)


class Bounds(Struct, frozen=True):
    """Meters of one client; None without a quota."""

    produce: WindowedRate | None
    fetch: WindowedRate | None
    request: WindowedRate | None
    mutation: TokenBucket | None


UNBOUNDED: Final = Bounds(None, None, None, None)


def levels(user: str, client_id: str) -> Iterator[tuple[Scope, Scope]]:
    """Yield the scopes of a client's possible quotas and of their meters, most specific first."""
    both, one_user, one_client = (user, client_id), (user, ALL), (ALL, client_id)
    yield both, both
    yield (user, None), both
    yield one_user, one_user
    yield (None, client_id), both
    yield (None, None), both
    yield (None, ALL), one_user
    yield one_client, one_client
    yield (ALL, None), one_client


class Meters(Generic[Meter]):
    """Quotas of one kind, and their meters."""

    def __init__(self, make: Callable[[float, Windows], Meter], within: Windows) -> None:
        self._make = make
        self._within = within
        self.quotas: dict[Scope, float] = {}
        self.known: dict[Scope, Meter] = {}

    def replace(self, quotas: dict[Scope, float]) -> None:
        """Replace the quotas; if there are none, also discard the meters."""
        self.quotas = quotas
        if not quotas:
            self.known.clear()

    def of(self, user: str, client_id: str) -> Meter | None:
        for named, shared in levels(user, client_id) if self.quotas else ():
            quota = self.quotas.get(named)
            if quota is not None:
                return self.under(quota, shared)
        return None

    def under(self, quota: float, shared: Scope) -> Meter:
        """Return the meter of a scope, after setting its quota; create it if needed."""
        meter = self.known.get(shared)
        if meter is None:
            if len(self.known) >= METERS_MAX:
                self._make_room()
            meter = self.known[shared] = self._make(quota, self._within)
        meter.quota = quota
        return meter

    def _make_room(self) -> None:
        oldest = sorted(self.known.items(), key=lambda item: item[1].used_ms)
        for shared, _ in oldest[: METERS_MAX // 4]:
            del self.known[shared]


class QuotaTable:
    """Quotas of the metadata image, and meters, which are created on demand."""

    def __init__(self, *, rates: Windows, mutations: Windows) -> None:
        self._rates: dict[str, Meters[WindowedRate]] = {
            key: Meters(WindowedRate, rates) for key in (PRODUCER, CONSUMER, REQUEST, CONNECTION)
        }
        self._mutations = Meters(TokenBucket, mutations)
        self._clients: dict[tuple[str, str], Bounds] = {}

    @property
    def bounds_clients(self) -> bool:
        """Whether any quota applies to requests."""
        rates = self._rates
        return any(rates[key].quotas for key in (PRODUCER, CONSUMER, REQUEST)) or bool(
            self._mutations.quotas
        )

    @property
    def bounds_time(self) -> bool:
        """Whether any quota applies to request time."""
        return bool(self._rates[REQUEST].quotas)

    @property
    def bounds_addresses(self) -> bool:
        """Whether any quota applies to connections."""
        return bool(self._rates[CONNECTION].quotas)

    def replace(self, configs: EntityConfigs) -> None:
        quotas: dict[str, dict[Scope, float]] = {}
        for (kind, name), values in configs.items():
            if kind != QUOTA:
                continue
            entity = of_text(name)
            scope = _scope(entity)
            for key, text in values.items():
                quotas.setdefault(key, {})[scope] = float(text)
        for key, meters in self._rates.items():
            meters.replace(quotas.get(key, {}))
        self._mutations.replace(quotas.get(MUTATION, {}))
        self._clients.clear()

    def bounds(self, user: str, client_id: str) -> Bounds:
        found = self._clients.get((user, client_id))
        if found is None:
            rates = self._rates
            found = Bounds(
                rates[PRODUCER].of(user, client_id),
                rates[CONSUMER].of(user, client_id),
                rates[REQUEST].of(user, client_id),
                self._mutations.of(user, client_id),
            )
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.clear()
            self._clients[user, client_id] = found
        return found

    def accepts(self, address: str) -> WindowedRate | None:
        """Return the meter of an address' connections; None without a quota."""
        meters = self._rates[CONNECTION]
        quota = meters.quotas.get((ALL, address), meters.quotas.get((ALL, None)))
        return None if quota is None else meters.under(quota, (ALL, address))

    def used(self, now_ms: float) -> Iterator[tuple[str, Scope, float]]:
        """Yield the quota kind, the scope, and the rate divided by the quota, of each meter."""
        for key, meters in self._rates.items():
            for shared, meter in meters.known.items():
                yield key, shared, meter.rate(now_ms) / meter.quota
        for shared, bucket in self._mutations.known.items():
            yield MUTATION, shared, bucket.rate(now_ms) / bucket.quota


def _scope(entity: Mapping[str, str | None]) -> Scope:
    """Return the scope of a quota; an address takes the client id's position."""
    if IP in entity:
        return ALL, entity[IP]
    return entity.get(USER, ALL), entity.get(CLIENT_ID, ALL)
