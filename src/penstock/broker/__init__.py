"""Broker that serves Kafka's API: connections, request handlers, coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.server import BrokerServer

__all__ = ["BrokerServer", "BrokerSettings"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that handlers do not import the server."""
    if name == "BrokerServer":
        from penstock.broker.server import BrokerServer

        return BrokerServer
    if name == "BrokerSettings":
        from penstock.broker.configuration.settings import BrokerSettings

        return BrokerSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
