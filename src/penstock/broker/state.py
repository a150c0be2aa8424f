"""What all handlers share: settings, the control plane, the store, metadata and partitions.

`BrokerState` belongs to the event-loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.metadata import ClusterMetadata
from penstock.broker.metrics import RequestMetrics
from penstock.broker.partition_registry import PartitionRegistry
from penstock.broker.switching import TopicSwitches
from penstock.partitions import GroupCommits

if TYPE_CHECKING:
    from penstock.base.metrics import Registry
    from penstock.base.system import Clock, Randomness
    from penstock.broker.coordination.groups import Coordinator
    from penstock.broker.fetch.operation import FetchHub
    from penstock.broker.fetch.sessions import FetchSessions
    from penstock.broker.handlers.metadata import MetadataCache
    from penstock.broker.handlers.producer_ids import ProducerIds
    from penstock.broker.settings import BrokerSettings
    from penstock.broker.sinks import SinkService
    from penstock.control import ControlPlane, MetadataImage
    from penstock.diskless.service import DisklessService
    from penstock.storage import LogStore


class Expiring(Protocol):
    """A produce request that waits for its sync."""

    deadline: float

    def expire(self) -> None: ...


class BrokerState:
    """The broker's shared state; see the module's text for who may change it."""

    # Services of single families of handlers, set by the server before it accepts requests.
    fetch_hub: FetchHub
    fetch_sessions: FetchSessions
    metadata_cache: MetadataCache
    producer_ids: ProducerIds
    coordinator: Coordinator
    sinks: SinkService | None
    """None where no directory for staged blobs is set."""
    diskless: DisklessService | None
    """None where no object store is set."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        control: ControlPlane,
        store: LogStore,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
        diskless: DisklessService | None = None,
    ) -> None:
        self.settings = settings
        self.sinks = None
        self.diskless = diskless
        self.node_id = settings.node_id
        self.control = control
        self.store = store
        self.clock = clock
        self.randomness = randomness
        self.registry = registry
        self.advertised: tuple[str, int] = ("", 0)
        self.stopping = False
        self.metrics = RequestMetrics()
        self.produce_waiting: dict[Expiring, None] = {}
        self.commits = GroupCommits(store)
        self.partitions = partitions = PartitionRegistry(
            node_id=settings.node_id, store=store, commits=self.commits, diskless=diskless
        )
        self.cluster = ClusterMetadata(control, partitions)
        self.on_image = self.cluster.on_image
        self.topics = partitions.topics
        self.topics_by_name = partitions.topics_by_name
        self.topics_by_id = partitions.topics_by_id
        self.partition = partitions.partition
        self.partition_of = partitions.partition_of
        self.local_log = partitions.local_log
        self.refresh = self.cluster.refresh
        self.shown = self.cluster.shown
        self.switches = TopicSwitches(self)

    @property
    def image(self) -> MetadataImage | None:
        return self.cluster.loaded

    @property
    def image_count(self) -> int:
        return self.partitions.generation

    @property
    def metadata(self) -> MetadataImage:
        return self.cluster.image
