"""Dependencies of the exactly-once sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio

    from penstock.base.metrics import Registry
    from penstock.base.system import Clock, Randomness
    from penstock.broker.identity import Identity
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane
    from penstock.diskless.service import DisklessService
    from penstock.partitions import GroupCommits
    from penstock.storage import LogStore


class SinkContext(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    control: ControlPlane
    store: LogStore
    clock: Clock
    randomness: Randomness
    registry: Registry
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    commits: GroupCommits
    identity: Identity
    diskless: DisklessService | None
    stopping: asyncio.Event
