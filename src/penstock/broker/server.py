"""The broker as one object: listeners, connections, timers, start and graceful stop.

`BrokerServer` wires what it is given and owns the running of it: `start()` starts the control
plane, attaches the store to the loop, binds the listeners, registers the broker, loads the image
and only then accepts connections; `stop()` goes the other way: no more connections, no more
requests, open ones finish within `shutdown.timeout.ms` (long polls at once), then the store is
closed with its clean mark and the control plane is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.buffers import ReceivePool
from penstock.base.errors import PenstockError
from penstock.base.metrics import Registry, Sample
from penstock.base.pause import pause
from penstock.broker import metrics as broker_metrics
from penstock.broker.address_warnings import AddressWarnings
from penstock.broker.connection import Connection
from penstock.broker.coordination.groups import Coordinator
from penstock.broker.dispatch import Dispatcher
from penstock.broker.fetch.operation import FetchHub
from penstock.broker.fetch.sessions import FetchSessions
from penstock.broker.handlers.metadata import MetadataCache
from penstock.broker.handlers.producer_ids import ProducerIds
from penstock.broker.limits import FINISH_LOOK_SECONDS, HELD_UP_SECONDS, SCRATCH_BYTES, TICK_SECONDS
from penstock.broker.listeners import Listener, parse_listeners
from penstock.broker.liveness import Liveness
from penstock.broker.state import BrokerState
from penstock.broker.warmup import warm_up

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.admin.server import AdminServer
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane
    from penstock.diskless.service import DisklessService
    from penstock.storage import LogStore

logger = logging.getLogger(__name__)

_SESSION_ID_BITS: Final = 31


class BrokerServer:
    """A broker; one event loop, one thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        control: ControlPlane,
        store: LogStore,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
        diskless: DisklessService | None = None,
    ) -> None:
        self.settings = settings
        self.state = BrokerState(
            settings=settings,
            control=control,
            store=store,
            clock=clock,
            randomness=randomness,
            registry=registry,
            diskless=diskless,
        )
        self.state.fetch_hub = FetchHub(self.state)
        self.state.fetch_sessions = FetchSessions(
            settings.fetch_sessions_max, lambda: randomness.bits(_SESSION_ID_BITS)
        )
        self.state.metadata_cache = MetadataCache()
        self.state.producer_ids = ProducerIds()
        self.state.coordinator = Coordinator(self.state)
        self._dispatcher = Dispatcher(self.state, self.state.metrics)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}
        self._per_host: dict[str, int] = {}
        self._warnings = AddressWarnings()
        self._bound = ("", 0)
        self._timer: asyncio.TimerHandle | None = None
        self._looked = clock.monotonic()
        self._incarnation = randomness.uuid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admin: AdminServer | None = None
        self._liveness: Liveness | None = None
        self.superseded = asyncio.Event()
        """Set when another process has registered with this broker's id: this one must end."""
        self._noticing: asyncio.Task[None] | None = None
        self._noticed = False

        # What connections see (`connection.FrontDoor`).
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.pool = ReceivePool(settings.queued_max_request_bytes)
        self.frame_bytes_max = settings.socket_request_max_bytes
        self.in_flight_max = settings.queued_max_requests
        self.bytes_in = 0
        self.bytes_out = 0
        self.now: Callable[[], float] = clock.monotonic
        self.request = self._dispatcher.request

    # Addresses

    @property
    def kafka_address(self) -> tuple[str, int]:
        """Host and port of the first listener, as bound."""
        return self._bound

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Host and port of the admin interface, as bound; None when it is turned off."""
        return None if self._admin is None else self._admin.address

    # Start and stop

    async def start(self) -> None:
        """Bind, register, load the image, accept.

        Raises:
            StoreMismatch: the object store is not the control plane's; nothing is registered.
            OSError: a listener's address cannot be bound.
        """
        self._loop = loop = asyncio.get_running_loop()
        state = self.state
        state.control.watch(self._image_noticed, self._marks_noticed)
        await state.control.start()
        state.commits.attach(loop.call_soon)
        state.fetch_hub.attach(loop.call_soon, loop.call_later)
        state.store.attach(loop.call_soon_threadsafe)
        state.store.on_advance = state.fetch_hub.advanced
        state.on_image += [
            state.metadata_cache.clear,
            state.fetch_hub.image_changed,
            state.coordinator.image_changed,
        ]
        state.registry.add(self.samples)
        for listener in parse_listeners(self.settings.listeners):
            self._servers.append(await self._bind(listener))
        host, port = self._servers[0].sockets[0].getsockname()[:2]
        self._bound = (str(host), int(port))
        state.advertised = self._advertised()
        if state.diskless is not None:
            await state.diskless.start(
                image=await state.control.image(),
                incarnation=self._incarnation,
                advanced=state.fetch_hub.advanced,
                awaited=state.fetch_hub.awaited,
            )
        await self._register()
        await state.refresh()
        self._liveness = Liveness(
            state,
            incarnation=self._incarnation,
            register=self._register,
            on_superseded=self.superseded.set,
        )
        self._liveness.start()
        state.coordinator.start()
        if self.settings.sink_staging_directory:
            await self._start_sinks()
        for server in self._servers:
            await server.start_serving()
        self._looked = self.now()
        self._timer = loop.call_later(TICK_SECONDS, self._tick)
        if self.settings.admin_listener:
            await self._start_admin()
        warm_up(loop)

    async def _register(self) -> None:
        host, port = self.state.advertised
        await self.state.control.register_broker(
            broker_id=self.state.node_id,
            host=host,
            port=port,
            rack=self.settings.broker_rack or None,
            incarnation=self._incarnation,
        )

    async def _start_sinks(self) -> None:
        """Take up open intents before the store's upkeep forgets anything that they need."""
        from penstock.broker.sinks import SinkService

        sinks = SinkService(self.state)
        await sinks.start()
        self.state.sinks = sinks

    async def _start_admin(self) -> None:
        from penstock.broker.admin.server import AdminServer

        self._admin = AdminServer(self.state)
        await self._admin.start()

    async def stop(self) -> None:
        """Finish what is open, close the store cleanly, close the control plane. Idempotent."""
        state = self.state
        if state.stopping:
            return
        state.stopping = True
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._admin is not None:
            await self._admin.stop()
        if state.sinks is not None:
            await state.sinks.stop()
        await state.coordinator.stop()
        state.fetch_hub.finish_all()
        for connection in self._connections:
            connection.cancel_handler(waiting_only=True)
        await self._finish_requests()
        await state.switches.stop()
        for connection in list(self._connections):
            connection.close("the broker stops")
        await self._stop_diskless()
        state.store.close()
        if self._liveness is not None:
            await self._liveness.stop()
        try:
            await state.control.unregister_broker(
                broker_id=state.node_id, incarnation=self._incarnation
            )
        except PenstockError as error:
            logger.warning("unregistering broker %d failed: %s", state.node_id, error)
        await state.control.close()

    async def _stop_diskless(self) -> None:
        """After the last request: finish what is being written."""
        if self._noticing is not None:
            self._noticing.cancel()
        if self.state.diskless is not None:
            await self.state.diskless.stop()

    async def _finish_requests(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown_timeout_ms / 1000
        while any(connection.in_flight for connection in self._connections):
            if loop.time() >= deadline:
                logger.warning("requests were still open after shutdown.timeout.ms")
                break
            await pause(FINISH_LOOK_SECONDS)
        for connection in self._connections:
            connection.cancel_handler()

    async def _bind(self, listener: Listener) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: Connection(self, listener.name),
            listener.host or None,
            listener.port,
            backlog=self.settings.socket_listen_backlog_size,
            start_serving=False,
        )

    def _advertised(self) -> tuple[str, int]:
        for listener in parse_listeners(self.settings.advertised_listeners):
            return listener.host, listener.port or self.kafka_address[1]
        configured = next(iter(parse_listeners(self.settings.listeners)))
        host = configured.host
        if host in ("", "0.0.0.0", "::"):  # noqa: S104  (compared, not bound)
            host = "localhost"
        return host, self.kafka_address[1]

    # Connections

    def connected(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        connection.size_buffers(
            self.settings.socket_send_buffer_bytes, self.settings.socket_receive_buffer_bytes
        )
        host = connection.client_host
        count = self._per_host.get(host, 0)
        self._connections[connection] = None
        self._per_host[host] = count + 1
        if len(self._connections) > self.settings.max_connections:
            return self._refuse(connection, "max.connections", self.settings.max_connections)
        if count >= self.settings.max_connections_per_ip:
            limit = self.settings.max_connections_per_ip
            return self._refuse(connection, "max.connections.per.ip", limit)
        return not self.state.stopping

    def _refuse(self, connection: Connection, name: str, limit: int) -> bool:
        self.state.metrics.rejection(name)
        self._warn(connection, name, f"connection refused, {name} = {limit} is reached")
        return False

    def _warn(self, connection: Connection, kind: str, text: str) -> None:
        host = connection.client_host
        left_out = self._warnings.left_out(host, kind, self.now())
        if left_out is not None:
            more = f" ({left_out} more of the kind since the last warning)" if left_out else ""
            logger.warning("%s:%d: %s%s", host, connection.client_port, text, more)

    def disconnected(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        left = self._per_host.get(connection.client_host, 1) - 1
        if left:
            self._per_host[connection.client_host] = left
        else:
            self._per_host.pop(connection.client_host, None)

    def rejected(self, connection: Connection, error: Exception) -> None:
        """Bytes that cannot be trusted; the connection is about to be closed."""
        kind = type(error).__name__
        self.state.metrics.rejection(kind)
        self._warn(connection, kind, str(error))

    # Time

    def _tick(self) -> None:
        if self._loop is None or self.state.stopping:
            return
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        now, looked = self.now(), self._looked
        self._looked = now
        if now - looked < HELD_UP_SECONDS:
            self._end_overdue(now)
        try:
            self.state.store.housekeeping(self.state.clock.now_ms())
        except PenstockError:
            logger.exception("the store's housekeeping failed")

    def _end_overdue(self, now: float) -> None:
        """End what took too long.

        Not to be called after the loop was held up: it has not read then what came in time.
        """
        idle_ms = self.settings.connections_max_idle_ms
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else -1.0
        for connection in list(self._connections):
            reason = connection.overdue(now, idle_seconds)
            if reason is not None:
                self.state.metrics.rejection("slow" if "frame" in reason else "idle")
                connection.close(reason)
        for pending in [item for item in self.state.produce_waiting if item.deadline < now]:
            pending.expire()

    # What other brokers change

    def _image_noticed(self) -> None:
        """Metadata changed elsewhere, or notices may have been missed: look, once at a time."""
        self._noticed = True
        if self._loop is not None and self._noticing is None and not self.state.stopping:
            self._noticing = self._loop.create_task(self._look())

    async def _look(self) -> None:
        state = self.state
        try:
            while self._noticed and not state.stopping:
                self._noticed = False
                try:
                    if state.image is not None:
                        await state.refresh()
                except PenstockError as error:
                    logger.warning("metadata that others changed was not loaded: %s", error)
                if state.diskless is not None:
                    state.diskless.notices_lost()
                state.fetch_hub.image_changed()
        finally:
            self._noticing = None

    def _marks_noticed(self, rows: Sequence[tuple[UUID, int, int, int]]) -> None:
        if self.state.diskless is not None:
            self.state.diskless.others_committed(rows)

    # Metrics

    def samples(self) -> Iterator[Sample]:
        """Everything the broker counts, for the registry."""
        yield Sample(broker_metrics.BYTES_IN, self.bytes_in)
        yield Sample(broker_metrics.BYTES_OUT, self.bytes_out)
        yield Sample(broker_metrics.CONNECTIONS, len(self._connections))
        yield Sample(broker_metrics.RECEIVE_BUFFER_BYTES, self.pool.received_bytes)
        yield Sample(broker_metrics.LONG_POLLS, len(self.state.fetch_hub))
        yield Sample(broker_metrics.FETCH_SESSIONS, len(self.state.fetch_sessions))
        yield from self.state.metrics.samples()
        yield from broker_metrics.log_samples(self.state)
        yield from self.state.store.samples()
        yield from self.state.switches.samples()
        if self.state.diskless is not None:
            yield from self.state.diskless.samples()
