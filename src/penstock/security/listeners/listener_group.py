"""Shared parts of a process's listeners: one thread for their files, and limits by address.

Files are checked every `LOOK_SECONDS`. Slow work on them, and on keys from a server, runs on one
thread, so it blocks no event loop and uses no second processor.
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
"""How often files are looked at."""
L = TypeVar("L", bound=ListenerFiles)


class ListenerMetrics(Metrics, prefix="penstock_"):
    """Metrics of TLS, and of reloaded files."""

    refused: dict[tuple[str, str], int] = counters(
        "unauthenticated_connections_refused_total",
        "Connections closed at once, due to a limit of their address or of all connections.",
        "listener",
        "limit",
    )
    handshakes_failed: dict[str, int] = counters(
        "tls_handshakes_failed_total", "TLS handshakes that did not come to an end.", "listener"
    )
    certificate_ends: dict[str, float] = gauges(
        "tls_certificate_ends_timestamp_seconds",
        "When the certificate in use ends, in seconds since the epoch.",
        "listener",
    )
    reloads: dict[str, int] = counters(
        "security_files_reloaded_total",
        "Reloads of changed files (certificates, users, keys of tokens).",
        "file",
    )
    reloads_failed: dict[str, int] = counters(
        "security_files_not_reloaded_total",
        "Times that changed files were no good, and the former ones stayed in use.",
        "file",
    )


class ListenerGroup(Generic[L]):
    """Shared parts of listeners. Belongs to the event loop; `now` is monotonic seconds."""

    def __init__(self, bounds: AddressBounds, now: Callable[[], float]) -> None:
        self.listeners: dict[str, L] = {}
        self.limits = AddressLimits(bounds)
        self._credentials = AddressLimits(bounds)
        """Failures of credentials that came over HTTP. They are counted apart, as probes connect
        from addresses where passwords are wrong."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="security-files")
        self._now = now
        self._looking: asyncio.Task[None] | None = None
        self._metrics = ListenerMetrics()

    async def open(self, name: str, make: Callable[[], L]) -> L:
        """Add a listener, whose files `make` reads and which are checked for changes from then on.

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
        """Reload changed files; return sentences about those that failed."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self._reload, look_closely)

    def _reload(self, look_closely: bool) -> list[str]:
        made = list(self.listeners.values())
        return list(chain.from_iterable(each.reload(look_closely=look_closely) for each in made))

    async def close(self) -> None:
        """Stop the threads. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self.thread.shutdown(wait=False, cancel_futures=True)

    # Connections

    def admitted(self, listener: str, address: str) -> bool:
        """Return whether a connection from an address may be accepted."""
        limit = self.limits.refusal(address, self._now())
        if limit is not None:
            self._metrics.refused[listener, limit] += 1
        return limit is None

    def barred(self, listener: str, address: str) -> bool:
        """Return whether HTTP credentials from an address are refused."""
        found = self._credentials.barred(address, self._now())
        self._metrics.refused[listener, FAILURES] += found
        return found

    def failed(self, address: str) -> None:
        self._credentials.failed(address, self._now())

    def handshake_failed(self, listener: str, address: str) -> None:
        self._metrics.handshakes_failed[listener] += 1
        self.limits.failed(address, self._now())

    def handshake_delay(self, address: str) -> float | None:
        """Return the seconds that a handshake has to wait; None if that is too long."""
        return self.limits.handshake_delay(address, self._now())

    def turn_delay(self) -> float | None:
        """Return the seconds that a handshake then waits for those of other addresses."""
        return self.limits.turn_delay(self._now())

    def tls_server(
        self,
        listener: str,
        contexts: Reloading[TlsContexts],
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        displaces: bool = False,
    ) -> TlsServer:
        """Return the server of a listener, which uses the current certificate."""
        return TlsServer(
            protocol=protocol,
            context=lambda: contexts.current.server,
            gate=Gate(self, listener),
            displaces=displaces,
        )

    def http(self, listener: str, *, reuse_port: bool = False) -> Bind | None:
        """Return how an `HttpListener` accepts connections of a listener; None without TLS."""
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
        """Return the counters for the registry."""
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
    """Limits for the addresses of one listener: a gate of `tls_server.TlsServer` and counter of
    failures.
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
