"""Schema registry of a process, which may be a broker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.apps.process.wiring import PortUnavailable
from penstock.broker.http_security import HttpSecurity
from penstock.broker.net.listeners import http_listener
from penstock.registry.access import LISTENER, RegistryAccess
from penstock.registry.server import RegistryServer
from penstock.security.listeners.http_authentication import known

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration
    from penstock.broker.http_security import HttpProcess
    from penstock.control import ControlPlane
    from penstock.registry.service import SchemaRegistry


NAME = "REGISTRY"
"""Listener name of the registry, as in the settings `listener.name.registry.…`."""


async def start_registry(
    configuration: Configuration,
    process: HttpProcess,
    control: ControlPlane,
    registry: SchemaRegistry | None = None,
) -> tuple[RegistryServer, tuple[str, int]]:
    """Start the registry of a process whose control plane is open; return it and its address.

    `registry` is that of a broker, which also checks the schema ids of produced records.

    Raises:
        PortUnavailable: the address cannot be bound.
        PenstockError: a file of its settings cannot be loaded, or the control plane does not
            answer.
    """
    settings = configuration.schemas
    protocol = settings.registry_security_protocol or configuration.broker.admin_security_protocol
    listener = http_listener(NAME, LISTENER, settings.registry_listener, protocol)
    security = HttpSecurity(process, configuration.broker, listener, LISTENER)
    access = RegistryAccess(
        authoriser=security.authoriser,
        authentication=security.authentication(partial(known, loopback_trusted=False)),
        audit=security.audit,
        hosts=security.hosts,
    )
    server = RegistryServer(control, access, version=__version__, registry=registry)
    bind = await security.open()
    try:
        address = await server.start(
            (listener.host, listener.port),
            connections_max=settings.registry_max_connections,
            bind=bind,
        )
    except OSError as error:
        await server.stop()
        raise PortUnavailable(
            f"cannot listen on {settings.registry_listener}: {error.strerror or error}; choose"
            " another address with -X registry.listener=HOST:PORT (port 0 picks a free port)"
        ) from None
    return server, address
