"""TLS servers of a process's listeners, with shared limits by address and a thread for files.

Files are checked every `LOOK_SECONDS`. One thread does all slow work on files and on keys from a
server. It therefore blocks no event loop and uses at most one processor.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.base.http_listener import BACKLOG, Bind
from penstock.base.metrics import Metrics, Sample, counters, gauges
from penstock.base.pause import pause
from penstock.security.addresses import FAILURES, AddressBounds, AddressLimits, counted
from penstock.security.listeners.files import ListenerFiles, TlsContexts

if TYPE_CHECKING:
    from penstock.security.files import Reloading


# TLS listener that checks connections before it spends time on a handshake.
#
# `loop.create_server(ssl=…)` would start a handshake with every client, and use the same
# certificate as long as it listens. This listener therefore accepts sockets itself. It disconnects
# an address with too many failures at once. Handshakes wait if there are too many from one address
# or in total. Each handshake uses the certificate that is current then, and has a timeout of
# `HANDSHAKE_SECONDS`. The result is an ordinary connection over asyncio's TLS transport.


logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
ACCEPT_BURST: Final = 8
"""Most connections that are accepted before the event loop handles other events."""
SHUTDOWN_SECONDS: Final = 2.0
"""Timeout for the peer's close_notify when a connection is closed."""
_ESTABLISHED: Final = 1
"""First byte of `TCP_INFO` while neither side has closed the connection (tcp(7))."""
_WITHOUT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST"})
"""OpenSSL's reasons for rejecting a first message that is not TLS."""
_WARNING_SECONDS: Final = 10.0
"""Least time between two warnings about clients without TLS; others are logged at level INFO."""
_PAUSE_SECONDS: Final = 0.5
"""Pause before accepting again after an error, such as too many open files."""


class TlsServer:
    """Server of a TLS listener; it belongs to the event loop."""

    def __init__(
        self,
        *,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        gate: Gate,
        displaces: bool = False,
    ) -> None:
        """Create the server without binding.

        With `displaces`, a new connection of an address at its limit ends that address's oldest
        handshake. Clients that send nothing then cannot block health checks.
        """
        self._displaces = displaces
        self._protocol = protocol
        self._context = context
        self._gate = gate
        self._sockets: list[socket.socket] = []
        self._shaking: dict[asyncio.Task[None], str] = {}
        """Running handshakes, oldest first, with their addresses."""
        self._warn_at = 0.0

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._sockets)

    async def bind(
        self, host: str | None, port: int, backlog: int, *, reuse_port: bool = False
    ) -> None:
        """Bind all addresses of a host without accepting connections; None means every interface.

        With `reuse_port`, another process may listen on the same port.

        Raises:
            OSError: an address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                made = socket.socket(family, kind, protocol)
                self._sockets.append(made)
                made.setblocking(False)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if len(self._sockets) > 1 and port == 0:
                    address = (address[0], self._sockets[0].getsockname()[1], *address[2:])
                made.bind(address)
                made.listen(backlog)
        except OSError:
            self.close()
            raise

    async def start_serving(self) -> None:
        """Start to accept connections."""
        for bound in self._sockets:
            asyncio.get_running_loop().add_reader(bound, self._on_arrivals, bound)

    def close(self) -> None:
        """Stop accepting and cancel handshakes; established connections stay open.

        Repeated calls do nothing.
        """
        for task in self._shaking:
            task.cancel()
        sockets, self._sockets = self._sockets, []
        for bound in sockets:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()

    def _on_arrivals(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_BURST):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.error("cannot accept connections, retrying: %s", error)
                loop.remove_reader(listening)
                loop.call_later(_PAUSE_SECONDS, self._resume, listening)
                return
            accepted.setblocking(False)
            host = str(address[0])
            if self._displaces and self._gate.crowded(host):
                self._end_oldest(counted(host))
            if not self._gate.admitted(host) or self._has_left(accepted, host):
                accepted.close()
                continue
            self._gate.entered(host)
            task = loop.create_task(self._shake_hands(accepted, host))
            self._shaking[task] = host
            task.add_done_callback(partial(self._shaken, accepted, host))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._on_arrivals, listening)

    def _end_oldest(self, address: str) -> None:
        for task, host in self._shaking.items():
            if counted(host) == address:
                del self._shaking[task]
                task.cancel()
                self._gate.left(host)
                return

    def _has_left(self, accepted: socket.socket, host: str) -> bool:
        """Return whether the peer has already closed the connection; count it as a failed
        handshake.
        """
        state = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        left = state != _ESTABLISHED
        if left:
            self._gate.handshake_failed(host)
        return left

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        """Complete the TLS handshake of an accepted socket, after waiting if there are too many."""
        try:
            waited = await _waited(self._gate.handshake_delay(host))
            waited = waited and await _waited(self._gate.turn_delay())
            if waited and not self._has_left(accepted, host):
                await self._connect(accepted)
            else:
                accepted.close()
        except OSError as error:  # a TLS error, a timeout, or a network error
            self._log_failure(host, error)
            self._gate.handshake_failed(host)
            accepted.close()

    def _log_failure(self, host: str, error: OSError) -> None:
        """Log a failed handshake; warn about a client without TLS, but not too often."""
        now = asyncio.get_running_loop().time()
        if getattr(error, "reason", None) not in _WITHOUT_TLS or now < self._warn_at:
            logger.info("%s: TLS handshake failed: %s", host, error)
            return
        self._warn_at = now + _WARNING_SECONDS
        port = self._sockets[0].getsockname()[1] if self._sockets else 0
        logger.warning(
            "a client at %s connected without TLS to port %d, which expects TLS."
            " Set its security.protocol to SSL or SASL_SSL",
            host,
            port,
        )

    def _shaken(self, accepted: socket.socket, host: str, task: asyncio.Task[None]) -> None:
        if self._shaking.pop(task, None) is not None:
            self._gate.left(host)
        if task.cancelled():  # maybe before it began
            accepted.close()

    async def _connect(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(
            self._protocol,
            accepted,
            ssl=self._context(),
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )


async def _waited(delay: float | None) -> bool:
    """Wait for the delay; return False at once if it is None and the connection must be closed."""
    if delay:
        await pause(delay)
    return delay is not None


LOOK_SECONDS: Final = 5.0
"""Pause between two checks of the files."""
L = TypeVar("L", bound=ListenerFiles)


class ListenerMetrics(Metrics, prefix="penstock_"):
    """Metrics of TLS, limits by address, and reloaded files."""

    refused: dict[tuple[str, str], int] = counters(
        "unauthenticated_connections_refused_total",
        "Connections closed before authentication, because a limit was exceeded.",
        "listener",
        "limit",
    )
    handshakes_failed: dict[str, int] = counters(
        "tls_handshakes_failed_total", "TLS handshakes that failed.", "listener"
    )
    certificate_ends: dict[str, float] = gauges(
        "tls_certificate_ends_timestamp_seconds",
        "Expiry time of the certificate in use, in seconds since the epoch.",
        "listener",
    )
    reloads: dict[str, int] = counters(
        "security_files_reloaded_total",
        "Reloads of changed files (certificates, users, keys of tokens).",
        "file",
    )
    reloads_failed: dict[str, int] = counters(
        "security_files_not_reloaded_total",
        "Failed reloads of changed files; the previous ones stayed in use.",
        "file",
    )


class ListenerGroup(Generic[L]):
    """Group of a process's listeners; it belongs to the event loop.

    `now` returns monotonic seconds.
    """

    def __init__(self, bounds: AddressBounds, now: Callable[[], float]) -> None:
        self.listeners: dict[str, L] = {}
        self.limits = AddressLimits(bounds)
        self._credentials = AddressLimits(bounds)
        """Failures of credentials in HTTP requests. They are counted separately, so that wrong
        passwords do not block connections of health checks from the same address."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="security-files")
        self._now = now
        self._looking: asyncio.Task[None] | None = None
        self._metrics = ListenerMetrics()

    async def open(self, name: str, make: Callable[[], L]) -> L:
        """Add a listener, whose files `make` reads; from then on they are checked for changes.

        Raises:
            InvalidError: a file cannot be used.
        """
        loop = asyncio.get_running_loop()
        made = self.listeners[name] = await loop.run_in_executor(self.thread, make)
        if self._looking is None:
            self._looking = loop.create_task(self._look())
        return made

    async def _look(self) -> None:
        while True:
            await pause(LOOK_SECONDS)
            await self.reload(look_closely=False)

    async def reload(self, *, look_closely: bool = True) -> list[str]:
        """Reload changed files of all listeners; return a message for each failure."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self._reload, look_closely)

    def _reload(self, look_closely: bool) -> list[str]:
        made = list(self.listeners.values())
        return list(chain.from_iterable(each.reload(look_closely=look_closely) for each in made))

    async def close(self) -> None:
        """Stop checking the files, and the thread; repeated calls do nothing."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self.thread.shutdown(wait=False, cancel_futures=True)

    # Connections

    def admitted(self, listener: str, address: str) -> bool:
        """Return whether a connection from an address may be accepted; count it if not."""
        limit = self.limits.refusal(address, self._now())
        if limit is not None:
            self._metrics.refused[listener, limit] += 1
        return limit is None

    def barred(self, listener: str, address: str) -> bool:
        """Return whether HTTP credentials from an address must be rejected; count it if so."""
        found = self._credentials.barred(address, self._now())
        self._metrics.refused[listener, FAILURES] += found
        return found

    def failed(self, address: str) -> None:
        self._credentials.failed(address, self._now())

    def handshake_failed(self, listener: str, address: str) -> None:
        self._metrics.handshakes_failed[listener] += 1
        self.limits.failed(address, self._now())

    def handshake_delay(self, address: str) -> float | None:
        """Return the delay of a TLS handshake under the limit of its address; None rejects it."""
        return self.limits.handshake_delay(address, self._now())

    def turn_delay(self) -> float | None:
        """Return the delay of a TLS handshake under the limit of all addresses; None rejects it."""
        return self.limits.turn_delay(self._now())

    def tls_server(
        self,
        listener: str,
        contexts: Reloading[TlsContexts],
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        displaces: bool = False,
    ) -> TlsServer:
        """Return a TLS server for a listener; each connection uses the certificate that is then
        current.
        """
        return TlsServer(
            protocol=protocol,
            context=lambda: contexts.current.server,
            gate=Gate(self, listener),
            displaces=displaces,
        )

    def http(self, listener: str, *, reuse_port: bool = False) -> Bind | None:
        """Return the function by which an `HttpListener` binds with TLS; None for a listener
        without TLS.
        """
        contexts = self.listeners[listener].tls
        if contexts is None:
            return None

        async def bind(
            protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
        ) -> TlsServer:
            server = self.tls_server(listener, contexts, protocol, displaces=True)
            await server.bind(host, port, BACKLOG, reuse_port=reuse_port)
            await server.start_serving()
            return server

        return bind

    def samples(self) -> Iterator[Sample]:
        """Return the metrics' samples for the registry."""
        metrics = self._metrics
        metrics.certificate_ends, metrics.reloads, metrics.reloads_failed = {}, {}, {}
        for name, made in self.listeners.items():
            if made.tls is not None:
                metrics.certificate_ends[name] = made.tls.current.certificate.not_after
            for word, reloads, failures in made.reloads():
                metrics.reloads[word] = metrics.reloads.get(word, 0) + reloads
                metrics.reloads_failed[word] = metrics.reloads_failed.get(word, 0) + failures
        return metrics.samples()


class Gate:
    """Limits by address, and failure counters, for the connections of one listener.

    `admitted` and `crowded` check the limits; `entered` and `left` count an unauthenticated
    connection. The delays are seconds that a handshake must wait; None: close the connection.
    """

    def __init__(self, listener_group: ListenerGroup[L], listener: str) -> None:
        self._listener_group = listener_group
        self._listener = listener

    def admitted(self, address: str) -> bool:
        return self._listener_group.admitted(self._listener, address)

    def crowded(self, address: str) -> bool:
        return self._listener_group.limits.crowded(address)

    def barred(self, address: str) -> bool:
        return self._listener_group.barred(self._listener, address)

    def failed(self, address: str) -> None:
        self._listener_group.failed(address)

    def entered(self, address: str) -> None:
        self._listener_group.limits.entered(address)

    def left(self, address: str) -> None:
        self._listener_group.limits.left(address)

    def handshake_delay(self, address: str) -> float | None:
        return self._listener_group.handshake_delay(address)

    def turn_delay(self) -> float | None:
        return self._listener_group.turn_delay()

    def handshake_failed(self, address: str) -> None:
        self._listener_group.handshake_failed(self._listener, address)
