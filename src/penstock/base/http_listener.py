"""Listener that serves an ASGI application on its own address, in the process's event loop.

uvicorn implements the HTTP protocol. Its `Server` is not used, because it installs signal handlers,
wakes up ten times a second and sleeps at shutdown. `start` imports the web packages, so that they
do not delay the rest of the start-up.

Limits: `HEAD_BYTES_MAX` for request heads; `connections_max` for concurrent requests;
`KEEP_ALIVE_SECONDS` for idle connections. One address may use only a share of the concurrent
requests. Health probes have a reserve in addition. `http_protocol.py` limits the number of
connections, and closes slow ones. The application limits the bodies.

A request whose length is ambiguous is rejected before the application gets it: one with both
Content-Length and Transfer-Encoding, or with a transfer coding other than chunked. (The parser
rejects several lengths.) So is a request without a Host header, or with several. The ASGI scope has
the client certificate (`http_protocol.py`).

Source: RFC 9112, 3.2 (Host), 6.1 and 6.3 (request smuggling).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.base.errors import InvalidSetting
from penstock.base.settings import whole_number

if TYPE_CHECKING:
    from starlette.requests import Request

HEAD_BYTES_MAX: Final = 16_384
KEEP_ALIVE_SECONDS: Final = 30
STOP_SECONDS: Final = 1.0
"""Time for open requests to finish when the listener stops, in seconds."""
BACKLOG: Final = 128
REFUSED_BYTES_MAX: Final = 4 << 20
"""Largest rest of a rejected request's body that is read before the connection is closed."""
REFUSED_SECONDS: Final = 4.0
"""Time limit for reading this rest, so that the response is sent within 5 s."""
PROBES: Final = frozenset({"/health", "/livez", "/readyz"})
PROBES_AT_ONCE: Final = 16
"""Concurrent probe requests served in addition to `connections_max`."""
ADDRESS_SHARE: Final = 0.75
"""Share of the concurrent requests that one remote address may use."""
_REPLACEMENT: Final = "\ufffd"
"""Character by which decoding replaces bytes of a query that are not UTF-8."""
_CODING: Final = b"transfer-encoding"
_LENGTHS: Final = (b"content-length", _CODING)
_AROUND_BYTES: Final = len(": \r\n")
_LARGE_HEAD: Final = b'{"error":"invalid_request","message":"the request head exceeds 16384 bytes"}'
_BUSY: Final = (
    b'{"error":"throttling_quota_exceeded","message":"too many concurrent requests; retry later"}'
)
_NO_HOST: Final = b'{"error":"invalid_request","message":"a request must have one Host header"}'
_TWO_LENGTHS: Final = (
    b'{"error":"invalid_request","message":"the request body has no single length: '
    b'send either Content-Length or Transfer-Encoding: chunked"}'
)


def parse_address(text: str, *, setting: str) -> tuple[str, int]:
    """Return the host and port of `host:port`; an IPv6 host is written in brackets.

    Raises:
        InvalidSetting: no host, or a port outside 0 to 65535. The error names `setting`.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise InvalidSetting(setting, text, "must be host:port")
    number = whole_number(port, 65_535)
    if number is None:
        raise InvalidSetting(setting, text, "the port must be 0 to 65535")
    return host, number


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def wrong_parameters(given: Iterable[tuple[str, str]], known: Sequence[str]) -> str:
    """Return an error message for the parameters of a query; empty if they are valid.

    Each parameter must be known, valid UTF-8 and given once.
    """
    seen: set[str] = set()
    for name, value in given:
        if _REPLACEMENT in value:
            return f"parameter {name[:64]!r}: the percent-encoded bytes are not UTF-8"
        if name not in known:
            hint = f"known: {', '.join(known)}" if known else "this path takes no parameters"
            return f"unknown parameter {name[:64]!r}; {hint}"
        if name in seen:
            return f"parameter {name!r}: given more than once"
        seen.add(name)
    return ""


def client_address(request: Request) -> str:
    return "" if request.client is None else request.client.host


async def drained(
    request: Request, bytes_max: int = REFUSED_BYTES_MAX, seconds: float = REFUSED_SECONDS
) -> bool:
    """Read and discard the rest of a rejected request's body; return whether its end was reached.

    Clients that are still sending may not read the response. If the result is False, the caller
    must close the connection.
    """
    from starlette.requests import ClientDisconnect

    left = bytes_max
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                left -= len(piece)
                if left < 0:
                    return False
    except (TimeoutError, ClientDisconnect):
        return False
    except RuntimeError:  # the body has been read to its end
        return True
    return True


async def _refuse(send: Any, status: int, body: bytes) -> None:
    own = [(b"content-type", b"application/json"), (b"connection", b"close")]
    own.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})


def _unambiguous(app: Any) -> Any:
    """Wrap an application, to reject ambiguous requests and those with too large heads."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        every = scope.get("headers", ())
        headers = [header for header in every if header[0] in _LENGTHS]
        codings = [value.strip().lower() for name, value in headers if name == _CODING]
        hosts = sum(1 for name, _ in every if name == b"host")
        if sum(len(name) + len(value) + _AROUND_BYTES for name, value in every) > HEAD_BYTES_MAX:
            await _refuse(send, 431, _LARGE_HEAD)
        elif hosts > 1 or (not hosts and scope.get("http_version") != "1.0"):
            await _refuse(send, 400, _NO_HOST)
        elif len(headers) > 1 or codings not in ([], [b"chunked"]):
            await _refuse(send, 400, _TWO_LENGTHS)
        else:
            await app(scope, receive, send)

    return checked


def _bounded(app: Any, requests_max: int) -> Any:
    """Wrap an application, to limit its concurrent requests in total and per remote address.

    Health probes have a reserve of `PROBES_AT_ONCE`, so that a supervisor does not restart a
    process only because of its load.
    """
    share = max(1, int(ADDRESS_SHARE * requests_max))
    running = Counter[str]()

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        address = (scope.get("client") or ("",))[0]
        probe = scope.get("path") in PROBES
        most = requests_max + (PROBES_AT_ONCE if probe else 0)
        crowded = not probe and running[address] >= share and not is_loopback(address)
        if running.total() >= most or crowded:
            await _refuse(send, 503, _BUSY)
            return
        running[address] += 1
        try:
            await app(scope, receive, send)
        finally:
            running[address] -= 1
            if not running[address]:
                del running[address]

    return bounded


class Server(Protocol):
    @property
    def sockets(self) -> Sequence[socket.socket]: ...
    def close(self) -> None: ...


Bind = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[Server]]
"""Function that binds a host and a port and accepts connections. Its arguments are a factory of
protocols, the host and the port."""


class HttpListener:
    """Listener of one ASGI application."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._protocols: Any = None
        self.address: tuple[str, int] = ("", 0)

    async def start(
        self,
        app: Any,
        address: tuple[str, int],
        *,
        connections_max: int,
        reuse_port: bool = False,
        bind: Bind | None = None,
    ) -> tuple[str, int]:
        """Bind the address and accept connections; return the address with the bound port.

        `bind` is used instead of a plain TCP server, for example for TLS.

        Raises:
            OSError: the address cannot be bound.
        """
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        from penstock.base.http_protocol import CONNECTIONS_PER_REQUEST, Connection, Connections

        config = Config(
            _bounded(_unambiguous(app), connections_max),
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        config.load()
        self._protocols = protocols = ServerState()
        kept = Connections(CONNECTIONS_PER_REQUEST * connections_max)
        host, port = address

        def make() -> asyncio.BaseProtocol:
            made: asyncio.BaseProtocol = Connection(
                kept,
                head_bytes_max=HEAD_BYTES_MAX,
                large_head=_LARGE_HEAD,
                config=config,
                server_state=protocols,
                app_state={},
            )
            return made

        if bind is not None:
            self._server = await bind(make, host, port)
        else:
            self._server = await asyncio.get_running_loop().create_server(
                make, host, port, backlog=BACKLOG, reuse_port=reuse_port or None
            )
        self.address = (host, self._server.sockets[0].getsockname()[1])
        return self.address

    def leave(self) -> None:
        """Close the listening socket; existing connections continue."""
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
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
