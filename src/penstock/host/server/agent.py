"""The agent: accepts producers, gives them their credit, keeps the clock, and ends in good order.

The listening socket is the agent's own, because event loops cannot receive the descriptor that
comes with a HELLO. Connections are accepted in bursts, so that a thousand producers that come back
at once do not starve those that are there. Without file descriptors accepting pauses; who waits is
served when others leave.

How it ends, on SIGTERM:

    unhealthy (HTTP says so, HELLO is refused)
    -> DRAIN to every producer, with the deadline
    -> the socket file is removed if it is ours, the listener closed: the next agent may come
    -> wait until the producers have gone, or have been idle for a moment, or the deadline
    -> the sink settles what is pending or gives it back; the last answers leave
    -> connections are closed

Source: `host-ipc.txt`, graceful shutdown is its own dance.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.base.buffers import ReceivePool
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.metrics import Registry, Sample
from penstock.base.pause import pause
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.host import limits
from penstock.host.credits import NO_CREDIT, Credit
from penstock.host.port import ChunkSink, Introduction
from penstock.host.server import metrics
from penstock.host.server.budget import CreditBudget
from penstock.host.server.connection import HostConnection, Introduced
from penstock.host.server.receiving import Scratch
from penstock.host.server.settings import HostSettings
from penstock.host.server.sink_watch import SinkWatch, late
from penstock.host.server.socket_file import SocketDirectoryBusy, SocketFile, check_path
from penstock.host.server.status import NAME_CHARS_SHOWN
from penstock.host.server.totals import Totals
from penstock.host.server_machine import ServerState, ServerTerms
from penstock.wire.frames import HEADER_BYTES_MAX

if TYPE_CHECKING:
    from penstock.host.server.http import HttpFront

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
HELD_UP_MS: Final = 1_000
"""A tick that is so late says that the whole process stood still."""

ACCEPT_BURST: Final = 64
"""Connections accepted before others have their turn."""

DIRECTORY_TRIES: Final = 50
DIRECTORY_PAUSE_SECONDS: Final = 0.05
"""While another agent decides about the socket's directory; that takes it milliseconds."""

DRAIN_IDLE_MS: Final = 1_000
"""A draining connection on which nothing was under way for so long is closed."""

SINK_STOP_SECONDS_MIN: Final = 1.0
"""What the sink gets to settle or give back, even if the drain has used up its time."""

REASON_DRAIN: Final = "the agent is stopping"


@dataclass(eq=False, slots=True)
class _Guest:
    """A connection with its credit."""

    credit: Credit = NO_CREDIT
    connection: HostConnection | None = None
    introduction: asyncio.Task[Introduction | PenstockError] | None = None
    idle_since_ms: float = 0.0


class HostAgent:
    """One agent on one socket: `start`, `stop`. It stands as `ConnectionOwner` to its connections.

    The sink is started and stopped with the agent.
    """

    def __init__(
        self,
        settings: HostSettings,
        sink: ChunkSink,
        *,
        clock: Clock = SYSTEM_CLOCK,
        registry: Registry | None = None,
    ) -> None:
        self.settings = settings
        self.sink = sink
        self.registry = registry if registry is not None else Registry()
        self.pool = ReceivePool(settings.queued_max_bytes)
        self.scratch = Scratch()
        self.draining = False
        self.bytes_in = 0
        self.bytes_out = 0
        self.totals = Totals()
        self.budget = CreditBudget(
            whole=settings.credit,
            total_bytes=settings.credit_total_bytes,
            connections_max=settings.connections_max,
            floor_bytes=settings.frame_max_bytes,
        )
        self.drain_by_ms = 0.0
        self.http: HttpFront | None = None
        self.sink_watch = SinkWatch(sink)
        self._clock = clock
        self._file: SocketFile | None = None
        self._guests: dict[HostConnection, _Guest] = {}
        self._next: _Guest | None = None
        self._accepting = False
        self._reported: set[str] = set()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._ticked_ms = 0.0
        self._held_up = False
        self._wait: tuple[Callable[[], bool], asyncio.Future[None]] | None = None
        self._terms = ServerTerms(
            credit=NO_CREDIT,
            frame_bytes_max=min(settings.frame_max_bytes, sink.frame_bytes_max + HEADER_BYTES_MAX),
            idle_timeout_ms=settings.idle_timeout_ms,
            ping_interval_ms=settings.ping_interval_ms,
            retry_after_ms=settings.retry_after_ms,
            ring_bytes_max=settings.ring_max_bytes,
        )
        self.registry.add(self._samples)

    @property
    def connections(self) -> Sequence[HostConnection]:
        return tuple(self._guests)

    @property
    def sink_trouble(self) -> str:
        """Why the sink does not accept; empty where it does."""
        return self.sink_watch.trouble

    @property
    def serving(self) -> bool:
        """Whether new producers are taken in."""
        return self._file is not None and not self.draining

    # Life

    async def start(self) -> None:
        """Start the sink and the HTTP front, then listen.

        Raises:
            PenstockError: the sink cannot start, or the socket's path cannot be had.
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
        self.sink_watch.start()
        self._ticked_ms = self.now_ms()
        self._tick_timer = self._loop.call_later(TICK_SECONDS, self._tick)

    async def stop(self) -> None:
        """End in good order, within `host.drain.timeout.ms` and a little."""
        if self._tick_timer is None:
            return
        timeout_ms = self.settings.drain_timeout_ms
        self.drain_by_ms = self.now_ms() + timeout_ms
        self.draining = True
        for connection in self.connections:
            connection.drain(timeout_ms, REASON_DRAIN)
        await self._leave_path()
        if self.http is not None:
            self.http.drain()
        await self._until(lambda: not self._guests and not self._requests, self.drain_by_ms)
        await self.sink_watch.stop()
        left_seconds = (self.drain_by_ms - self.now_ms()) / 1000
        await self.sink.stop(max(left_seconds, SINK_STOP_SECONDS_MIN))
        # What the sink has just settled is answered by a callback that is scheduled before this.
        await pause(0)
        for connection in self.connections:
            connection.close(REASON_DRAIN)
        await self._until(lambda: not self._guests, self.now_ms() + limits.LAST_ANSWER_MS)
        for connection in self.connections:
            connection.abort(REASON_DRAIN)
        await self._stop_http()
        self._tick_timer.cancel()
        self._tick_timer = None

    async def _start_http(self) -> None:
        if self.settings.http_listener:
            from penstock.host.server.http import HttpFront

            self.http = HttpFront(self)
            await self.http.start()

    async def _stop_http(self) -> None:
        if self.http is not None:
            await self.http.stop()

    @property
    def _requests(self) -> int:
        """Requests of the HTTP front under way."""
        return 0 if self.http is None else self.http.in_flight

    async def _claim(self) -> SocketFile:
        settings = self.settings
        tries = 0
        while True:
            try:
                return SocketFile.claim(
                    settings.socket_path,
                    mode=settings.socket_permissions,
                    directory_mode=settings.directory_permissions,
                    takeover=settings.socket_takeover,
                )
            except SocketDirectoryBusy:
                tries += 1
                if tries >= DIRECTORY_TRIES:
                    raise
            await pause(DIRECTORY_PAUSE_SECONDS)

    async def _leave_path(self) -> None:
        """Give the path up. The file goes first: an open listener keeps its inode from others."""
        file, self._file = self._file, None
        if file is None:
            return
        self._stop_listening(file)
        tries = 0
        while not file.remove() and tries < DIRECTORY_TRIES:
            tries += 1
            await pause(DIRECTORY_PAUSE_SECONDS)
        file.close()

    async def _until(self, condition: Callable[[], bool], by_ms: float) -> None:
        """Wait for a condition, looked at when a connection ends and at every tick."""
        over: asyncio.Future[None] = self._loop.create_future()
        self._wait = (lambda: condition() or self.now_ms() >= by_ms, over)
        self._look()
        await over
        self._wait = None

    def _look(self) -> None:
        if self._wait is not None:
            condition, over = self._wait
            if not over.done() and condition():
                over.set_result(None)

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
                self.totals.accept_failures += 1
                self._report("accept", f"accepting pauses: {error}")
                self._stop_listening(file)
                return
            self._welcome(accepted)

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.socket_buffer_bytes)
        HostConnection(accepted, self, self._loop).start()

    # The clock

    def now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(TICK_SECONDS, self._tick)
        now_ms = self.now_ms()
        for guest, more in self.budget.top_up():
            if isinstance(guest, _Guest):
                self._widen(guest, more)
        if not self._after_a_stall(now_ms):
            for connection in self.connections:
                connection.tick(now_ms)
            if self.draining:
                self._close_idle(now_ms)
        self._listen()  # where it had paused
        self._look()

    def _after_a_stall(self, now_ms: float) -> bool:
        """Whether this process stood still until now, so that what has come is yet to be read.

        Nobody is called silent, slow or idle before that. It is so for one tick at a time, or a
        process that is always late would never look.
        """
        late = now_ms - self._ticked_ms >= HELD_UP_MS
        self._ticked_ms = now_ms
        self._held_up = late and not self._held_up
        return self._held_up

    def _close_idle(self, now_ms: float) -> None:
        for connection, guest in list(self._guests.items()):
            if not connection.idle:
                guest.idle_since_ms = 0.0
            elif not guest.idle_since_ms:
                guest.idle_since_ms = now_ms
            elif now_ms - guest.idle_since_ms >= DRAIN_IDLE_MS:
                connection.close(REASON_DRAIN)

    def _widen(self, guest: _Guest, more: Credit) -> None:
        """Give a connection more credit; one that waits for HELLO is offered more."""
        connection = guest.connection
        if connection is None:
            return
        guest.credit = Credit(*(a + b for a, b in zip(guest.credit, more, strict=True)))
        machine = connection.machine
        if machine.state in (ServerState.HANDSHAKE, ServerState.INTRODUCING):
            machine.terms = dataclasses.replace(machine.terms, credit=guest.credit)
        else:
            machine.grant(more)  # goes out with the connection's tick

    # What connections ask for

    def terms(self) -> ServerTerms:
        if len(self._guests) >= self.settings.connections_max:
            self._next = None
            return self._terms
        guest = self._next = _Guest()
        guest.credit = self.budget.open(guest)
        return dataclasses.replace(self._terms, credit=guest.credit)

    def opened(self, connection: HostConnection) -> bool:
        self.totals.connections += 1
        guest, self._next = self._next, None
        if guest is None:
            self.totals.refused_connections += 1
            most = self.settings.connections_max
            self._report("connections", f"more than {most} connections (host.connections.max)")
            return False
        guest.connection = connection
        self._guests[connection] = guest
        return True

    def closed(self, connection: HostConnection, lost_frames: int, reason: str) -> None:
        self.totals.ended(connection.machine, lost_frames)
        guest = self._guests.pop(connection, None)
        if guest is not None:
            self.budget.close(guest)
            if guest.introduction is not None:
                guest.introduction.cancel()
        logger.debug("a producer has gone: %s", reason)
        self._look()

    def rejected(self, connection: HostConnection, error: Exception) -> None:
        self.totals.violations += 1
        machine = connection.machine
        who = f"producer {machine.producer_id} {machine.client_name[:NAME_CHARS_SHOWN]!r}"
        self._report(type(error).__name__, f"{who} sent what it may not: {error}")

    def introduce(
        self,
        connection: HostConnection,
        producer_id: int,
        topics: Sequence[str],
        done: Introduced,
    ) -> None:
        task = self._loop.create_task(self._introduce(producer_id, topics))
        self._guests[connection].introduction = task

        def finish(task: asyncio.Task[Introduction | PenstockError]) -> None:
            if not task.cancelled():
                done(task.result())

        task.add_done_callback(finish)

    async def ask_sink(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        """Introduce a producer to the sink, within a bound.

        Raises:
            SinkUnavailable: the sink does not say in time.
            PenstockError: as `ChunkSink.introduce`.
        """
        try:
            async with asyncio.timeout(limits.INTRODUCE_MS / 1000):
                return await self.sink.introduce(producer_id, topics)
        except TimeoutError:
            raise late(self.sink, limits.INTRODUCE_MS) from None

    async def _introduce(
        self, producer_id: int, topics: Sequence[str]
    ) -> Introduction | PenstockError:
        try:
            return await self.ask_sink(producer_id, topics)
        except PenstockError as error:
            return error
        except Exception:
            logger.exception("the sink %s failed to introduce a producer", self.sink.name)
            return UnavailableError("the agent failed on this producer; its log has the cause")

    def _report(self, kind: str, sentence: str) -> None:
        """Log the first of its kind as a warning, all others only for who debugs."""
        first = kind not in self._reported
        self._reported.add(kind)
        logger.log(logging.WARNING if first else logging.DEBUG, "%s", sentence)

    def _samples(self) -> Sequence[Sample]:
        return list(metrics.samples(self))
