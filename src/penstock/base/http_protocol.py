"""uvicorn's HTTP/1.1 connection, which tells the application what certificate its peer has shown.

Apart from `http_listener`, since the web packages are imported when it starts.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

PEER_CERTIFICATE: Final = "penstock.peer_certificate"


class _Protocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        encrypted = transport.get_extra_info("ssl_object")
        certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        app = self.app

        async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
            scope[PEER_CERTIFICATE] = certificate
            await app(scope, receive, send)

        self.app = with_certificate


def protocol_class() -> Any:
    """What makes connections; of uvicorn's types, which are its own."""
    return _Protocol
