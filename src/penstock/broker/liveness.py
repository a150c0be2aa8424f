"""Liveness of a broker: renews its registration every `broker.heartbeat.interval.ms`.

| result of the renewal                  | action of this broker                                  |
|----------------------------------------|--------------------------------------------------------|
| success                                | expires brokers without a renewal for a session        |
| failures for a whole session           | rejects group and transaction requests, because other  |
|                                        | brokers may coordinate them now                        |
| the registration has expired           | registers again, with a higher epoch                   |
| another process has registered this id | stops this process                                     |

A session is `broker.session.timeout.ms`. The rejection of requests is not needed for correctness:
coordinators' writes carry the cluster epoch or incarnation, and the control plane rejects old ones.
It only returns the error earlier.

If the control plane was unavailable or slow, other brokers could not renew either. A broker then
expires others only after one session of its own renewals. Gaps of up to half a session between
renewals are allowed, for one renewal and its retries. A broker is expired if its last renewal is a
session older than the last renewal of the checking broker. A stalled control plane thus expires no
broker.

Source: Kafka's broker heartbeats (KIP-631) and their settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.control import StaleBroker

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.coordination.coordinator import Coordinator
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.migration import TopicMigrations
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane

logger = logging.getLogger(__name__)


class Session:
    """Times of a registration's renewals, in seconds of a monotonic clock."""

    def __init__(self, timeout_seconds: float, now: float) -> None:
        self._timeout = timeout_seconds
        self._renewed = now
        self._unbroken_since = now

    def renewed(self, asked: float, now: float) -> None:
        """Record that the renewal sent at `asked` has succeeded at `now`."""
        if now - self._renewed > self._timeout / 2:
            self._unbroken_since = now
        self._renewed = max(self._renewed, asked)

    def over(self, now: float) -> bool:
        return now - self._renewed >= self._timeout

    def may_expire_others(self, now: float) -> bool:
        """Return whether this broker has renewed without a gap for a whole session."""
        return not self.over(now) and now - self._unbroken_since >= self._timeout


class Liveness:
    """Periodic renewal of this broker's registration, one at a time.

    `register` registers this broker again after its registration has expired. `on_superseded` is
    called once if another process has registered with the same id; it must end this process.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        clock: Clock,
        cluster: ClusterMetadata,
        coordinator: Coordinator,
        transactions: Coordinator,
        migrations: TopicMigrations,
        incarnation: UUID,
        register: Callable[[], Awaitable[object]],
        on_superseded: Callable[[], None],
    ) -> None:
        self._node_id = settings.node_id
        self._control = control
        self._cluster = cluster
        self._migrations = migrations
        self._coordinators = coordinator, transactions
        self._incarnation = incarnation
        self._register = register
        self._on_superseded = on_superseded
        self._timeout_ms = settings.broker_session_timeout_ms
        self._interval_seconds = settings.broker_heartbeat_interval_ms / 1000
        self._monotonic = clock.monotonic
        self._session = Session(self._timeout_ms / 1000, self._monotonic())
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._tick)

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait([self._beat])

    def _tick(self) -> None:
        if self._stopped:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_seconds, self._tick)
        if self._session.over(self._monotonic()):
            self._suspend()
        if self._beat is None or self._beat.done():
            self._beat = loop.create_task(self.beat())

    def session_over(self) -> bool:
        return self._session.over(self._monotonic())

    async def beat(self) -> None:
        """Renew the registration, then check for topics that become diskless."""
        await self._in_time("renew its registration", self._renew)
        await self._in_time("check for topics that become diskless", self._migrations.look)

    async def _in_time(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        node_id = self._node_id
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await work()
        except TimeoutError:
            logger.warning("broker %d could not %s in %d ms", node_id, what, self._timeout_ms)
        except PenstockError as error:
            logger.warning("broker %d could not %s: %s", node_id, what, error)

    async def _renew(self) -> None:
        asked = self._monotonic()
        try:
            await self._control.renew_broker(broker_id=self._node_id, incarnation=self._incarnation)
        except StaleBroker as stale:
            await self._lost(stale, asked)
            return
        self._session.renewed(asked, self._monotonic())
        await self._resume()
        if not self._session.may_expire_others(self._monotonic()):
            return
        expired = await self._control.expire_brokers(self._timeout_ms, by=self._node_id)
        if expired:
            logger.warning(
                "expired brokers %s, which did not renew their registration for %d ms",
                expired,
                self._timeout_ms,
            )
            await self._cluster.refresh()

    async def _lost(self, stale: StaleBroker, asked: float) -> None:
        self._suspend()
        if stale.registered:
            logger.error("%s; stopping this process: node.id must be unique in the cluster", stale)
            self._stopped = True
            self._on_superseded()
            return
        logger.warning(
            "the registration of broker %d had expired; registering again", self._node_id
        )
        await self._register()
        self._session.renewed(asked, self._monotonic())
        await self._resume()

    async def _resume(self) -> None:
        suspended = [coordinator for coordinator in self._coordinators if coordinator.suspended]
        if suspended:
            await self._cluster.refresh()
        for coordinator in suspended:
            coordinator.resume()

    def _suspend(self) -> None:
        for coordinator in self._coordinators:
            coordinator.suspend()
