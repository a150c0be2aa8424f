"""Who coordinates a key: one of the brokers with the role for it, by the key's hash over all."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar, Protocol

from penstock.base.errors import RetriableError
from penstock.control import Broker, MetadataImage


class CoordinatorNotAvailable(RetriableError):
    """No broker is registered that could coordinate the key, or this one cannot now."""

    code: ClassVar[str] = "coordinator_not_available"


class CoordinatorLoading(RetriableError):
    """This broker is just reading what is stored of the key, and too many wait for that."""

    code: ClassVar[str] = "coordinator_load_in_progress"


class NotCoordinator(RetriableError):
    """Another broker coordinates the key."""

    code: ClassVar[str] = "not_coordinator"


class Cluster(Protocol):
    """What is asked of the cluster's metadata."""

    @property
    def image(self) -> MetadataImage: ...

    async def refresh(self) -> None: ...


def owner_of(image: MetadataImage, key: str) -> Broker:
    """The broker that coordinates a group or a transaction: by the key.

    Raises:
        CoordinatorNotAvailable: no broker is registered.
    """
    return _owner(_ordered(image), key)


def _ordered(image: MetadataImage) -> Sequence[Broker]:
    return sorted(image.serving, key=lambda broker: broker.broker_id)


def _owner(brokers: Sequence[Broker], key: str) -> Broker:
    if not brokers:
        raise CoordinatorNotAvailable(f"no broker is registered that could coordinate {key!r}")
    return brokers[zlib.crc32(key.encode()) % len(brokers)]


class Ownership:
    """Which keys are this broker's, by the newest image."""

    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._image: MetadataImage | None = None
        self._brokers: Sequence[Broker] = ()

    @property
    def cluster_epoch(self) -> int:
        """Rises whenever brokers come or go, and so whenever keys may change their owner."""
        return self._cluster.image.cluster_epoch

    async def look_again(self) -> None:
        """Have the newest image."""
        await self._cluster.refresh()

    def owns(self, key: str) -> bool:
        brokers = self._ordered()
        return bool(brokers) and _owner(brokers, key).broker_id == self.node_id

    def check(self, key: str) -> None:
        """Raise unless this broker coordinates a key.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: it does not, or nobody does.
        """
        owner = _owner(self._ordered(), key)
        if owner.broker_id != self.node_id:
            raise NotCoordinator(f"broker {owner.broker_id} coordinates {key!r}")

    def _ordered(self) -> Sequence[Broker]:
        image = self._cluster.image
        if image is not self._image:
            self._image, self._brokers = image, _ordered(image)
        return self._brokers
