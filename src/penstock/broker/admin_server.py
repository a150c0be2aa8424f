"""Admin HTTP server in the broker's event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.base.http_listener import HttpListener
from penstock.broker.admin.access import AdminAccess
from penstock.broker.http_security import HttpSecurity
from penstock.broker.net.listeners import ADMIN_LISTENER, admin_listener
from penstock.security.listeners.forwarding import heeding
from penstock.security.listeners.http_authentication import known

if TYPE_CHECKING:
    from penstock.broker.admin_app import ConsoleFactory
    from penstock.broker.assembly import Assembly
    from penstock.broker.configuration.settings import BrokerSettings


class AdminServer:
    def __init__(
        self, settings: BrokerSettings, broker: Assembly, console: ConsoleFactory | None = None
    ) -> None:
        """`console` creates the console at the first request for one of its pages."""
        self._settings = settings
        self._broker = broker
        self._console = console
        self._listener = HttpListener()
        own = admin_listener(settings.admin_listener, settings.admin_security_protocol)
        self._security = HttpSecurity(broker, settings, own, ADMIN_LISTENER)
        self.access = AdminAccess(
            authoriser=broker.authoriser,
            authentication=self._security.authentication(
                partial(known, loopback_trusted=settings.admin_loopback_trusted)
            ),
            audit=broker.audit,
            hosts=self._security.hosts,
            metrics_open=settings.admin_metrics_open,
        )

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    async def start(self) -> tuple[str, int]:
        """Listen, and return the bound address; raises InvalidSetting, InvalidError, OSError."""
        from penstock.broker.admin_app import build_app

        bind = await self._security.open()
        broker, own = self._broker, self._security.listener
        app = build_app(broker, self.access, self._console)
        if broker.front_secret:
            app = heeding(app, broker.front_secret)
        return await self._listener.start(
            app,
            (own.host, own.port),
            connections_max=self._settings.admin_max_connections,
            bind=bind,
        )

    async def stop(self) -> None:
        await self._listener.stop()
