"""Connection of a client to its agent, over consecutive sockets: the core and one socket.

Both clients use this class, and differ only in how they wait: `Engine` with threads, under its
lock, and `AsyncHostClient` on its loop. Nothing in this module waits. Times are milliseconds of a
monotonic clock.

The agent may close the connection while answers are still unread here. So if sending fails, this
class only stops sending. The connection ends when all received bytes have been read.
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
"""Maximum time in milliseconds to read remaining answers after sending has failed."""


class Line:
    """Core of a client, with its present socket."""

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
        """Whether the last connection ended with a rejected HELLO."""
        self.refused_for_good = False
        """Whether another HELLO would be rejected too."""
        self.starts = 0
        """Number of times that an agent has accepted this producer."""
        self.retimed = False
        """Whether a frame arrived that may change the time of the next `tick`."""
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
        """Return an error with the reason why no agent is connected."""
        if self.refused:
            return HandshakeRefused(
                f"the agent at {self._options.path} rejected the connection: {self.why}"
            )
        return NotConnected(f"no connection to the agent: {self.why}")

    # Connecting

    @property
    def wanted(self) -> bool:
        """Whether to connect; a closing client does so only while publications are left."""
        core = self.core
        return not core.closing or core.outstanding > 0

    def connect_at_ms(self) -> float:
        """Return the time of the next connection attempt; infinity if none is due."""
        return self.core.reconnect_at_ms if self.socket is None and self.wanted else inf

    def connect(self, now_ms: float) -> bool:
        """Try to connect once; return whether a socket is open, on which HELLO was sent."""
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
        """End the connection with a reason."""
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
        """Publish what credit and order allow, and send it until the kernel's buffer is full."""
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
        """Receive into the inbox; return the number of bytes, 0 at the end, -1 for none now."""
        current = self.socket
        return -1 if current is None else receive_from(current, self.inbox.room, flags)

    def arrived(self, received: int, now_ms: float) -> None:
        """Process the bytes that `receive` returned, and send what can be sent now."""
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
            self.lost(f"the agent sent an invalid frame: {error}", now_ms)
            return
        if core.machine.state is ClientState.DRAINING:
            self.tick(now_ms)
        else:
            self.flush(now_ms)

    # Time

    def tick(self, now_ms: float) -> None:
        """Handle timeouts, and send what can be sent now."""
        if not self._digest(self.core.tick(now_ms), now_ms):
            return
        if now_ms >= self._give_up_at_ms:
            if self._sendable:
                limit = self._options.connect_timeout_ms
                self.lost(f"the agent did not answer HELLO within {limit} ms", now_ms)
            else:
                self.lost(self.why, now_ms)
            return
        self.flush(now_ms)

    def next_wake_ms(self, now_ms: float) -> float:
        """Return the time of the next call of `tick` or `connect`."""
        if self.socket is None and not self.wanted:
            return inf
        return min(self.core.next_wake_ms(now_ms), self._give_up_at_ms)

    def _digest(self, events: list[Event], now_ms: float) -> bool:
        """Handle the core's events; return False if the connection has ended."""
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
    """Return the number of received bytes, 0 at the end of the connection, -1 if none are there."""
    try:
        return current.recv_into(room, 0, flags)
    except (BlockingIOError, InterruptedError):
        return -1
    except OSError:
        return 0
