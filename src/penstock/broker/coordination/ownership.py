"""Who coordinates a key: one of the registered brokers, by the key's hash over all of them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, ClassVar

from penstock.base.errors import RetriableError

if TYPE_CHECKING:
    from penstock.control import Broker, MetadataImage


class CoordinatorNotAvailable(RetriableError):
    """No broker is registered that could coordinate the key, or this one cannot now."""

    code: ClassVar[str] = "coordinator_not_available"


class NotCoordinator(RetriableError):
    """Another broker coordinates the key."""

    code: ClassVar[str] = "not_coordinator"


def owner_of(image: MetadataImage, key: str) -> Broker:
    """The broker that coordinates a group or a transaction: by the key, over all brokers.

    Raises:
        CoordinatorNotAvailable: no broker is registered.
    """
    brokers = image.brokers
    if not brokers:
        raise CoordinatorNotAvailable(f"no broker is registered that could coordinate {key!r}")
    ordered = sorted(brokers, key=lambda broker: broker.broker_id)
    return ordered[zlib.crc32(key.encode()) % len(ordered)]
