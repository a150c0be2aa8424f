"""Broker server: listeners, connections, timers, start and graceful stop.

`start()` starts the control plane, attaches the store, binds the listeners, registers the broker,
loads the metadata image and then accepts connections. `stop()` hands over leaderships within
`shutdown.timeout.ms`, and stops accepting connections. It then finishes open requests within
another `shutdown.timeout.ms` (long polls immediately), marks the store as cleanly closed, and
closes the control plane.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from penstock.base.buffers import ReceivePool
from penstock.base.errors import PenstockError
from penstock.base.metrics import Registry, Sample
from penstock.base.pause import pause
from penstock.broker.assembly import Assembly
from penstock.broker.dispatch import Dispatcher
from penstock.broker.groups.runtime.runtime import HELD_UP_SECONDS
from penstock.broker.liveness import Liveness
from penstock.broker.net.connection import AddressWarnings, Connection
from penstock.broker.net.listeners import (
    REPLICATION,
    Address,
    Listener,
    advertised,
    parse_listeners,
)
from penstock.broker.net.security_settings import Security
from penstock.broker.requests.metrics import log_samples
from penstock.broker.table import Handlers
from penstock.broker.topics.audit_topic import AuditTopic
from penstock.control.access import bindings_of
from penstock.control.plane import cluster_secret
from penstock.replication.link_transport import LinkServer, LinkTransport
from penstock.security import PERMISSIVE, AclAuthoriser
from penstock.security.addresses import counted
from penstock.security.audit import NO_AUDIT, Audit
from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder

if TYPE_CHECKING:
    import ssl

    from penstock.base.otlp import OtlpExport
    from penstock.base.system import Clock, Randomness
    from penstock.broker.admin_app import ConsoleFactory
    from penstock.broker.admin_server import AdminServer
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.security import SecurityService
    from penstock.broker.requests.schema_ids import SchemaIds
    from penstock.control import ControlPlane
    from penstock.control.values.diskless import Watermarks
    from penstock.diskless.topics.service import DisklessService
    from penstock.partitions.tiering import TierService
    from penstock.security import Authoriser
    from penstock.security.files import Reloading
    from penstock.security.listeners.files import TlsContexts
    from penstock.storage import LogStore


logger = logging.getLogger(__name__)

USUAL: Final[dict[str, tuple[int, ...]]] = {
    "ApiVersions": (0, 3, 4),
    "Metadata": (12, 13),
    "FindCoordinator": (2, 6),
    "InitProducerId": (4,),
    "ListOffsets": (7,),
    "JoinGroup": (9,),
    "SyncGroup": (5,),
    "Heartbeat": (4,),
    "OffsetCommit": (9,),
    "OffsetFetch": (9,),
    "LeaveGroup": (5,),
}


def warm_up(loop: asyncio.AbstractEventLoop) -> None:
    """Load the codecs of usual requests in the background, so that first requests are not slow."""
    _step(loop, _steps())


def _steps() -> Iterator[tuple[str, int]]:
    for name, versions in USUAL.items():
        for version in versions:
            if BY_NAME[name].serves(version):
                yield name, version


def _step(loop: asyncio.AbstractEventLoop, steps: Iterator[tuple[str, int]]) -> None:
    following = next(steps, None)
    if following is None or loop.is_closed():
        return
    name, version = following
    try:
        decoder(name, version, "request")
        encoder(name, version, "response")
    except PenstockError:
        logger.exception("could not load the schema of %s version %d", name, version)
    loop.call_later(0.001, _step, loop, steps)


_LINKS_BACKLOG: Final = 128


class Server(LinkServer, Protocol):
    """Listening socket of asyncio, which accepts connections after `start_serving`."""

    async def start_serving(self) -> None: ...


async def bind_all(
    listeners: Sequence[Listener],
    security_service: SecurityService,
    connection: Callable[[str], Connection],
    *,
    backlog: int,
    bound: dict[str, Address],
) -> list[Server]:
    """Bind the listeners without accepting connections yet; raises OSError.

    `connection` constructs the protocol of a connection by its listener's name. The bound addresses
    are added to `bound`.
    """
    loop = asyncio.get_running_loop()
    servers: list[Server] = []
    try:
        for listener in listeners:
            name, host, port = listener.name, listener.host or None, listener.port

            def make(name: str = name) -> Connection:
                return connection(name)

            contexts = security_service.tls_of(name)
            if contexts is None:
                server: Server = await loop.create_server(
                    make, host, port, backlog=backlog, start_serving=False
                )
            else:
                server = made = security_service.listener_group.tls_server(name, contexts, make)
                await made.bind(host, port, backlog)
            servers.append(server)
            address = server.sockets[0].getsockname()
            bound.setdefault(name, (str(address[0]), int(address[1])))
    except OSError:
        for server in servers:
            server.close()
        raise
    return servers


class _TlsLinks(LinkTransport):
    """Replication links over TLS, with the certificate of the inter-broker listener."""

    def __init__(self, security_service: SecurityService, contexts: Reloading[TlsContexts]) -> None:
        super().__init__()
        self._security = security_service
        self._contexts = contexts

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._contexts.current.client

    async def listen(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Server:
        server = self._security.listener_group.tls_server(REPLICATION, self._contexts, protocol)
        await server.bind(host, port, _LINKS_BACKLOG)
        await server.start_serving()
        return server


def link_transport(security_service: SecurityService) -> LinkTransport:
    """Return the transport of replication links: TLS if the inter-broker listener has TLS."""
    contexts = security_service.tls_of(security_service.between_brokers)
    if contexts is not None:
        return _TlsLinks(security_service, contexts)
    return LinkTransport(
        proven=any(materials.listener.secured for materials in security_service.listeners.values())
    )


SCRATCH_BYTES: Final = 256 << 10
"""Size of the receive buffer that all connections share for complete frames."""
FINISH_LOOK_SECONDS: Final = 0.005
"""Interval at which a stopping broker checks whether all requests are answered."""


class BrokerServer:
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
        tiers: TierService | None = None,
        authoriser: Authoriser = PERMISSIVE,
        audit: Audit = NO_AUDIT,
        audit_topic: AuditTopic | None = None,
        security: Security | None = None,
        front_secret: bytes = b"",
        schema_ids: SchemaIds | None = None,
        console: ConsoleFactory | None = None,
        export: OtlpExport | None = None,
    ) -> None:
        """`audit_topic` is a sink of `audit`; requests of a front end carry the `front_secret`.

        `schema_ids` are those of the schema registry, if this broker has one. `console` creates the
        pages of the admin interface when they are first requested.
        """
        self.assembly = assembly = Assembly(
            settings,
            control=control,
            store=store,
            clock=clock,
            randomness=randomness,
            registry=registry,
            diskless=diskless,
            tiers=tiers,
            authoriser=authoriser,
            audit=audit,
            security=security or Security(),
            front_secret=front_secret,
            owner=self,
            on_set_back=self._set_back,
            schema_ids=schema_ids,
            tracer=None if export is None else export.tracer,
        )
        self._export = export
        self._audit_topic = audit_topic
        self._console = console
        self._take(assembly)
        self._make_connections()
        self._incarnation = randomness.uuid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admin: AdminServer | None = None
        self._liveness: Liveness | None = None
        self.superseded = asyncio.Event()
        """Set when this process must end: another process has registered with the same broker id,
        or the database was replaced by an older copy."""
        self.ended_by: PenstockError | None = None
        """Error that ends the process; None if another process has the same broker id."""
        self._entities: object = None
        """Entity configurations of the metadata image whose ACLs are in effect."""
        self._make_dispatcher()

    def _make_connections(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._looked = self.clock.monotonic()
        self._noticing: asyncio.Task[None] | None = None
        self._noticed = False
        self._ending = False
        self._servers: list[Server] = []
        self._connections: dict[Connection, None] = {}
        self._per_host: dict[str, int] = {}
        self._warnings = AddressWarnings()
        self.bound: dict[str, tuple[str, int]] = {}
        """Bound host and port by listener name."""

    def _make_dispatcher(self) -> None:
        settings = self.settings
        self._dispatcher = Dispatcher(
            Handlers(self.assembly),
            metrics=self.metrics,
            clock=self.clock,
            authoriser=self.authoriser,
            quotas=self.quotas,
            audit=self.audit,
            partitions=self.partitions,
            commits=self.commits,
        )
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.pool = ReceivePool(settings.queued_max_request_bytes)
        self.frame_bytes_max = settings.socket_request_max_bytes
        self.in_flight_max = settings.queued_max_requests
        self.bytes_in = 0
        self.bytes_out = 0
        self.checks_requests = False
        self.now: Callable[[], float] = self.clock.monotonic
        self.request: Callable[..., object] = self._dispatcher.request

    def _take(self, assembly: Assembly) -> None:
        """Take the services that the server itself starts, stops or uses."""
        self.settings = assembly.settings
        self.node_id = assembly.node_id
        self.control = assembly.control
        self.store = assembly.store
        self.clock = assembly.clock
        self.randomness = assembly.randomness
        self.registry = assembly.registry
        self.diskless = assembly.diskless
        self.tiers = assembly.tiers
        self.authoriser = assembly.authoriser
        self.audit = assembly.audit
        self.stopping = assembly.stopping
        self.security_service = assembly.security_service
        self.identity = assembly.identity
        self.metrics = assembly.metrics
        self.commits = assembly.commits
        self.opener = assembly.opener
        self.fetch_hub = assembly.fetch_hub
        self.fetch_sessions = assembly.fetch_sessions
        self.metadata_cache = assembly.metadata_cache
        self.produce_waiting = assembly.produce_waiting
        self.seen = assembly.seen
        self.replicas = assembly.replicas
        self.partitions = assembly.partitions
        self.cluster = assembly.cluster
        self.quotas = assembly.quotas
        self.telemetry = assembly.telemetry
        self.topic_admin = assembly.topic_admin
        self.migrations = assembly.migrations
        self.producer_ids = assembly.producer_ids
        self.coordinator = assembly.coordinator
        self.peers = assembly.peers
        self.transactions = assembly.transactions
        self.transaction_link = assembly.transaction_link
        self.share = assembly.share
        self.sinks = assembly.sinks

    # Addresses

    @property
    def kafka_address(self) -> tuple[str, int]:
        return next(iter(self.bound.values()), ("", 0))

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Bound host and port of the admin interface; None when it is turned off."""
        return None if self._admin is None else self._admin.address

    async def start(self) -> None:
        """Bind the listeners, register the broker, load the image, and accept connections.

        Raises:
            DatabaseSetBack: the database is another one than this broker used, or an older copy.
            StoreMismatch: the object store belongs to another control plane. The broker is not
                registered.
            OSError: a listener's address cannot be bound.
        """
        self._loop = loop = asyncio.get_running_loop()
        self.control.watch(self._image_noticed, self._watermarks_noticed)
        await self.control.start()
        self.commits.attach(loop.call_soon)
        self.fetch_hub.attach(loop.call_soon, loop.call_later)
        self.store.attach(loop.call_soon_threadsafe)
        self.store.on_advance = self.fetch_hub.advanced
        self.cluster.on_image += [
            self._image_changed,
            self.telemetry.image_changed,
            self.metadata_cache.clear,
            self.fetch_hub.image_changed,
            self.coordinator.image_changed,
            self.share.image_changed,
            self.transactions.image_changed,
            self.assembly.links_changed,
        ]
        self.registry.add(self.samples)
        await self._listen()
        if self.diskless is not None:
            await self.diskless.start(
                image=await self.control.image(),
                incarnation=self._incarnation,
                advanced=self.fetch_hub.advanced,
                awaited=self.fetch_hub.awaited,
            )
        await self._register()
        await self.cluster.refresh()
        self._start_liveness()
        if self.tiers is not None:
            self.tiers.start(self.fetch_hub.advanced, self.store.sweep)
        self.coordinator.start()
        self.transactions.start()
        if self.sinks is not None:  # before the store's housekeeping deletes the data of intents
            await self.sinks.start()
        for server in self._servers:
            await server.start_serving()
        self._looked = self.now()
        self._timer = loop.call_later(self.store.housekeeping_seconds, self._tick)
        if self.settings.admin_listener:
            await self._start_admin()
        if self._export is not None:
            self._export.start(self.assembly.group_samples)
        if self._audit_topic is not None:
            self._audit_topic.start(
                node_id=self.node_id,
                cluster=self.cluster,
                topic_admin=self.topic_admin,
                identity=self.identity,
            )
        warm_up(loop)

    def _start_liveness(self) -> None:
        liveness = self._liveness = Liveness(
            settings=self.settings,
            control=self.control,
            clock=self.clock,
            cluster=self.cluster,
            coordinator=self.coordinator,
            transactions=self.transactions,
            migrations=self.migrations,
            incarnation=self._incarnation,
            register=self._register,
            on_superseded=self.superseded.set,
        )
        liveness.start()
        if self.replicas is not None:
            over = liveness.session_over
            self.replicas.replication.may_be_gone = self.partitions.may_be_gone = over

    async def _register(self) -> None:
        endpoints = [(name, host, port) for name, (host, port) in self.identity.endpoints.items()]
        _, host, port = endpoints[0]
        if self.replicas is not None:
            endpoints.append(self.replicas.endpoint)
        await self.seen.before_registering()
        registered = await self.control.register_broker(
            broker_id=self.node_id,
            host=host,
            port=port,
            rack=self.settings.broker_rack or None,
            incarnation=self._incarnation,
            endpoints=endpoints,
            roles=self.settings.broker_roles,
        )
        await self.seen.registered(registered)
        self.producer_ids.reserve()
        if self.replicas is not None:
            self.replicas.registered(registered.epoch)

    async def _start_admin(self) -> None:
        from penstock.broker.admin_server import AdminServer

        self._admin = AdminServer(self.settings, self.assembly, self._console)
        _, self.identity.admin_port = await self._admin.start()

    async def _stop_admin(self) -> None:
        if self._admin is not None:
            await self._admin.stop()
        await self.assembly.readiness.stop()
        await self.assembly.stop_lag()

    async def stop(self) -> None:
        """Hand over leaderships, finish open requests, and close all services. Idempotent."""
        if self._ending:
            return
        self._ending = True
        await self._hand_over()
        self.stopping.set()
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._stop_admin()
        await self.assembly.stop_links()
        if self.sinks is not None:
            await self.sinks.stop()
        await self.coordinator.stop()
        await self.transactions.stop()
        await self.transaction_link.stop()
        await self.peers.close()
        await self.assembly.marker_peers.close()
        self.fetch_hub.finish_all()
        for connection in self._connections:
            connection.cancel_handler(waiting_only=True)
        await self._finish_requests()
        await self.share.stop()
        await self.migrations.stop()
        for connection in list(self._connections):
            connection.close("the broker is stopping")
        if self._export is not None:
            await self._export.stop()
        await self.security_service.close()
        self.opener.close()
        await self._stop_writing()
        self.store.close()
        if self._liveness is not None:
            await self._liveness.stop()
        try:
            await self.control.unregister_broker(
                broker_id=self.node_id, incarnation=self._incarnation
            )
        except PenstockError as error:
            logger.warning("could not unregister broker %d: %s", self.node_id, error)
        await self.control.close()
        self.audit.close()

    async def _hand_over(self) -> None:
        """Hand over leaderships and write waiting audit events while all services still run."""
        if self.replicas is not None:
            await self.replicas.hand_over_all(self.settings.shutdown_timeout_ms / 1000)
        if self._audit_topic is not None:
            await self._audit_topic.stop()

    async def _stop_writing(self) -> None:
        await self.seen.close()
        await self.producer_ids.stop()
        if self._noticing is not None:
            self._noticing.cancel()
        if self.tiers is not None:
            await self.tiers.stop()
        if self.diskless is not None:
            await self.diskless.stop()
        if self.replicas is not None:
            await self.replicas.close()

    async def _finish_requests(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown_timeout_ms / 1000
        while any(connection.in_flight for connection in self._connections):
            if loop.time() >= deadline:
                logger.warning(
                    "closing connections with open requests: shutdown.timeout.ms has passed"
                )
                break
            await pause(FINISH_LOOK_SECONDS)
        for connection in self._connections:
            connection.cancel_handler()

    async def _listen(self) -> None:
        settings = self.settings
        listeners = parse_listeners(settings.listeners, settings.listener_security_protocol_map)
        secret = await cluster_secret(self.control, self.randomness)
        await self.security_service.open(listeners, secret)
        self._servers = await bind_all(
            listeners,
            self.security_service,
            lambda name: Connection(self.security_service.owner_of(name), name),
            backlog=settings.socket_listen_backlog_size,
            bound=self.bound,
        )
        addresses = advertised(settings.advertised_listeners, listeners, self.bound)
        self.identity.endpoints = addresses
        self.identity.listener = self.security_service.between_brokers
        if self.replicas is not None:
            await self.replicas.listen(
                self._incarnation, secret, link_transport(self.security_service)
            )

    def _image_changed(self) -> None:
        entities = self.cluster.image.entity_configs
        if isinstance(self.authoriser, AclAuthoriser) and entities is not self._entities:
            self.authoriser.replace(bindings_of(self.cluster.image))
        self._entities = entities
        self.quotas.image_changed()
        timing, dispatcher = self.quotas.timing, self._dispatcher
        self.request = dispatcher.timed_request if timing else dispatcher.request

    # Connections

    def connected(self, connection: Connection) -> bool:
        """Register a new connection; return whether it is accepted."""
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
        if self.quotas.counts_connections:
            self.quotas.accepted(connection)
        return not self.stopping.is_set()

    def _refuse(self, connection: Connection, name: str, limit: int) -> bool:
        self.metrics.rejection(name)
        self._warn(connection, name, f"connection rejected: {name} = {limit} is reached")
        return False

    def _warn(self, connection: Connection, kind: str, text: str) -> None:
        host = connection.client_host
        left_out = self._warnings.left_out(counted(host), kind, self.now())
        if left_out is not None:
            more = (
                f" ({left_out} similar warnings suppressed since the last one)" if left_out else ""
            )
            logger.warning("%s:%d: %s%s", host, connection.client_port, text, more)

    def disconnected(self, connection: Connection) -> None:
        self.share.disconnected(connection)
        self.fetch_sessions.forget(connection)
        self._connections.pop(connection, None)
        left = self._per_host.get(connection.client_host, 1) - 1
        if left:
            self._per_host[connection.client_host] = left
        else:
            self._per_host.pop(connection.client_host, None)

    def rejected(self, connection: Connection, error: Exception) -> None:
        """Count and log the error for which a connection is about to be closed."""
        kind = type(error).__name__
        self.metrics.rejection(kind)
        self._warn(connection, kind, str(error))

    # Time

    def _tick(self) -> None:
        if self._loop is None or self.stopping.is_set():
            return
        self._timer = self._loop.call_later(self.store.housekeeping_seconds, self._tick)
        now, looked = self.now(), self._looked
        self._looked = now
        if now - looked < HELD_UP_SECONDS:
            self._end_overdue(now)
        try:
            self.store.housekeeping(self.clock.now_ms())
        except PenstockError:
            logger.exception("the store's housekeeping failed")

    def _end_overdue(self, now: float) -> None:
        """Close slow and idle connections, and answer Produce requests that have timed out.

        The caller skips this after the event loop was blocked, because data that has arrived in the
        meantime may still be unread.
        """
        idle_ms = self.settings.connections_max_idle_ms
        idle_seconds = idle_ms / 1000 if idle_ms >= 0 else -1.0
        self.security_service.end_overdue(now)
        for connection in list(self._connections):
            reason = connection.overdue(now, idle_seconds)
            if reason is not None:
                self.metrics.rejection("slow" if "frame" in reason else "idle")
                connection.close(reason)
        for pending in [item for item in self.produce_waiting if item.deadline < now]:
            pending.expire()

    # What other brokers change

    def _set_back(self, error: PenstockError) -> None:
        self.ended_by = error
        self.superseded.set()

    def _image_noticed(self) -> None:
        """Load changed metadata after a notification of the control plane, one load at a time."""
        self._noticed = True
        if self._loop is not None and self._noticing is None and not self.stopping.is_set():
            self._noticing = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            while self._noticed and not self.stopping.is_set():
                self._noticed = False
                try:
                    if self.cluster.loaded is not None:
                        await self.cluster.refresh()
                except PenstockError as error:
                    logger.warning(
                        "could not load changed metadata, retrying at the next change: %s", error
                    )
                if self.diskless is not None:
                    self.diskless.notices_lost()
                self.fetch_hub.image_changed()
        finally:
            self._noticing = None

    def _watermarks_noticed(self, rows: Sequence[tuple[UUID, int, Watermarks]]) -> None:
        if self.diskless is not None:
            self.diskless.others_committed(rows)

    def samples(self) -> Iterator[Sample]:
        metrics = self.metrics
        metrics.received_bytes, metrics.sent_bytes = self.bytes_in, self.bytes_out
        metrics.connections = len(self._connections)
        metrics.muted = sum([connection.muted for connection in self._connections])
        metrics.receive_buffer_bytes = self.pool.received_bytes
        metrics.long_polls = len(self.fetch_hub)
        metrics.fetch_sessions = len(self.fetch_sessions)
        yield from metrics.samples()
        yield from self.quotas.samples()
        yield from self.security_service.samples()
        yield from self.telemetry.samples()
        yield from log_samples(self.cluster, self.partitions)
        yield from self.assembly.status.samples()
        yield from self.store.samples()
        yield from self.migrations.samples()
        yield from self.share.samples()
        yield from self.transactions.samples()
        if self.diskless is not None:
            yield from self.diskless.samples()
        if self.tiers is not None:
            yield from self.tiers.samples()
