"""Admin HTTP server in the broker's event loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.base.http_listener import HttpListener, parse_address
from penstock.broker.admin.access import AdminAccess, known
from penstock.broker.listeners import ADMIN, ADMIN_LISTENER, admin_listener
from penstock.broker.parts import parts_of
from penstock.security.credentials import HASHES, PLAIN
from penstock.security.forwarding import heeding
from penstock.security.http_authentication import Authentication, Identities
from penstock.security.http_credentials import PasswordVerifier
from penstock.security.http_origin import names_of_listener
from penstock.security.listeners.listener_group import Gate

if TYPE_CHECKING:
    from penstock.base.system import Randomness
    from penstock.broker.security.materials import ListenerMaterials
    from penstock.broker.security.service import SecurityService
    from penstock.broker.settings import BrokerSettings
    from penstock.security import Authoriser
    from penstock.security.audit import Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    authoriser: Authoriser
    audit: Audit
    randomness: Randomness
    security_service: SecurityService
    front_secret: bytes


class AdminServer:
    def __init__(self, settings: BrokerSettings, broker: object) -> None:
        self._settings = settings
        self._broker = broker
        self._listener = HttpListener()
        self._parts = parts_of(Parts, broker)
        self._materials: ListenerMaterials | None = None
        self.access = self._access()

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    async def start(self) -> tuple[str, int]:
        """Listen, and return the bound address; raises InvalidSetting, InvalidError, OSError."""
        from penstock.broker.admin.app import build_app

        settings = self._settings
        own = admin_listener(settings.admin_listener, settings.admin_security_protocol)
        self._materials = await self._parts.security_service.open_admin(own)
        app = build_app(self._broker, self.access)
        if self._parts.front_secret:
            app = heeding(app, self._parts.front_secret)
        return await self._listener.start(
            app,
            (own.host, own.port),
            connections_max=settings.admin_max_connections,
            bind=self._parts.security_service.listener_group.http(ADMIN),
        )

    def _access(self) -> AdminAccess:
        settings, parts = self._settings, self._parts
        authentication = Authentication(
            ADMIN_LISTENER,
            self._identities,
            partial(known, loopback_trusted=settings.admin_loopback_trusted),
            PasswordVerifier(parts.randomness),
            parts.audit,
            Gate(parts.security_service.listener_group, ADMIN),
            plain_loopback=settings.admin_basic_loopback,
        )
        return AdminAccess(
            authoriser=parts.authoriser,
            authentication=authentication,
            audit=parts.audit,
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
    """Return the host names of the admin interface, in lower case."""
    host, _ = parse_address(settings.admin_listener, setting=ADMIN_LISTENER)
    advertised = [
        urlsplit(advertised_listener).hostname or ""
        for advertised_listener in settings.advertised_listeners
    ]
    return names_of_listener(host, [*advertised, *settings.admin_hosts])
