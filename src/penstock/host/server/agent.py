"""Agent: listens, accepts producers, and stops gracefully; `connections.py` handles connections.

The listening socket is not an event loop's own, because loops cannot receive the descriptor that is
sent with HELLO. Connections are accepted in bursts of limited size, so that many new producers do
not delay connected ones. When file descriptors run out, accepting pauses; waiting producers are
accepted when others have left.

The agent stops in these steps, on SIGTERM:

    unhealthy (HTTP reports it, HELLO is rejected)
    -> DRAIN to every producer, with the deadline
    -> remove the socket file if it is this agent's, close the listener: the next agent can start
    -> wait until the producers have left, or have been idle for a moment, or the deadline
    -> the sink completes pending frames or fails them as retryable; the last answers are sent
    -> close connections

Source: `host-ipc.txt`, graceful shutdown is its own dance.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Registry
from penstock.base.pause import pause
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.host.port import ChunkSink
from penstock.host.server.access_file import Access
from penstock.host.server.connection import LAST_ANSWER_MS, HostConnection
from penstock.host.server.connections import REASON_DRAIN, Connections
from penstock.host.server.settings import HostSettings, HttpSecuritySettings
from penstock.host.server.socket_file import SocketDirectoryBusy, SocketFile, check_path
from penstock.security.audit import NO_AUDIT, Audit

if TYPE_CHECKING:
    from penstock.host.server.http import HttpFront
    from penstock.host.server.tracing import AgentTraces

TICK_SECONDS: Final = 0.1
PLAIN_HTTP: Final = HttpSecuritySettings()

ACCEPT_BURST: Final = 64
"""Maximum number of connections that are accepted before the loop handles other events."""

DIRECTORY_TRIES: Final = 50
DIRECTORY_PAUSE_SECONDS: Final = 0.05
"""Attempts and pauses while another agent holds the lock of the socket's directory.

It holds the lock for milliseconds.
"""

SINK_STOP_SECONDS_MIN: Final = 1.0
"""Minimum seconds for the sink to complete or return frames, even after the drain timeout."""


class HostAgent:
    """Agent on one socket; its sink is started and stopped with it."""

    def __init__(
        self,
        settings: HostSettings,
        sink: ChunkSink,
        *,
        http_security: HttpSecuritySettings = PLAIN_HTTP,
        clock: Clock = SYSTEM_CLOCK,
        registry: Registry | None = None,
        audit: Audit = NO_AUDIT,
        traces: AgentTraces | None = None,
    ) -> None:
        """Create an agent; its `stop` closes `audit`.

        Raises:
            RulesUnusable: the file of rules cannot be used.
        """
        self.settings = settings
        self.sink = sink
        access = Access(settings.acl_file, audit)
        self.traces = traces
        self.connections = Connections(settings, sink, clock, access, traces)
        self.http: HttpFront | None = None
        self._http_security = http_security
        self._clock = clock
        self._registry = registry if registry is not None else Registry()
        self._registry.add(self.connections.samples)
        self._file: SocketFile | None = None
        self._accepting = False
        self._tick_timer: asyncio.TimerHandle | None = None

    # Life

    async def start(self) -> None:
        """Start the sink and the HTTP front, then listen.

        Raises:
            PenstockError: the sink cannot start, or the socket's path cannot be used.
            OSError: the HTTP front's address cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        check_path(self.settings.socket_path)
        await self.sink.start()
        try:
            await self._start_http()
            self._file = await self._claim()
        except BaseException:
            await self._stop_http()
            await self.sink.stop(SINK_STOP_SECONDS_MIN)
            raise
        self._listen()
        self.connections.start()
        if self.traces is not None:
            self.traces.export.start()
        self._tick_timer = self._loop.call_later(TICK_SECONDS, self._tick)

    async def stop(self) -> None:
        """Stop gracefully, within `host.drain.timeout.ms` and about a second more."""
        if self._tick_timer is None:
            return
        connections = self.connections
        connections.drain()
        await self._leave_path()
        if self.http is not None:
            self.http.drain()
        by_ms = connections.drain_by_ms
        await connections.until(lambda: not connections and not self._requests, by_ms)
        await connections.sink_watch.stop()
        left_seconds = (by_ms - connections.now_ms()) / 1000
        await self.sink.stop(max(left_seconds, SINK_STOP_SECONDS_MIN))
        # The callback that answers frames just completed by the sink is scheduled before this.
        await pause(0)
        for connection in connections:
            connection.close(REASON_DRAIN)
        last_ms = connections.now_ms() + LAST_ANSWER_MS
        await connections.until(lambda: not connections, last_ms)
        for connection in connections:
            connection.abort(REASON_DRAIN)
        await self._stop_http()
        if self.traces is not None:
            await self.traces.export.stop()
        self.connections.access.audit.close()
        self._tick_timer.cancel()
        self._tick_timer = None

    async def _start_http(self) -> None:
        if self.settings.http_listener:
            from penstock.host.server.http import HttpFront

            self.http = HttpFront(
                self.connections, self._registry, self._http_security, self._clock
            )
            await self.http.start()

    async def _stop_http(self) -> None:
        if self.http is not None:
            await self.http.stop()

    @property
    def _requests(self) -> int:
        """Number of requests that the HTTP front is handling."""
        return 0 if self.http is None else self.http.metrics.in_flight

    async def _claim(self) -> SocketFile:
        settings = self.settings
        tries = 0
        while True:
            try:
                return SocketFile.claim(
                    settings.socket_path,
                    mode=settings.socket_permissions,
                    group=settings.socket_group,
                    directory_mode=settings.directory_permissions,
                    takeover=settings.socket_takeover,
                )
            except SocketDirectoryBusy:
                tries += 1
                if tries >= DIRECTORY_TRIES:
                    raise
            await pause(DIRECTORY_PAUSE_SECONDS)

    async def _leave_path(self) -> None:
        """Remove the socket file, and then close the listener.

        In this order, because no other file can get the same inode while the listener is open. So
        the agent never removes the file of another agent.
        """
        file, self._file = self._file, None
        if file is None:
            return
        self._stop_listening(file)
        tries = 0
        while not file.remove() and tries < DIRECTORY_TRIES:
            tries += 1
            await pause(DIRECTORY_PAUSE_SECONDS)
        file.close()

    # Accepting

    def _listen(self) -> None:
        if self._file is not None and not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._file.listener.fileno(), self._on_arrivals)

    def _stop_listening(self, file: SocketFile) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(file.listener.fileno())

    def _on_arrivals(self) -> None:
        file = self._file
        if file is None:
            return
        for _ in range(ACCEPT_BURST):
            try:
                accepted, _address = file.listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptors, no memory: nothing that trying again mends
                self.connections.accept_failed(error)
                self._stop_listening(file)
                return
            self._welcome(accepted)

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.socket_buffer_bytes)
        HostConnection(accepted, self.connections, self._loop).start()

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self.connections.tick()
        self._listen()  # where it had paused
