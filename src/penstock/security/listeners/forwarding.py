"""Forwarding of a client's address, TLS state and certificate from a front end to brokers.

A front end process accepts HTTP requests and passes them to brokers on the same machine. It adds
headers with these facts, and a secret that only the processes of one command know. A broker uses
the headers only if the secret is right. It then authorises, limits and audits the request as if the
client had connected directly.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

from penstock.base.http_protocol import PEER_CERTIFICATE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


SECRET: Final = b"penstock-front"


CLIENT: Final = b"penstock-client"


SCHEME: Final = b"penstock-scheme"


CERTIFICATE: Final = b"penstock-certificate"


SECRET_BITS: Final = 256


def forwarded(scope: Scope, secret: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that describe the client of a request."""
    host, port = scope.get("client") or ("", 0)
    certificate = scope.get(PEER_CERTIFICATE)
    told = [
        (SECRET, secret.hex().encode()),
        (CLIENT, f"{host} {port}".encode()),
        (SCHEME, scope["scheme"].encode()),
    ]
    return told if certificate is None else [*told, (CERTIFICATE, b64encode(certificate))]


def heeding(app: ASGIApp, secret: bytes) -> ASGIApp:
    """Return an application that uses the forwarding headers, if they have the right secret."""
    expected = secret.hex().encode()

    async def heeded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if hmac.compare_digest(headers.get(SECRET, b""), expected):
            host, _, port = headers[CLIENT].decode().rpartition(" ")
            certificate = headers.get(CERTIFICATE)
            scope = {
                **scope,
                "client": (host, int(port)),
                "scheme": headers[SCHEME].decode(),
                PEER_CERTIFICATE: None if certificate is None else b64decode(certificate),
            }
        await app(scope, receive, send)

    return heeded
