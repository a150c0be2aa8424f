"""A client's line to its agent: the core, one socket at a time, and no waiting.

Both clients use this and differ only in how they wait: `BlockingEngine` with threads, under its
lock, `AsyncHostClient` on its loop. Times are milliseconds of a monotonic clock.

The agent may close the connection with answers still unread on this side. If sending fails, the
line therefore only stops sending; it ends when all received bytes have been read.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from math import inf

from penstock.base.errors import BugError, CorruptError
from penstock.base.system import Randomness
from penstock.host.client.connecting import Inbox, Outbound, make_ring, open_socket
from penstock.host.client.options import ClientOptions
from penstock.host.client_machine import (
    ClientState,
    Disconnect,
    Drained,
    Event,
    Started,
)
from penstock.host.delivery import Delivery
from penstock.host.errors import HandshakeRefused, NotConnected
from penstock.host.ring import Ring
from penstock.wire.frames import ACCEPTED

_UNSENDABLE_GRACE_MS = 1_000
"""How long a line that cannot send waits for the end of what it receives."""


class Line:
    """The core of a client with the socket it has at the moment."""

    def __init__(
        self,
        options: ClientOptions,
        core: Delivery,
        randomness: Randomness,
        retire: Callable[[socket.socket], None],
    ) -> None:
        self.core = core
        self.inbox = Inbox()
        self.out = Outbound()
        self.socket: socket.socket | None = None
        self.why = "no connection has been made yet"
        self.refused = False
        """Whether the last connection ended with a HELLO that was answered with no."""
        self.refused_for_good = False
        """And whether another HELLO would be answered likewise."""
        self.starts = 0
        """How often an agent has taken this producer in."""
        self.retimed = False
        """Whether something came that may change when `tick` is to be called."""
        self._options = options
        self._randomness = randomness
        self._retire = retire
        self._ring: Ring | None = None
        self._give_up_at_ms = inf
        self._sendable = True

    @property
    def started(self) -> bool:
        return self.core.machine.state is ClientState.STARTED

    def trouble(self) -> NotConnected | HandshakeRefused:
        """Why there is no agent."""
        if self.refused:
            return HandshakeRefused(
                f"the agent at {self._options.path} rejected the connection: {self.why}"
            )
        return NotConnected(f"no connection to the agent: {self.why}")

    # Connecting

    @property
    def wanted(self) -> bool:
        """A client that is being closed, or was fenced, connects only for what it still has."""
        core = self.core
        return not core.closing or core.outstanding > 0

    def connect_at_ms(self) -> float:
        """When the next attempt is due."""
        return self.core.reconnect_at_ms if self.socket is None and self.wanted else inf

    def connect(self, now_ms: float) -> bool:
        """Try once; whether a socket stands now, on which HELLO has been sent."""
        try:
            opened = open_socket(self._options)
        except NotConnected as error:
            self._note(str(error), refused=False)
            self.core.disconnected(self.why, now_ms, self._randomness.uniform())
            return False
        self.socket = opened
        self.inbox.clear()
        ring = self._ring = make_ring(self._options)
        self.out = Outbound(ring)
        self._sendable = True
        self._give_up_at_ms = now_ms + self._options.connect_timeout_ms
        self.core.connected(now_ms, ring=ring is not None)
        self.flush(now_ms)
        return True

    def lost(self, reason: str, now_ms: float, *, refused: bool = False) -> None:
        """The connection is over."""
        old, self.socket = self.socket, None
        if old is None:
            return
        self._note(reason, refused=refused)
        self.out = Outbound()
        self._give_up_at_ms = inf
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        with contextlib.suppress(OSError):
            old.shutdown(socket.SHUT_RDWR)  # ends what another thread is blocked in
        self.core.disconnected(reason, now_ms, self._randomness.uniform())
        self._retire(old)

    def _note(self, why: str, *, refused: bool) -> None:
        self.why, self.refused, self.refused_for_good = why, refused, False

    # Bytes

    def flush(self, now_ms: float) -> None:
        """Publish what may be published, and send as far as the kernel takes it."""
        core = self.core
        core.pump(now_ms)
        current = self.socket
        if current is None:
            return
        pieces = core.take_output()
        if not pieces and not self.out.waiting:
            return
        ring = self._ring
        if ring is not None:
            for publication in core.take_ring_writes():
                ring.write(publication.ring_position, publication.payload)
        if not self._sendable:
            return
        try:
            self.out.send(current, pieces)
        except OSError as error:
            self._sendable = False
            self.out = Outbound()
            self.why = f"sending failed: {os.strerror(error.errno or 0)}"
            self._give_up_at_ms = now_ms + _UNSENDABLE_GRACE_MS

    def receive(self, flags: int = 0) -> int:
        """Receive into the inbox: how many bytes, 0 at the end, -1 when there is nothing now."""
        current = self.socket
        return -1 if current is None else receive_from(current, self.inbox.room, flags)

    def arrived(self, received: int, now_ms: float) -> None:
        """Take in what `receive` returned, answer, and send what can be sent now."""
        if received <= 0:
            if received == 0:
                self.lost("the agent closed the connection", now_ms)
            return
        core = self.core
        try:
            for frame in self.inbox.take(received):
                if frame.header.type != ACCEPTED:
                    self.retimed = True
                events = core.receive(frame, now_ms)
                if events and not self._digest(events, now_ms):
                    return
        except (CorruptError, BugError) as error:
            self.lost(f"the agent cannot be trusted: {error}", now_ms)
            return
        if core.machine.state is ClientState.DRAINING:
            self.tick(now_ms)
        else:
            self.flush(now_ms)

    # Time

    def tick(self, now_ms: float) -> None:
        """Look at the clock, and send what can be sent now."""
        if not self._digest(self.core.tick(now_ms), now_ms):
            return
        if now_ms >= self._give_up_at_ms:
            if self._sendable:
                limit = self._options.connect_timeout_ms
                self.lost(f"the agent did not answer HELLO in {limit} ms", now_ms)
            else:
                self.lost(self.why, now_ms)
            return
        self.flush(now_ms)

    def next_wake_ms(self, now_ms: float) -> float:
        """When `tick`, or `connect`, is to be called next."""
        if self.socket is None and not self.wanted:
            return inf
        return min(self.core.next_wake_ms(now_ms), self._give_up_at_ms)

    def _digest(self, events: list[Event], now_ms: float) -> bool:
        """Do what the core asks for; False when the connection is over."""
        for event in events:
            if isinstance(event, Disconnect):
                self.lost(event.reason, now_ms, refused=event.refused)
                self.refused_for_good = event.refused and not event.retryable
                return False
            if isinstance(event, Started):
                self._give_up_at_ms = inf
                self.starts += 1
                self.refused = self.refused_for_good = False
                if not event.ring and self._ring is not None:
                    self._ring.close()
                    self._ring = None
            elif isinstance(event, Drained):
                self._note(event.reason or "the agent is draining", refused=False)
        return True


def receive_from(current: socket.socket, room: memoryview, flags: int = 0) -> int:
    """Return how many bytes were received, 0 at the end of the connection, -1 if there are none
    now."""
    try:
        return current.recv_into(room, 0, flags)
    except (BlockingIOError, InterruptedError):
        return -1
    except OSError:
        return 0
