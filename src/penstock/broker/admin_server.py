"""Admin HTTP server in the broker's event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.base.http_listener import HttpListener, parse_address
from penstock.broker.admin.access import AdminAccess, known
from penstock.broker.net.listeners import ADMIN, ADMIN_LISTENER, admin_listener
from penstock.security.credentials import HASHES, PLAIN
from penstock.security.http_credentials import PasswordVerifier, names_of_listener
from penstock.security.listeners.forwarding import heeding
from penstock.security.listeners.http_authentication import Authentication, Identities
from penstock.security.listeners.listener_group import Gate

if TYPE_CHECKING:
    from penstock.broker.assembly import Assembly
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.security import ListenerMaterials


class AdminServer:
    def __init__(self, settings: BrokerSettings, broker: Assembly) -> None:
        self._settings = settings
        self._broker = broker
        self._listener = HttpListener()
        self._materials: ListenerMaterials | None = None
        self.access = self._access()

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    async def start(self) -> tuple[str, int]:
        """Listen, and return the bound address; raises InvalidSetting, InvalidError, OSError."""
        from penstock.broker.admin_app import build_app

        settings, broker = self._settings, self._broker
        own = admin_listener(settings.admin_listener, settings.admin_security_protocol)
        self._materials = await broker.security_service.open_admin(own)
        app = build_app(broker, self.access)
        if broker.front_secret:
            app = heeding(app, broker.front_secret)
        return await self._listener.start(
            app,
            (own.host, own.port),
            connections_max=settings.admin_max_connections,
            bind=broker.security_service.listener_group.http(ADMIN),
        )

    def _access(self) -> AdminAccess:
        settings, broker = self._settings, self._broker
        authentication = Authentication(
            ADMIN_LISTENER,
            self._identities,
            partial(known, loopback_trusted=settings.admin_loopback_trusted),
            PasswordVerifier(broker.randomness),
            broker.audit,
            Gate(broker.security_service.listener_group, ADMIN),
            plain_loopback=settings.admin_basic_loopback,
        )
        return AdminAccess(
            authoriser=broker.authoriser,
            authentication=authentication,
            audit=broker.audit,
            hosts=names_of(settings),
            metrics_open=settings.admin_metrics_open,
        )

    def _identities(self) -> Identities:
        made = self._materials
        if made is None:
            return Identities()
        passwords = {*made.settings.sasl_enabled_mechanisms} & {PLAIN, *HASHES}
        return Identities(
            credentials=made.credentials if passwords else None,
            tokens=made.tokens,
            name_of=made.principal_of,
        )

    async def stop(self) -> None:
        await self._listener.stop()


def names_of(settings: BrokerSettings) -> frozenset[str]:
    """Return the host names that are valid in the Host header of requests that change state."""
    host, _ = parse_address(settings.admin_listener, setting=ADMIN_LISTENER)
    advertised = [
        urlsplit(advertised_listener).hostname or ""
        for advertised_listener in settings.advertised_listeners
    ]
    return names_of_listener(host, [*advertised, *settings.admin_hosts])
