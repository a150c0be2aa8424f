"""Parts that the listeners of a process share: a thread for their files, and limits by address.

Files are checked every `LOOK_SECONDS`. One thread does all slow work on files and on keys from a
server. It therefore blocks no event loop and uses at most one processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.base.http_listener import BACKLOG
from penstock.base.metrics import Metrics, Sample, counters, gauges
from penstock.base.pause import pause
from penstock.security.addresses import FAILURES, AddressBounds, AddressLimits
from penstock.security.listeners.files import ListenerFiles
from penstock.security.listeners.tls_server import TlsServer

if TYPE_CHECKING:
    from penstock.base.http_listener import Bind
    from penstock.security.files import Reloading
    from penstock.security.listeners.files import TlsContexts

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
        """Return the seconds that a handshake must wait for others of its address; None if too
        long.
        """
        return self.limits.handshake_delay(address, self._now())

    def turn_delay(self) -> float | None:
        """Return the seconds that a handshake must wait for those of all addresses; None if too
        long.
        """
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
    """Limits and failure counters for the connections of one listener.

    It implements the port `tls_server.Gate`.
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
