"""Assembly of a broker: constructs its services in order, each with the services that it uses.

`BrokerServer` starts and stops them; `broker/table.py` and `broker/admin_app.py` construct handlers
from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.broker.fetch.operation import FetchHub
from penstock.broker.fetch.sessions import FetchSessions
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.handlers.metadata import MetadataCache
from penstock.broker.liveness import DatabaseWatch
from penstock.broker.metadata import ClusterMetadata
from penstock.broker.migration import MigrationContext, TopicMigrations
from penstock.broker.net.listeners import Identity
from penstock.broker.net.peers import Peers
from penstock.broker.net.security import SecurityService
from penstock.broker.partitions.registry import PartitionRegistry
from penstock.broker.quotas.service import Quotas
from penstock.broker.requests.metrics import RequestMetrics
from penstock.broker.requests.opening import Opener
from penstock.broker.requests.schema_ids import SchemaChecks
from penstock.broker.share.service import ShareService
from penstock.broker.telemetry.service import Telemetry
from penstock.broker.topics.admin import TopicAdmin
from penstock.broker.transactions.coordinator import ProducerIds, TransactionCoordinator
from penstock.broker.transactions.link import EndOffsets, TransactionLink, Verifier
from penstock.control.access import ClusterUsers
from penstock.partitions import GroupCommits

if TYPE_CHECKING:
    from penstock.base.errors import PenstockError
    from penstock.base.metrics import Registry, Sample
    from penstock.base.system import Clock, Randomness
    from penstock.base.traces import Tracer
    from penstock.broker.admin.health import Readiness
    from penstock.broker.admin.status import BrokerStatus
    from penstock.broker.batch_commits import SinkService
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.lag.service import LagService
    from penstock.broker.net.connection import ConnectionOwner, Expiring
    from penstock.broker.net.security_settings import Security
    from penstock.broker.partitions.replicas import Replicas
    from penstock.broker.requests.schema_ids import SchemaIds
    from penstock.broker.requests.tracing import BrokerTraces
    from penstock.control import ControlPlane
    from penstock.control.delegation import ClusterTokens
    from penstock.diskless.topics.service import DisklessService
    from penstock.link.service import LinkService
    from penstock.partitions.tiering import TierService
    from penstock.security import Authoriser
    from penstock.security.audit import Audit
    from penstock.storage import LogStore

_SESSION_ID_BITS: Final = 31


class Assembly:
    """Services of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        control: ControlPlane,
        store: LogStore,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
        diskless: DisklessService | None,
        tiers: TierService | None,
        authoriser: Authoriser,
        audit: Audit,
        security: Security,
        front_secret: bytes,
        owner: ConnectionOwner,
        on_set_back: Callable[[PenstockError], None],
        schema_ids: SchemaIds | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`owner` handles authenticated connections; `schema_ids` are those of a schema registry.

        `on_set_back` is called if the database was replaced by an older copy (`DatabaseWatch`).
        """
        self.settings = settings
        self.node_id = settings.node_id
        self.control = control
        self.store = store
        self.clock = clock
        self.randomness = randomness
        self.registry = registry
        self.diskless = diskless
        self.tiers = tiers
        self.authoriser = authoriser
        self.audit = audit
        self.front_secret = front_secret
        self.security = security
        self.owner = owner
        self.traces = self._make_traces(tracer)
        self.stopping = asyncio.Event()
        self.security_service = SecurityService(
            security=security,
            clock=clock,
            randomness=randomness,
            audit=audit,
            cluster_users=ClusterUsers(lambda: self.cluster.loaded),
            owner=owner,
            tokens=self._tokens(),
        )
        self.identity = Identity(self.node_id, self.security_service.as_client)
        self.metrics = RequestMetrics()
        self.commits = GroupCommits(store)
        self.opener = Opener()
        self.schema_checks = SchemaChecks(schema_ids)
        self._make_fetches()
        self._make_metadata(on_set_back)
        self._make_topics()
        self._make_coordinators()
        self.sinks = self._sink_service()
        """Sink service; None without a directory for staged blobs."""

    def _make_traces(self, tracer: Tracer | None) -> BrokerTraces | None:
        if tracer is None:
            return None
        from penstock.broker.requests.tracing import BrokerTraces

        return BrokerTraces(tracer, node_id=self.node_id, clock=self.clock)

    def _tokens(self) -> ClusterTokens | None:
        if not self.security.settings.delegation_token_secret_key:
            return None
        from penstock.control.delegation import ClusterTokens

        return ClusterTokens(lambda: self.cluster.loaded, self.clock.now_ms)

    def _make_fetches(self) -> None:
        self.fetch_hub = FetchHub()
        self.metadata_cache = MetadataCache()
        self.produce_waiting: dict[Expiring, None] = {}
        self.fetch_sessions = FetchSessions(
            self.settings.fetch_sessions_max,
            lambda: self.randomness.bits(_SESSION_ID_BITS),
            self.fetch_hub.watched,
        )

    def _make_metadata(self, on_set_back: Callable[[PenstockError], None]) -> None:
        self.seen = DatabaseWatch(
            control=self.control, store=self.store, commits=self.commits, on_set_back=on_set_back
        )
        replicas = self.replicas = self._make_replicas()
        """Replicated partitions of this broker; None without a replication listener."""
        self.partitions = PartitionRegistry(
            node_id=self.node_id,
            store=self.store,
            commits=self.commits,
            diskless=self.diskless,
            replicas=replicas,
            tiers=self.tiers,
        )
        self.cluster = ClusterMetadata(
            self.control,
            self.partitions,
            check=self.seen.check,
            unreachable=frozenset if replicas is None else replicas.unreachable,
            alone=(lambda: False) if replicas is None else replicas.alone,
        )

    def _make_replicas(self) -> Replicas | None:
        if not self.settings.replication_listener:
            return None
        from penstock.broker.partitions.replicas import Replicas

        return Replicas(
            settings=self.settings,
            control=self.control,
            clock=self.clock,
            randomness=self.randomness,
            commits=self.commits,
            advanced=self.fetch_hub.advanced,
            load_image=lambda: self.cluster.refresh(),
            apply_leaders=lambda leaders: self.cluster.apply_leaders(leaders),
        )

    def _make_topics(self) -> None:
        self.quotas = Quotas(settings=self.settings, clock=self.clock, cluster=self.cluster)
        self.telemetry = Telemetry(
            settings=self.settings,
            clock=self.clock,
            randomness=self.randomness,
            cluster=self.cluster,
        )
        self.topic_admin = TopicAdmin(
            settings=self.settings,
            cluster=self.cluster,
            control=self.control,
            randomness=self.randomness,
            diskless=self.diskless is not None,
            schema_checks=self.schema_checks,
            tiered=self.tiers is not None and self.tiers.enabled,
        )
        self.migrations = TopicMigrations(
            MigrationContext(
                node_id=self.node_id,
                clock=self.clock,
                store=self.store,
                commits=self.commits,
                cluster=self.cluster,
                partitions=self.partitions,
                topic_admin=self.topic_admin,
                diskless=self.diskless,
                posts_ended=self._posts_ended,
            )
        )

    def _make_coordinators(self) -> None:
        self.producer_ids = ProducerIds(self.control)
        self.coordinator = GroupCoordinator(
            settings=self.settings,
            control=self.control,
            clock=self.clock,
            cluster=self.cluster,
            lag=lambda: self.lag,
            syncs_offsets=self.store.policy != "os",
        )
        self.peers = Peers(self._peer_address, self.identity.as_client)
        self.marker_peers = Peers(self._peer_address, self.identity.as_client)
        """Connections for transaction markers. They are separate from `peers`, because a request to
        a coordinator there may wait for markers."""
        self.transactions = TransactionCoordinator(
            settings=self.settings,
            control=self.control,
            clock=self.clock,
            cluster=self.cluster,
            partitions=self.partitions,
            producer_ids=self.producer_ids,
            peers=self.marker_peers,
        )
        self.transaction_link = TransactionLink(
            self.node_id, self.cluster, self.transactions, self.peers
        )
        self.verifier: Verifier = self.transaction_link
        self.end_offsets = EndOffsets(self.node_id, self.cluster, self.partitions, self.peers)
        self.share = ShareService(
            settings=self.settings,
            control=self.control,
            clock=self.clock,
            cluster=self.cluster,
            fetch_hub=self.fetch_hub,
            coordinator=self.coordinator,
            partitions=self.partitions,
            topic_admin=self.topic_admin,
            identity=self.identity,
        )

    def _sink_service(self) -> SinkService | None:
        if not self.settings.sink_staging_directory:
            return None
        from penstock.broker.batch_commits import SinkContext, SinkService

        return SinkService(
            SinkContext(
                settings=self.settings,
                control=self.control,
                store=self.store,
                clock=self.clock,
                randomness=self.randomness,
                registry=self.registry,
                cluster=self.cluster,
                partitions=self.partitions,
                commits=self.commits,
                identity=self.identity,
                diskless=self.diskless,
                schema_checks=self.schema_checks,
                stopping=self.stopping,
            )
        )

    @cached_property
    def links(self) -> LinkService:
        """Links to other clusters; created when a topic is linked first."""
        from penstock.broker.linking import link_service

        return link_service(
            clock=self.clock,
            randomness=self.randomness,
            cluster=self.cluster,
            partitions=self.partitions,
            producer_ids=self.producer_ids,
            identity=self.identity,
            topic_admin=self.topic_admin,
        )

    async def stop_links(self) -> None:
        """End the links, if there were any."""
        if "links" in vars(self):
            await self.links.stop()

    def links_changed(self) -> None:
        """Start and end links after a change of the metadata image."""
        if self.partitions.linked or "links" in vars(self):
            self.links.image_changed()

    @cached_property
    def readiness(self) -> Readiness:
        from penstock.broker.admin.health import Readiness

        return Readiness(
            node_id=self.node_id,
            control=self.control,
            store=self.store,
            clock=self.clock,
            cluster=self.cluster,
            partitions=self.partitions,
            diskless=self.diskless,
            stopping=self.stopping,
        )

    @cached_property
    def lag(self) -> LagService:
        """Evaluation of the lag of groups; created at the first commit or request."""
        from penstock.broker.lag.logs import GroupLogs
        from penstock.broker.lag.service import LagService

        service = LagService(
            clock=self.clock,
            control=self.control,
            coordinator=self.coordinator,
            logs=GroupLogs(
                cluster=self.cluster,
                partitions=self.partitions,
                peers=self.peers,
                end_offsets=self.end_offsets,
            ),
            config_of=self.store.config_of,
        )
        self.registry.add(service.metrics.samples)
        return service

    async def stop_lag(self) -> None:
        """Stop the evaluation of lag, if it was created."""
        if "lag" in vars(self):
            await self.lag.stop()

    async def group_samples(self) -> Iterable[Sample]:
        """Return the metrics of the groups that this broker coordinates."""
        from penstock.broker.admin.views import GroupMetricsSource

        source = GroupMetricsSource(
            coordinator=self.coordinator,
            end_offsets=self.end_offsets,
            lag=lambda: self.lag,
        )
        return await source.group_samples()

    @cached_property
    def status(self) -> BrokerStatus:
        from penstock.broker.admin.status import BrokerStatus

        return BrokerStatus(node_id=self.node_id, cluster=self.cluster, readiness=self.readiness)

    def _peer_address(self, broker_id: int) -> tuple[str, int] | None:
        """Return the address at which another broker can be reached; None for an unknown broker.

        It is the address of the inter-broker listener, or of the broker's first listener.
        """
        broker = self.cluster.image.broker(broker_id)
        return None if broker is None else broker.endpoint(self.identity.listener)

    async def _posts_ended(self) -> None:
        if self.sinks is not None:
            await self.sinks.posts_ended()
