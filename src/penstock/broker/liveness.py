"""A broker's registration: renewed while it lives, given up where it is lost.

Every `broker.heartbeat.interval.ms` the broker renews its registration at the control plane, whose
clock counts. What comes of it:

| the renewal                     | then                                                         |
|---------------------------------|--------------------------------------------------------------|
| succeeds                        | brokers silent for `broker.session.timeout.ms` are expired   |
| fails for the session's length  | others may own its groups: it refuses group requests         |
| finds the broker expired        | it registers anew, in a higher epoch                         |
| finds a newer incarnation       | another process has its id: it stops for good                |

Whatever a broker believes of itself, the control plane's fences decide: writes name the membership
or the incarnation by which they are made. Refusing early spares clients the wait.

After the control plane was away, or slow, nobody expires anybody until one session has passed: the
others could not renew either. That a gap may last half a session, from one renewal to the answer to
the next, leaves them time for one renewal and its retries. Silent is who was renewed a session
before the one that looks, so that a control plane that stands still makes nobody silent.

Any broker expires the others; at worst several try at once, and one of them does it.

Source: Kafka's broker heartbeats (KIP-631), of which these settings have their names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessParts:
    """What a registration touches."""

    settings: BrokerSettings
    node_id: int
    control: ControlPlane
    clock: Clock
    cluster: ClusterMetadata
    coordinator: Coordinator
    transactions: Coordinator
    migrations: TopicMigrations


class Session:
    """How sure a broker may be of its registration; seconds of a monotonic clock."""

    def __init__(self, timeout_seconds: float, now: float) -> None:
        self._timeout = timeout_seconds
        self._renewed = now
        self._unbroken_since = now

    def renewed(self, asked: float, now: float) -> None:
        """A renewal that was asked for at that time has succeeded now."""
        if now - self._renewed > self._timeout / 2:
            self._unbroken_since = now
        self._renewed = max(self._renewed, asked)

    def over(self, now: float) -> bool:
        """Whether others may have taken this broker for dead."""
        return now - self._renewed >= self._timeout

    def may_expire_others(self, now: float) -> bool:
        """Whether those that are silent have had the time to be heard."""
        return not self.over(now) and now - self._unbroken_since >= self._timeout


class Liveness:
    """The shell: beats by the loop's timers, one beat at a time.

    `register` registers the broker's own incarnation; it is called again after an expiry.
    `on_superseded` is called once, when the broker must stop: it is to end the process, since
    its id is another's. `BrokerServer` makes this object after its first registration, calls
    `start`, and `stop` before it unregisters.
    """

    def __init__(
        self,
        parts: LivenessParts,
        *,
        incarnation: UUID,
        register: Callable[[], Awaitable[object]],
        on_superseded: Callable[[], None],
    ) -> None:
        settings = parts.settings
        self._parts = parts
        self._incarnation = incarnation
        self._register = register
        self._on_superseded = on_superseded
        self._timeout_ms = settings.broker_session_timeout_ms
        self._interval_seconds = settings.broker_heartbeat_interval_ms / 1000
        self._monotonic = parts.clock.monotonic
        self._session = Session(self._timeout_ms / 1000, self._monotonic())
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to beat."""
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._tick)

    async def stop(self) -> None:
        """Beat no more. Idempotent."""
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
        """Whether others may have taken this broker for dead."""
        return self._session.over(self._monotonic())

    async def beat(self) -> None:
        """Renew once, and do what comes of it; then look for topics that become diskless.

        A failure of either is logged, and tried at the next beat. So is what takes longer than a
        session: a connection that a network has cut may be waited for in vain when others work.
        """
        await self._in_time("renew itself", self._renew)
        await self._in_time("look for switches", self._parts.migrations.look)

    async def _in_time(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        node_id = self._parts.node_id
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await work()
        except TimeoutError:
            logger.warning("broker %d could not %s in %d ms", node_id, what, self._timeout_ms)
        except PenstockError as error:
            logger.warning("broker %d could not %s: %s", node_id, what, error)

    async def _renew(self) -> None:
        parts, asked = self._parts, self._monotonic()
        try:
            await parts.control.renew_broker(broker_id=parts.node_id, incarnation=self._incarnation)
        except StaleBroker as stale:
            await self._lost(stale, asked)
            return
        self._session.renewed(asked, self._monotonic())
        await self._resume()
        if not self._session.may_expire_others(self._monotonic()):
            return
        expired = await parts.control.expire_brokers(self._timeout_ms, by=parts.node_id)
        if expired:
            logger.warning(
                "brokers %s have not renewed themselves for %d ms", expired, self._timeout_ms
            )
            await parts.cluster.refresh()

    async def _lost(self, stale: StaleBroker, asked: float) -> None:
        parts = self._parts
        self._suspend()
        if stale.registered:
            logger.error("%s: this process stops; two processes must not have one node.id", stale)
            self._stopped = True
            self._on_superseded()
            return
        logger.warning("broker %d was taken for dead, and registers anew", parts.node_id)
        await self._register()
        self._session.renewed(asked, self._monotonic())
        await self._resume()

    async def _resume(self) -> None:
        """Coordinate again, by an image of after the renewal."""
        suspended = [one for one in self._coordinators if one.suspended]
        if suspended:
            await self._parts.cluster.refresh()
        for coordinator in suspended:
            coordinator.resume()

    def _suspend(self) -> None:
        for coordinator in self._coordinators:
            coordinator.suspend()

    @property
    def _coordinators(self) -> tuple[Coordinator, ...]:
        return self._parts.coordinator, self._parts.transactions
