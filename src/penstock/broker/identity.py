"""Who this broker is to its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.control import Broker


class Identity:
    """The broker's id, and what clients of each listener are told; known once it listens."""

    __slots__ = ("endpoints", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.endpoints: dict[str, tuple[str, int]] = {}
        """Host and port by the listener's name; the first one is the broker's own."""


def address_of(broker: Broker, listener: str) -> dict[str, Any]:
    """Where clients that came by a listener reach a broker, as answers have it."""
    host, port = broker.endpoint(listener)
    return {"host": host, "port": port}
