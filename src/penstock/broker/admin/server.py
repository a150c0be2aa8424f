"""Runs the admin HTTP interface inside the broker's own event loop.

uvicorn gives the HTTP protocol; its `Server` is left out, because that takes over signals,
ticks ten times a second and sleeps on the way down. The web packages are imported by `start`,
so that the Kafka listener does not wait for them.

Bounds: request heads by `HEAD_BYTES_MAX`, bodies by `admin.request.max.bytes`, requests at a
time by `admin.max.connections`, idle connections by `KEEP_ALIVE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import InvalidSetting

if TYPE_CHECKING:
    from penstock.broker.state import BrokerState

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 16_384
KEEP_ALIVE_SECONDS: Final = 30
STOP_SECONDS: Final = 1.0
"""Time that open requests get to finish when the interface stops."""
BACKLOG: Final = 128


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`; an IPv6 host stands in brackets.

    Raises:
        InvalidSetting: no host, or a port outside 0 to 65535.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise InvalidSetting("admin.listener", text, "must be host:port")
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise InvalidSetting("admin.listener", text, "the port must be 0 to 65535")
    return host, int(port)


class AdminServer:
    """The admin interface of one broker: `start`, `address`, `stop`."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._server: asyncio.Server | None = None
        self._protocols: Any = None
        self.address: tuple[str, int] = ("", 0)

    async def start(self) -> tuple[str, int]:
        """Listen on `admin.listener`; returns the address with the real port.

        Raises:
            InvalidSetting: the setting is no address.
            OSError: the address cannot be bound.
        """
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        from penstock.broker.admin.app import build_app

        settings = self._state.settings
        host, port = parse_address(settings.admin_listener)
        config = Config(
            build_app(self._state),
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=settings.admin_max_connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        self._protocols = protocols = ServerState()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=protocols, app_state={}
            ),
            host,
            port,
            backlog=BACKLOG,
        )
        bound = self._server.sockets[0].getsockname()
        self.address = (host, bound[1])
        return self.address

    async def stop(self) -> None:
        """Stop listening, let open requests finish for `STOP_SECONDS`, close connections."""
        if self._server is None:
            return
        self._server.close()
        for protocol in list(self._protocols.connections):
            protocol.shutdown()
        if self._protocols.tasks:
            _, late = await asyncio.wait(self._protocols.tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
        for protocol in list(self._protocols.connections):
            protocol.transport.abort()
        self._server = None
