"""Who this broker is to its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.listeners import REPLICATION
from penstock.client.security import NO_SECURITY, ClientSecurity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.control import Broker, MetadataImage
    from penstock.wire.kafka.leader_hints import Endpoint


class Identity:
    """The broker's id, and what clients of each listener are told; known once it listens."""

    __slots__ = ("admin_port", "as_client", "endpoints", "listener", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.endpoints: dict[str, tuple[str, int]] = {}
        """Host and port by the listener's name."""
        self.admin_port: int | None = None
        """The bound port of the admin interface; None while there is none."""
        self.listener = ""
        """The listener by which brokers call each other, and this one itself."""
        self.as_client: Callable[[], ClientSecurity] = lambda: NO_SECURITY
        """What it needs for that."""


def endpoints_of(image: MetadataImage, broker_ids: Iterable[int], listener: str) -> list[Endpoint]:
    """The addresses of some brokers for clients that came by a listener, as far as they live."""
    found = [image.broker(one) for one in sorted(set(broker_ids))]
    return [(one.broker_id, *one.endpoint(listener), one.rack) for one in found if one is not None]


def replication_address(broker: Broker) -> tuple[str, int] | None:
    """Where other brokers reach a broker for replicated partitions; None if it has none."""
    for name, host, port in broker.endpoints:
        if name == REPLICATION:
            return host, port
    return None


def address_of(broker: Broker, listener: str) -> dict[str, Any]:
    """Where clients that came by a listener reach a broker, as answers have it."""
    host, port = broker.endpoint(listener)
    return {"host": host, "port": port}


def own_address(identity: Identity) -> str:
    """Where this broker is its own client."""
    host, port = identity.endpoints[identity.listener]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
