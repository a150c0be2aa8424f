"""Ownership of keys: the hash of a key selects the broker that coordinates it.

The candidates are the registered brokers with the ingestion role; all brokers if none has the role.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar, Protocol

from penstock.base.errors import RetriableError
from penstock.control import Broker, MetadataImage


class CoordinatorNotAvailable(RetriableError):
    """No registered broker can coordinate the key, or this broker cannot at present."""

    code: ClassVar[str] = "coordinator_not_available"


class CoordinatorLoading(RetriableError):
    """This broker is loading the key, and too many requests wait for it."""

    code: ClassVar[str] = "coordinator_load_in_progress"


class NotCoordinator(RetriableError):
    code: ClassVar[str] = "not_coordinator"


class Cluster(Protocol):
    @property
    def image(self) -> MetadataImage: ...

    async def refresh(self) -> None: ...


def owner_of(image: MetadataImage, key: str) -> Broker:
    """Return the broker that coordinates a group or a transactional id.

    Raises:
        CoordinatorNotAvailable: no broker is registered.
    """
    return _owner(_ordered(image), key)


def _ordered(image: MetadataImage) -> Sequence[Broker]:
    return sorted(image.serving, key=lambda broker: broker.broker_id)


def _owner(brokers: Sequence[Broker], key: str) -> Broker:
    if not brokers:
        raise CoordinatorNotAvailable(f"no broker is registered, so {key!r} has no coordinator")
    return brokers[zlib.crc32(key.encode()) % len(brokers)]


class Ownership:
    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._image: MetadataImage | None = None
        self._brokers: Sequence[Broker] = ()

    @property
    def cluster_epoch(self) -> int:
        """Cluster epoch, which rises whenever brokers join or leave and keys may change owners."""
        return self._cluster.image.cluster_epoch

    async def look_again(self) -> None:
        await self._cluster.refresh()

    def owns(self, key: str) -> bool:
        brokers = self._ordered()
        return bool(brokers) and _owner(brokers, key).broker_id == self.node_id

    def check(self, key: str) -> None:
        """Raise unless this broker coordinates a key.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: another broker coordinates it, or none.
        """
        owner = _owner(self._ordered(), key)
        if owner.broker_id != self.node_id:
            raise NotCoordinator(f"broker {owner.broker_id} coordinates {key!r}")

    def _ordered(self) -> Sequence[Broker]:
        image = self._cluster.image
        if image is not self._image:
            self._image, self._brokers = image, _ordered(image)
        return self._brokers
