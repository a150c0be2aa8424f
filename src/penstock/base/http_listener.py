"""An ASGI application on an address of its own, inside the process's event loop.

uvicorn gives the HTTP protocol; its `Server` is left out, because that takes over signals, ticks
ten times a second and sleeps on the way down. The web packages are imported by `start`, so that
what matters more at start-up does not wait for them.

Bounds: request heads by `HEAD_BYTES_MAX`, requests at a time by `connections_max`, of which one
address may have a part and beside which probes have a reserve, idle connections by
`KEEP_ALIVE_SECONDS`, their number and slow ones as `http_protocol.py` has it; bodies are the
application's to bound.

A request whose length can be read in two ways is refused before the application sees it: one that
has both Content-Length and Transfer-Encoding, or a coding other than chunked (h11 itself refuses
lengths that differ). A scope has the certificate that the client has shown (`http_protocol.py`).

Source: RFC 9112, 6.1 and 6.3 (request smuggling).
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
"""Time that open requests get to finish when the listener stops."""
BACKLOG: Final = 128
REFUSED_BYTES_MAX: Final = 4 << 20
"""Bytes that are read of the body of a request that is refused."""
REFUSED_SECONDS: Final = 4.0
"""For how long these are read, so that the answer is there within 5 s."""
PROBES: Final = frozenset({"/health", "/livez", "/readyz"})
PROBES_AT_ONCE: Final = 16
"""Requests of probes that are served beside as many others as there may be."""
ADDRESS_SHARE: Final = 0.75
"""Part of the requests at a time that one address of another machine may have."""
_REPLACEMENT: Final = "\ufffd"
"""Character that decoding puts where a query's bytes are not UTF-8."""
_CODING: Final = b"transfer-encoding"
_LENGTHS: Final = (b"content-length", _CODING)
_AROUND_BYTES: Final = len(": \r\n")
_LARGE_HEAD: Final = (
    b'{"error":"invalid_request","message":"a request\'s head has at most 16384 bytes"}'
)
_BUSY: Final = (
    b'{"error":"throttling_quota_exceeded","message":"too many requests at a time; try again"}'
)
_TWO_LENGTHS: Final = (
    b'{"error":"invalid_request","message":"the request says in two ways how long its body is"}'
)


def parse_address(text: str, *, setting: str) -> tuple[str, int]:
    """Read `host:port`; an IPv6 host stands in brackets.

    Raises:
        InvalidSetting: no host, or a port outside 0 to 65535; `setting` is named.
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
    """Whether an address is for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def wrong_parameters(given: Iterable[tuple[str, str]], known: Sequence[str]) -> str:
    """Return what is wrong with a query's parameters; empty where nothing is.

    Each must be known, be UTF-8 and be given once. One that is dropped would be answered as if it
    had been heeded.
    """
    seen: set[str] = set()
    for name, value in given:
        if _REPLACEMENT in value:
            return f"parameter {name[:64]!r}: the percent-encoded bytes are not UTF-8"
        if name not in known:
            there_are = f"there are {', '.join(known)}" if known else "this path takes none"
            return f"parameter {name[:64]!r}: there is none of this name; {there_are}"
        if name in seen:
            return f"parameter {name!r}: given more than once"
        seen.add(name)
    return ""


def client_address(request: Request) -> str:
    """The address that a request came from."""
    return "" if request.client is None else request.client.host


async def drained(
    request: Request, bytes_max: int = REFUSED_BYTES_MAX, seconds: float = REFUSED_SECONDS
) -> bool:
    """Read and drop the rest of a refused request's body; whether its end was reached.

    A client that is still sending may see no answer. Close the connection where this is False.
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
    except RuntimeError:  # the body was read to its end before
        return True
    return True


async def _refuse(send: Any, status: int, body: bytes) -> None:
    own = [(b"content-type", b"application/json"), (b"connection", b"close")]
    own.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})


def _one_length(app: Any) -> Any:
    """An application that only gets requests of which everybody reads the same length, and whose
    head is not too large: h11 bounds what has not arrived whole."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        every = scope.get("headers", ())
        headers = [one for one in every if one[0] in _LENGTHS]
        codings = [value.strip().lower() for name, value in headers if name == _CODING]
        if sum(len(name) + len(value) + _AROUND_BYTES for name, value in every) > HEAD_BYTES_MAX:
            await _refuse(send, 431, _LARGE_HEAD)
        elif len(headers) > 1 or codings not in ([], [b"chunked"]):
            await _refuse(send, 400, _TWO_LENGTHS)
        else:
            await app(scope, receive, send)

    return checked


def _bounded(app: Any, requests_max: int) -> Any:
    """Return an application that gets so many requests at a time, and fewer from one address.

    Probes have a reserve of `PROBES_AT_ONCE`, so that no load makes a supervisor restart this.
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
    """Accepts connections."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...
    def close(self) -> None: ...


Bind = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Awaitable[Server]]
"""Takes what makes a connection's protocol, a host and a port; accepts from then on."""


class HttpListener:
    """One application's listener: `start`, `address`, `leave`, `stop`."""

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
        """Listen; returns the address with the real port.

        `bind` accepts connections in another way, as with TLS.

        Raises:
            OSError: the address cannot be bound.
        """
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        from penstock.base.http_protocol import CONNECTIONS_PER_REQUEST, Connection, Connections

        config = Config(
            _bounded(_one_length(app), connections_max),
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        self._protocols = protocols = ServerState()
        kept = Connections(CONNECTIONS_PER_REQUEST * connections_max)
        host, port = address

        def make() -> asyncio.BaseProtocol:
            made: asyncio.BaseProtocol = Connection(
                kept, config=config, server_state=protocols, app_state={}
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
        """Take no new connections; those that there are go on."""
        if self._server is not None:
            self._server.close()

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
