"""Which quotas bound a client, and the meters of what it used of them.

Of the quotas of one kind that could be meant, the first of this order holds:

    user and client id · user, default client id · user · default user and client id ·
    default user, default client id · default user · client id · default client id

All who are bounded by a quota of a user share one meter for that user, as do those of a client id;
under a quota of both each pair has its own. What is known is bounded: meters that nobody used for
longest are forgotten first.

Source: Kafka's `ClientQuotaManager`; KIP-55, KIP-546.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from penstock.broker.quotas.entities import CLIENT_ID, IP, USER, of_text
from penstock.broker.quotas.keys import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST
from penstock.broker.quotas.limits import CLIENTS_MAX, METERS_MAX
from penstock.broker.quotas.rates import TokenBucket, WindowedRate, Windows
from penstock.control.values import QUOTA, EntityConfigs

ALL: Final = "\0"
"""Stands for what a quota does not name: all users, or all client ids, in one. A client id may be
empty."""

Scope = tuple[str | None, str | None]
"""User and client id as a quota names them: a name, None for the default, or `ALL`."""


class Measured(Protocol):
    """What is under a quota; `used_ms` says when it was used last."""

    quota: float

    @property
    def used_ms(self) -> float: ...


Meter = TypeVar("Meter", bound=Measured)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The meters of one client, where a quota bounds it."""

    produce: WindowedRate | None
    fetch: WindowedRate | None
    request: WindowedRate | None
    mutation: TokenBucket | None


UNBOUNDED: Final = Bounds(None, None, None, None)


def levels(user: str, client_id: str) -> Iterator[tuple[Scope, Scope]]:
    """From the most to the least specific quota: whom it names, and who shares its meter."""
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
    """The quotas of one kind, and meters of those whom they bound."""

    def __init__(self, make: Callable[[float, Windows], Meter], within: Windows) -> None:
        self._make = make
        self._within = within
        self.quotas: dict[Scope, float] = {}
        self.known: dict[Scope, Meter] = {}

    def replace(self, quotas: dict[Scope, float]) -> None:
        """Go by other quotas; what was used stays known while there are any."""
        self.quotas = quotas
        if not quotas:
            self.known.clear()

    def of(self, user: str, client_id: str) -> Meter | None:
        """The meter of a client; None where no quota bounds it."""
        for named, shared in levels(user, client_id) if self.quotas else ():
            quota = self.quotas.get(named)
            if quota is not None:
                return self.under(quota, shared)
        return None

    def under(self, quota: float, shared: Scope) -> Meter:
        """The meter of those who share it, by a quota."""
        meter = self.known.get(shared)
        if meter is None:
            if len(self.known) >= METERS_MAX:
                self._make_room()
            meter = self.known[shared] = self._make(quota, self._within)
        meter.quota = quota
        return meter

    def _make_room(self) -> None:
        """Forget a quarter, so that the next ones cost nothing."""
        oldest = sorted(self.known.items(), key=lambda item: item[1].used_ms)
        for shared, _ in oldest[: METERS_MAX // 4]:
            del self.known[shared]


class QuotaTable:
    """The quotas of an image, and meters as they are asked for."""

    def __init__(self, *, rates: Windows, mutations: Windows) -> None:
        self._rates: dict[str, Meters[WindowedRate]] = {
            key: Meters(WindowedRate, rates) for key in (PRODUCER, CONSUMER, REQUEST, CONNECTION)
        }
        self._mutations = Meters(TokenBucket, mutations)
        self._clients: dict[tuple[str, str], Bounds] = {}

    @property
    def bounds_clients(self) -> bool:
        """Whether any quota bounds requests."""
        rates = self._rates
        return any(rates[key].quotas for key in (PRODUCER, CONSUMER, REQUEST)) or bool(
            self._mutations.quotas
        )

    @property
    def bounds_time(self) -> bool:
        """Whether any quota bounds the time of requests."""
        return bool(self._rates[REQUEST].quotas)

    @property
    def bounds_addresses(self) -> bool:
        """Whether any quota bounds connections."""
        return bool(self._rates[CONNECTION].quotas)

    def replace(self, configs: EntityConfigs) -> None:
        """Go by other quotas."""
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
        """What bounds a client."""
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
        """The rate of an address' connections, where a quota bounds it."""
        meters = self._rates[CONNECTION]
        quota = meters.quotas.get((ALL, address), meters.quotas.get((ALL, None)))
        return None if quota is None else meters.under(quota, (ALL, address))

    def used(self, now_ms: float) -> Iterator[tuple[str, Scope, float]]:
        """Of each meter its kind, whose it is, and its rate over its quota."""
        for key, meters in self._rates.items():
            for shared, meter in meters.known.items():
                yield key, shared, meter.rate(now_ms) / meter.quota
        for shared, bucket in self._mutations.known.items():
            yield MUTATION, shared, bucket.rate(now_ms) / bucket.quota


def _scope(entity: Mapping[str, str | None]) -> Scope:
    """Whom a quota names; an address in the place of a client id."""
    if IP in entity:
        return ALL, entity[IP]
    return entity.get(USER, ALL), entity.get(CLIENT_ID, ALL)
