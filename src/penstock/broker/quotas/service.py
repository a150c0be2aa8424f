"""What the request path asks of quotas, and has done for them.

`active` is False while no quota bounds requests: then nothing else is to be asked, and nothing is
counted. What is above its quota is answered with the time to wait, and its connection is not read
for as long; nothing sleeps, and what was read is not thrown away. Producers are counted when their
requests come, as one may send many before it is answered. Fetches are looked at before they read:
one of a client above its quota is answered empty.

The time of requests is that of the event loop's turns from a request's frame on, and of the turns
of handlers that wait in between; 100 percent is one loop. What a turn does for all requests
together, as syncing the log, is nobody's. It is looked at before it is added to, so a request
waits for those before it.

What brokers ask of each other bounds nobody: their markers and questions about transactions go on
while clients wait.

It belongs to the event-loop thread.

Source: Kafka's `ClientQuotaManager`, `ClientRequestQuotaManager`, `ControllerMutationQuotaManager`,
`ConnectionQuotas`; KIP-13, KIP-124, KIP-219, KIP-599, KIP-612.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from penstock.base.errors import RetriableError
from penstock.broker.quotas.keys import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST
from penstock.broker.quotas.limits import ACCEPT_SECONDS_MAX, MUTE_SECONDS_MAX
from penstock.broker.quotas.metrics import Throttles, quota_samples
from penstock.broker.quotas.rates import TokenBucket, Windows
from penstock.broker.quotas.table import UNBOUNDED, Bounds, QuotaTable
from penstock.broker.quotas.timing import Timed

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.base.metrics import Sample
    from penstock.base.system import Clock
    from penstock.broker.connection import Connection, RequestContext
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.settings import BrokerSettings
    from penstock.control.values import EntityConfigs

T = TypeVar("T")


class ThrottlingQuotaExceeded(RetriableError):
    """Too many partitions are created and deleted; the answer says when to come again."""

    code: ClassVar[str] = "throttling_quota_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaParts:
    """What quotas use."""

    settings: BrokerSettings
    clock: Clock
    cluster: ClusterMetadata


def between_brokers(context: RequestContext) -> bool:
    """Whether only other brokers send such a request: none of it is a client's."""
    return any(
        check.scope == "whole" and check.operation == "cluster_action"
        for check in context.api.checks
        if check.asked_of(context.version)
    )


class MutationQuota:
    """The quota of one request that creates or deletes partitions.

    A `strict` one refuses what comes while the bucket is overdrawn; else it is done, and the
    client waits afterwards.
    """

    __slots__ = ("_bucket", "_now_ms", "_strict", "refused")

    def __init__(
        self, bucket: TokenBucket | None, now_ms: Callable[[], float], *, strict: bool
    ) -> None:
        self._bucket, self._now_ms, self._strict = bucket, now_ms, strict
        self.refused = 0

    def take(self, partitions: int) -> None:
        """Count so many partitions.

        Raises:
            ThrottlingQuotaExceeded: they have to wait.
        """
        bucket, now_ms = self._bucket, self._now_ms()
        if bucket is None:
            return
        if self._strict:
            wait_ms = round(bucket.wait_ms(now_ms))
            if wait_ms > 0:
                self.refused += 1
                raise ThrottlingQuotaExceeded(
                    f"{MUTATION} = {bucket.quota:g} is used up; come again in {wait_ms} ms"
                )
        bucket.record(partitions, now_ms)

    @property
    def throttle_ms(self) -> int:
        """How long the client is to wait after the answer."""
        if self._bucket is None or (self._strict and not self.refused):
            return 0
        return round(self._bucket.wait_ms(self._now_ms()))


class Quotas:
    """The quotas of a broker's clients."""

    def __init__(self, parts: QuotaParts) -> None:
        settings = parts.settings
        self._clock = parts.clock
        self._cluster = parts.cluster
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
        """Whether any quota bounds requests."""
        self.timing = False
        """Whether the time of requests is to be charged."""
        self.counts_connections = False
        """Whether any quota bounds new connections."""
        self.throttles = Throttles()

    def image_changed(self) -> None:
        """Go by the quotas of the newest image."""
        configs = self._cluster.image.entity_configs
        if configs is not self._configs:
            self._configs = configs
            self._table.replace(configs)
            self.active = self._table.bounds_clients
            self.timing = self._table.bounds_time
            self.counts_connections = self._table.bounds_addresses

    # Requests, while `active`

    def producing(self, context: RequestContext, size_bytes: int) -> None:
        """Count a Produce request; those behind it on its connection are read when it may be."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0
        if bounds.produce is not None:
            bounds.produce.record(size_bytes, now_ms)
            wait_ms = bounds.produce.wait_ms(now_ms)
        self._throttle(context, PRODUCER, wait_ms, bounds, now_ms)

    def produced(self, context: RequestContext) -> int:
        """What is left to wait, in ms, when a Produce request is answered."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0 if bounds.produce is None else bounds.produce.wait_ms(now_ms)
        throttle_ms, _ = self._longer(PRODUCER, wait_ms, bounds, now_ms)
        context.connection.mute(throttle_ms / 1000)
        return throttle_ms

    def before_fetch(self, context: RequestContext) -> int:
        """The time to wait, in ms, of one that must not read now; else 0."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0 if bounds.fetch is None else bounds.fetch.wait_ms(now_ms)
        return self._throttle(context, CONSUMER, wait_ms, bounds, now_ms)

    def fetched(self, context: RequestContext, size_bytes: int) -> int:
        """Count a Fetch answer; the time to wait, in ms."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        wait_ms = 0.0
        if bounds.fetch is not None:
            bounds.fetch.record(size_bytes, now_ms)
            wait_ms = bounds.fetch.wait_ms(now_ms)
        return self._throttle(context, CONSUMER, wait_ms, bounds, now_ms)

    def fetch_bytes_max(self, context: RequestContext) -> int | None:
        """The most that one Fetch may answer, as far as quotas say: all of the window's bytes."""
        meter = self._bounds(context).fetch
        return None if meter is None else int(meter.quota * self._rates.burst_seconds)

    def requested(self, context: RequestContext, throttle_ms: int) -> int:
        """Throttle any other request that is answered; its handler asks for `throttle_ms`."""
        bounds, now_ms = self._bounds(context), self._now_ms()
        return self._throttle(context, MUTATION, throttle_ms, bounds, now_ms)

    def mutations(self, context: RequestContext, *, strict_from: int) -> MutationQuota:
        """That of a request; from this version on it is refused what is too much."""
        bucket = self._bounds(context).mutation if self.active else None
        return MutationQuota(bucket, self._now_ms, strict=context.version >= strict_from)

    def mutated(self, quota: MutationQuota) -> int:
        """The time to wait, in ms, that a handler says in its answer."""
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
        """Have the connection not read for the longer of this wait and that of its time."""
        throttle_ms, quota = self._longer(quota, wait_ms, bounds, now_ms)
        if throttle_ms:
            self.throttles.throttled(quota, throttle_ms)
            context.connection.mute(throttle_ms / 1000)
        return throttle_ms

    def _longer(self, quota: str, wait_ms: float, bounds: Bounds, now_ms: float) -> tuple[int, str]:
        """How long a request has to wait, and because of what."""
        if bounds.request is not None:
            of_time = min(bounds.request.wait_ms(now_ms), self._rates.window_ms)
            if of_time > wait_ms:
                quota, wait_ms = REQUEST, of_time
        return round(min(wait_ms, MUTE_SECONDS_MAX * 1000)), quota

    # Time, while `timing`

    def charge(self, context: RequestContext, seconds: float) -> None:
        """Count time of the event loop."""
        meter = self._bounds(context).request
        if meter is not None:
            meter.record(seconds * 100, self._now_ms())

    def timed(self, context: RequestContext, work: Coroutine[Any, Any, T]) -> Timed[T]:
        """What does the work of a request and charges the turns that it takes."""
        charge = partial(self.charge, context)
        return Timed(work, charge=charge, monotonic=self._clock.monotonic)

    # Connections, while `counts_connections`

    def accepted(self, connection: Connection) -> None:
        """Count a new connection; it is not read as long as its address has too many."""
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
