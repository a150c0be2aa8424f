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

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from penstock.base.metrics import Metrics, Sample, counter, counters, gauges
from penstock.broker.quotas.entities import (
    CLIENT_ID,
    CONNECTION,
    CONSUMER,
    IP,
    MUTATION,
    PRODUCER,
    REQUEST,
    USER,
    of_text,
)
from penstock.control.values.topics import QUOTA, EntityConfigs

# Windowed rate and token bucket, computed as in Kafka.
#
# A rate is the use per second in the last `samples` windows of `window_ms` each, including the
# current window. Its time is at least that of `samples` - 1 windows, even if fewer have passed. The
# throttle time is the time until the rate is down to the quota if there is no further use:
#
#     (rate - quota) / quota * time of the rate
#
# A token bucket holds at most the tokens of all windows, and is refilled at the quota. A request
# may overdraw it; later requests are throttled until it is not overdrawn any more. Times are
# arguments; `now_ms` never goes backwards.
#
# Source: Kafka's `SampledStat`, `Rate`, `TokenBucket`, `QuotaUtils`; KIP-13, KIP-599.


class Windows(Struct, frozen=True, kw_only=True):
    """Number and length of the time windows over which a rate of use is measured."""

    samples: int
    window_ms: float

    @property
    def burst_seconds(self) -> float:
        """Time in seconds whose quota may be used at once: all windows except the current one."""
        return max(self.samples - 1, 1) * self.window_ms / 1000


class WindowedRate:
    """Meter of a client's rate, such as bytes per second, and of its throttle time under a quota.

    The rate is the mean over the last time windows.
    """

    __slots__ = ("_windows", "_within", "quota")

    def __init__(self, quota: float, within: Windows) -> None:
        self.quota = quota
        self._within = within
        self._windows: deque[list[float]] = deque()
        """Start, time of the last record, and sum of each window."""

    def record(self, amount: float, now_ms: float) -> None:
        """Record use; at most `samples` + 1 windows are stored."""
        self._forget(now_ms)
        windows, length = self._windows, self._within.window_ms
        if not windows:
            windows.append([now_ms, now_ms, amount])
            return
        newest = windows[-1]
        if now_ms - newest[0] >= length:
            began = now_ms - (now_ms - newest[0]) % length
            windows.append([began, now_ms, amount])
            return
        newest[1] = now_ms
        newest[2] += amount

    def rate(self, now_ms: float) -> float:
        """Return the mean rate per second over the windows."""
        self._forget(now_ms)
        return sum([window[2] for window in self._windows]) * 1000 / self._over_ms(now_ms)

    def wait_ms(self, now_ms: float) -> float:
        """Return the time in ms until the rate is down to the quota; 0 if it is not above."""
        rate, quota = self.rate(now_ms), self.quota
        return 0.0 if rate <= quota else (rate - quota) / quota * self._over_ms(now_ms)

    @property
    def used_ms(self) -> float:
        """Time of the last use, in ms."""
        return self._windows[-1][1] if self._windows else 0.0

    def _over_ms(self, now_ms: float) -> float:
        samples, length = self._within.samples, self._within.window_ms
        elapsed = now_ms - self._windows[0][0] if self._windows else 0.0
        missing = samples - 1 - int(elapsed // length)
        if missing > 0:
            elapsed += missing * length
        return elapsed or length

    def _forget(self, now_ms: float) -> None:
        windows, kept_ms = self._windows, self._within.samples * self._within.window_ms
        while windows and now_ms - windows[0][1] >= kept_ms:
            windows.popleft()


class TokenBucket:
    """Meter of partition mutations: a token bucket, which is refilled at the rate of the quota.

    It holds at most the tokens of all windows, and is full at first.
    """

    __slots__ = ("_burst_seconds", "_filled_ms", "_tokens", "quota")

    def __init__(self, quota: float, within: Windows) -> None:
        self.quota = quota
        self._burst_seconds = within.samples * within.window_ms / 1000
        self._tokens = quota * self._burst_seconds
        self._filled_ms: float | None = None

    def record(self, amount: float, now_ms: float) -> None:
        """Take tokens; the bucket may become overdrawn."""
        self._fill(now_ms)
        self._tokens -= amount

    def rate(self, now_ms: float) -> float:
        """Return the rate of use per second: missing tokens by the seconds that fill the bucket."""
        self._fill(now_ms)
        return self.quota - self._tokens / self._burst_seconds

    def wait_ms(self, now_ms: float) -> float:
        """Return the time in ms until the bucket is not overdrawn any more; 0 if it is not now."""
        self._fill(now_ms)
        return max(0.0, -self._tokens / self.quota * 1000)

    @property
    def used_ms(self) -> float:
        """Time of the last use or refill, in ms."""
        return self._filled_ms or 0.0

    def _fill(self, now_ms: float) -> None:
        if self._filled_ms is not None:
            came = self.quota * (now_ms - self._filled_ms) / 1000
            self._tokens = min(self.quota * self._burst_seconds, self._tokens + came)
        self._filled_ms = now_ms


METERS_MAX: Final = 10_000
"""Maximum number of meters of each kind of quota; above it, the least recently used are
discarded."""
CLIENTS_MAX: Final = 10_000
"""Maximum number of pairs of user and client id whose meters are cached."""

ALL: Final = "\0"
"""Name of all users, or of all client ids, where a quota does not name one."""

Scope = tuple[str | None, str | None]
"""User and client id of a quota: a name, None for the default, or `ALL`."""


class Measured(Protocol):
    """Meter under a quota; `used_ms` is the time of its last use."""

    quota: float

    @property
    def used_ms(self) -> float: ...


Meter = TypeVar("Meter", bound=Measured)


class Bounds(Struct, frozen=True):
    """Meters that apply to one client, by kind of quota; None without such a quota."""

    produce: WindowedRate | None
    fetch: WindowedRate | None
    request: WindowedRate | None
    mutation: TokenBucket | None


UNBOUNDED: Final = Bounds(None, None, None, None)


def levels(user: str, client_id: str) -> Iterator[tuple[Scope, Scope]]:
    """Yield the scopes of the quotas that may apply to a client, most specific first.

    Each is paired with the scope of the meter that clients with this quota share.
    """
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


SERIES_MAX: Final = 100
"""Maximum number of entities in metrics; those with the highest use of their quotas are kept."""


class Throttles(Metrics, prefix="penstock_quota_"):
    """Metrics of quotas; one object per broker."""

    counts: dict[str, int] = counters(
        "throttled_total", "Throttled requests and new connections, by quota.", "quota"
    )
    seconds: dict[str, float] = counters(
        "throttle_seconds_total", "Total throttle time in seconds, by quota.", "quota"
    )
    refused = counter(
        "refused_total", "Topics whose creation, growth or deletion a quota rejected."
    )
    meters: dict[str, int] = gauges(
        "meters",
        "Users, client ids and addresses that are measured because they have a quota.",
        "quota",
    )
    used: dict[tuple[str, str, str], float] = gauges(
        "used_ratio",
        "Recent use divided by the quota, for the clients with the highest values; a label is empty"
        " if all users or all client ids share the quota.",
        "quota",
        "user",
        "client_id",
    )

    def throttled(self, quota: str, milliseconds: float) -> None:
        self.counts[quota] += 1
        self.seconds[quota] += milliseconds / 1000


def quota_samples(throttles: Throttles, table: QuotaTable, now_ms: float) -> Iterator[Sample]:
    """Yield the metrics of throttling, and of the clients with the highest use of their quotas."""
    used = list(table.used(now_ms))
    throttles.meters = Counter(quota for quota, _, _ in used)
    throttles.used = {
        (quota, *_labels(scope)): ratio
        for quota, scope, ratio in nlargest(SERIES_MAX, used, key=lambda row: row[2])
    }
    return throttles.samples()


def _labels(scope: Scope) -> tuple[str, str]:
    user, client_id = ["" if name in (None, ALL) else str(name) for name in scope]
    return user, client_id
