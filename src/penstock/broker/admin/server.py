"""Runs the admin HTTP interface inside the broker's own event loop.

Bounds: bodies by `admin.request.max.bytes`, requests at a time by `admin.max.connections`, the
rest as `base.http_listener` has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.base.http_listener import HttpListener, parse_address
from penstock.broker.admin import health
from penstock.broker.admin.health import Readiness
from penstock.broker.parts import parts_of

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings

SETTING: Final = "admin.listener"


class AdminServer:
    """The admin interface of one broker: `start`, `address`, `stop`."""

    def __init__(self, settings: BrokerSettings, broker: object) -> None:
        """`broker` has the parts that the views name."""
        self._settings = settings
        self._broker = broker
        self._readiness = Readiness(parts_of(health.Parts, broker))
        self._listener = HttpListener()

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    async def start(self) -> tuple[str, int]:
        """Listen on `admin.listener`; returns the address with the real port.

        Raises:
            InvalidSetting: the setting is no address.
            OSError: the address cannot be bound.
        """
        from penstock.broker.admin.app import build_app

        settings = self._settings
        return await self._listener.start(
            build_app(self._broker, self._readiness),
            parse_address(settings.admin_listener, setting=SETTING),
            connections_max=settings.admin_max_connections,
        )

    async def stop(self) -> None:
        """Stop listening, let open requests finish for a moment, close connections."""
        await self._listener.stop()
        await self._readiness.stop()
