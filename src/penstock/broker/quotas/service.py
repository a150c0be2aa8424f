"""Quotas on the request path.

`active` is False while no quota applies to requests; then nothing is measured. If a client exceeds
its quota, its response contains a throttle time, and the broker does not read from the connection
for this time. Produce requests are measured when they arrive, because a client may send many before
a response. Fetch requests are checked before they read: a client above its quota gets an empty
response.

Request time is the event-loop time that a request uses after its frame was read; 100 percent is one
event loop. Work for all requests together, such as log syncs, is not charged. Requests between
brokers are exempt.

Belongs to the event-loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from penstock.base.errors import RetriableError
from penstock.broker.quotas.entities import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST
from penstock.broker.quotas.table import (
    UNBOUNDED,
    Bounds,
    QuotaTable,
    Throttles,
    TokenBucket,
    Windows,
    quota_samples,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.base.metrics import Sample
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.connection import Connection, RequestContext
    from penstock.control.values.topics import EntityConfigs


T = TypeVar("T")


class Timed(Generic[T]):
    """Awaitable that runs a request's handler and charges its event-loop time to the quota."""

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        *,
        charge: Callable[[float], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._work = work
        self._charge = charge
        self._monotonic = monotonic

    def __await__(self) -> Generator[Any, Any, T]:
        work = self._work
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            began = self._monotonic()
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._charge(self._monotonic() - began)
            try:
                sent = yield waits_for
            except BaseException as error:
                step = partial(work.throw, error)
            else:
                step = partial(work.send, sent)


MUTE_SECONDS_MAX: Final = 600.0
"""Longest time for which quotas pause reading from a connection."""
ACCEPT_SECONDS_MAX: Final = 30.0
"""Longest time for which a new connection is not read; clients would time out after it."""


class ThrottlingQuotaExceeded(RetriableError):
    """A partition mutation exceeds the quota; the response contains the throttle time."""

    code: ClassVar[str] = "throttling_quota_exceeded"


def between_brokers(context: RequestContext) -> bool:
    """Return whether only brokers may send the request, which quotas then exempt."""
    return any(
        check.scope == "whole" and check.operation == "cluster_action"
        for check in context.api.checks
        if check.asked_of(context.version)
    )


class MutationQuota:
    """Quota of the partition mutations of one request.

    A `strict` quota rejects mutations above it; other quotas throttle after the request.
    """

    __slots__ = ("_bucket", "_now_ms", "_strict", "refused")

    def __init__(
        self, bucket: TokenBucket | None, now_ms: Callable[[], float], *, strict: bool
    ) -> None:
        self._bucket, self._now_ms, self._strict = bucket, now_ms, strict
        self.refused = 0

    def take(self, partitions: int) -> None:
        """Take tokens for the given number of partitions; may raise ThrottlingQuotaExceeded."""
        bucket, now_ms = self._bucket, self._now_ms()
        if bucket is None:
            return
        if self._strict:
            wait_ms = round(bucket.wait_ms(now_ms))
            if wait_ms > 0:
                self.refused += 1
                raise ThrottlingQuotaExceeded(
                    f"{MUTATION} = {bucket.quota:g} is exceeded; retry in {wait_ms} ms"
                )
        bucket.record(partitions, now_ms)

    @property
    def throttle_ms(self) -> int:
        """Throttle time of the response, in ms."""
        if self._bucket is None or (self._strict and not self.refused):
            return 0
        return round(self._bucket.wait_ms(self._now_ms()))


class Quotas:
    def __init__(self, *, settings: BrokerSettings, clock: Clock, cluster: ClusterMetadata) -> None:
        self._clock = clock
        self._cluster = cluster
        self._rates = Windows(
            samples=settings.quota_window_num,
            window_ms=settings.quota_window_size_seconds * 1000.0,
        )
        mutations = Windows(
            samples=settings.controller_quota_window_num,
            window_ms=settings.controller_quota_window_size_seconds * 1000.0,
        )
        self._table = QuotaTable(rates=self._rates, mutations=mutations)
        self._configs: EntityConfigs = {}
        self.active = False
        """Whether any quota applies to requests."""
        self.timing = False
        """Whether request time is charged."""
        self.counts_connections = False
        """Whether any quota applies to new connections."""
        self.throttles = Throttles()

    def image_changed(self) -> None:
        """Apply the quotas of the newest image."""
        configs = self._cluster.image.entity_configs
        if configs is not self._configs:
            self._configs = configs
            self._table.replace(configs)
            self.active = self._table.bounds_clients
            self.timing = self._table.bounds_time
            self.counts_connections = self._table.bounds_addresses

    # Requests, while `active`

    def producing(self, context: RequestContext, size_bytes: int) -> None:
        """Measure a Produce request, and throttle its connection."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0
        if bounds.produce is not None:
            bounds.produce.record(size_bytes, now_ms)
            wait_ms = bounds.produce.wait_ms(now_ms)
        self._throttle(context, PRODUCER, wait_ms, bounds, now_ms)

    def produced(self, context: RequestContext) -> int:
        """Return the remaining throttle time, in ms, when a Produce request is answered."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0 if bounds.produce is None else bounds.produce.wait_ms(now_ms)
        throttle_ms, _ = self._longer(PRODUCER, wait_ms, bounds, now_ms)
        context.connection.mute(throttle_ms / 1000)
        return throttle_ms

    def before_fetch(self, context: RequestContext) -> int:
        """Return the throttle time in ms of a client before its Fetch reads.

        If it is above 0, the response must be empty.
        """
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0 if bounds.fetch is None else bounds.fetch.wait_ms(now_ms)
        return self._throttle(context, CONSUMER, wait_ms, bounds, now_ms)

    def fetched(self, context: RequestContext, size_bytes: int) -> int:
        """Measure a Fetch response; return the throttle time in ms."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0
        if bounds.fetch is not None:
            bounds.fetch.record(size_bytes, now_ms)
            wait_ms = bounds.fetch.wait_ms(now_ms)
        return self._throttle(context, CONSUMER, wait_ms, bounds, now_ms)

    def fetch_bytes_max(self, context: RequestContext) -> int | None:
        """Return the maximum bytes that quotas allow for one Fetch; None without a quota."""
        meter = self._bounds(context).fetch
        return None if meter is None else int(meter.quota * self._rates.burst_seconds)

    def requested(self, context: RequestContext, throttle_ms: int) -> int:
        """Throttle a request other than Produce and Fetch; return its throttle time in ms.

        `throttle_ms` is the throttle time that its handler computed.
        """
        bounds, now_ms = self._bounds(context), self._now_ms()
        return self._throttle(context, MUTATION, throttle_ms, bounds, now_ms)

    def mutations(self, context: RequestContext, *, strict_from: int) -> MutationQuota:
        """Return the mutation quota of a request; strict from request version `strict_from` on."""
        bucket = self._bounds(context).mutation if self.active else None
        return MutationQuota(bucket, self._now_ms, strict=context.version >= strict_from)

    def mutated(self, quota: MutationQuota) -> int:
        """Count the rejected mutations of a request; return its throttle time in ms."""
        self.throttles.refused += quota.refused
        return quota.throttle_ms

    def _bounds(self, context: RequestContext) -> Bounds:
        if between_brokers(context):
            return UNBOUNDED
        return self._table.bounds(context.connection.principal.name, context.client_id or "")

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _throttle(
        self, context: RequestContext, quota: str, wait_ms: float, bounds: Bounds, now_ms: float
    ) -> int:
        """Throttle a connection for `wait_ms`, or longer if its request-time quota demands it."""
        throttle_ms, quota = self._longer(quota, wait_ms, bounds, now_ms)
        if throttle_ms:
            self.throttles.throttled(quota, throttle_ms)
            context.connection.mute(throttle_ms / 1000)
        return throttle_ms

    def _longer(self, quota: str, wait_ms: float, bounds: Bounds, now_ms: float) -> tuple[int, str]:
        """Return a request's throttle time, and the quota that causes it."""
        if bounds.request is not None:
            of_time = min(bounds.request.wait_ms(now_ms), self._rates.window_ms)
            if of_time > wait_ms:
                quota, wait_ms = REQUEST, of_time
        return round(min(wait_ms, MUTE_SECONDS_MAX * 1000)), quota

    # Time, while `timing`

    def charge(self, context: RequestContext, seconds: float) -> None:
        meter = self._bounds(context).request
        if meter is not None:
            meter.record(seconds * 100, self._now_ms())

    def timed(self, context: RequestContext, work: Coroutine[Any, Any, T]) -> Timed[T]:
        charge = partial(self.charge, context)
        return Timed(work, charge=charge, monotonic=self._clock.monotonic)

    # Connections, while `counts_connections`

    def accepted(self, connection: Connection) -> None:
        """Measure a new connection; pause reading from it if its address is above the quota."""
        meter = self._table.accepts(connection.client_host)
        if meter is None:
            return
        now_ms = self._now_ms()
        meter.record(1, now_ms)
        wait_ms = min(meter.wait_ms(now_ms), ACCEPT_SECONDS_MAX * 1000)
        if wait_ms > 0:
            self.throttles.throttled(CONNECTION, wait_ms)
            connection.mute(wait_ms / 1000)

    def samples(self) -> Iterator[Sample]:
        yield from quota_samples(self.throttles, self._table, self._now_ms())

    def used(self) -> Mapping[tuple[str, str, str], float]:
        """Return the recent use divided by the quota, by quota, user, and client id or address.

        A name is empty if all users or all client ids share the quota. At most `SERIES_MAX` clients
        are returned, those with the highest use.
        """
        quota_samples(self.throttles, self._table, self._now_ms())
        return self.throttles.used
