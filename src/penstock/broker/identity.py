"""Identity of this broker, and the addresses of brokers that clients get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.listeners import REPLICATION
from penstock.client.security import NO_SECURITY, ClientSecurity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.control import Broker, MetadataImage
    from penstock.wire.kafka.leader_hints import Endpoint


class Identity:
    """Broker id and advertised addresses of this broker; complete once its listeners are bound."""

    __slots__ = ("admin_port", "as_client", "endpoints", "listener", "node_id")

    def __init__(
        self, node_id: int, as_client: Callable[[], ClientSecurity] = lambda: NO_SECURITY
    ) -> None:
        """`as_client` returns the client security settings for `listener`."""
        self.node_id = node_id
        self.as_client = as_client
        self.endpoints: dict[str, tuple[str, int]] = {}
        """Advertised host and port by listener name."""
        self.admin_port: int | None = None
        """Bound port of the admin interface; None without one."""
        self.listener = ""
        """Listener that brokers use to connect to each other, and to themselves."""


def endpoints_of(image: MetadataImage, broker_ids: Iterable[int], listener: str) -> list[Endpoint]:
    """Return the addresses of registered brokers for clients of a listener."""
    found = [image.broker(broker_id) for broker_id in sorted(set(broker_ids))]
    return [
        (broker.broker_id, *broker.endpoint(listener), broker.rack)
        for broker in found
        if broker is not None
    ]


def replication_address(broker: Broker) -> tuple[str, int] | None:
    """Return the address of a broker's replication listener; None if it has none."""
    for name, host, port in broker.endpoints:
        if name == REPLICATION:
            return host, port
    return None


def address_of(broker: Broker, listener: str) -> dict[str, Any]:
    """Return the response fields `host` and `port` of a broker, for clients of a listener."""
    host, port = broker.endpoint(listener)
    return {"host": host, "port": port}


def own_address(identity: Identity) -> str:
    """Return the `host:port` by which this broker connects to itself."""
    host, port = identity.endpoints[identity.listener]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
