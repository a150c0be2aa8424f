"""Connection of a client to its agent, over consecutive sockets: the core and one socket.

Both clients use this class, and differ only in how they wait: `Engine` with threads, under its
lock, and `AsyncHostClient` on its loop. Nothing in this module waits. Times are milliseconds of a
monotonic clock.

The agent may close the connection while answers are still unread here. So if sending fails, this
class only stops sending. The connection ends when all received bytes have been read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import Final

from penstock.base.crc import Readable
from penstock.base.errors import BugError, CorruptError
from penstock.base.system import Randomness
from penstock.host.client.options import ClientOptions
from penstock.host.client_machine import (
    LARGE_PIECE_BYTES,
    ClientState,
    Disconnect,
    Drained,
    Event,
    Started,
)
from penstock.host.delivery import Delivery
from penstock.host.errors import HandshakeRefused, InvalidRing, NotConnected
from penstock.host.ring import Ring, send_with_ring
from penstock.wire.frames import ACCEPTED, HEADER_BYTES_MAX, PRELUDE_BYTES, Frame, decode

# Socket of a client: opening, the frames that arrive, and the bytes that wait to be sent.
#
# Both clients use this module, and nothing in it waits. `Inbox` cuts received bytes into frames.
# `Outbound` sends pieces until the kernel's send buffer is full.
#
# Answers are small, so one buffer of the size of the largest header is used for all receives. Small
# pieces are joined before they are sent, because a copy costs less than the kernel's work per
# piece.
#
# Source: sendmsg(2), `IOV_MAX`; unix(7).


IOV_MAX: Final = 1024
"""Maximum number of pieces per sendmsg call."""

JOINED_BYTES_MAX: Final = 128 << 10
"""Maximum total bytes of pieces that are joined before they are sent."""

_INBOX_BYTES: Final = 2 * (HEADER_BYTES_MAX + 1 + PRELUDE_BYTES)
_DONTWAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_EXPLAINED: Final = {
    errno.ENOENT: "the file does not exist; no agent runs, or it uses another path",
    errno.ECONNREFUSED: "no agent listens on it, or the path is not a socket",
    errno.EACCES: "permission denied; the user must be in the group of the socket file",
    errno.EAGAIN: "the agent accepts no connections now",
    errno.EPROTOTYPE: "it is a socket of another type",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.ETIMEDOUT: "the agent accepts no connections now",
}


def open_socket(options: ClientOptions) -> socket.socket:
    """Open a connected, blocking socket, without waiting.

    A Unix socket connects at once or fails.

    Raises:
        NotConnected: the connection failed; the message has the reason.
    """
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            opened.setsockopt(socket.SOL_SOCKET, option, options.socket_buffer_bytes)
        opened.setblocking(False)
        opened.connect(options.path)
        opened.setblocking(True)
    except OSError as error:
        opened.close()
        why = _EXPLAINED.get(error.errno or 0) or os.strerror(error.errno or 0)
        raise NotConnected(f"{options.path}: {why}") from error
    return opened


def make_ring(options: ClientOptions) -> Ring | None:
    """Return a new ring for one connection; None if the options or the host's memory allow none.

    A ring of an earlier connection is never used again, because its agent may still be reading it.
    """
    if not options.ring_bytes:
        return None
    try:
        return Ring.create(options.ring_bytes)
    except InvalidRing:
        return None


class Inbox:
    """Received bytes of one connection, cut into frames."""

    __slots__ = ("_data", "_filled", "_view", "room")

    def __init__(self) -> None:
        self._data = bytearray(_INBOX_BYTES)
        self._view = memoryview(self._data)
        self._filled = 0
        self.room = self._view
        """Memory for the next received bytes."""

    def take(self, received: int) -> list[Frame]:
        """Return the frames that are complete after `received` bytes were received into `room`.

        Raises:
            MalformedFrame: the agent sent invalid bytes.
        """
        view = self._view
        at, end = 0, self._filled + received
        data = view[:end]
        frames: list[Frame] = []
        while at < end:
            frame, size = decode(data, at, HEADER_BYTES_MAX)
            if frame is None:
                break
            at += size
            frames.append(frame)
        left = end - at
        if left:
            view[:left] = bytes(view[at:end])
        if left != self._filled:
            self._filled = left
            self.room = view[left:]
        return frames

    def clear(self) -> None:
        """Discard bytes of an earlier connection."""
        self._filled = 0
        self.room = self._view


class Outbound:
    """Pieces of bytes that wait to be sent on one socket, in order."""

    __slots__ = ("_fd", "_pieces", "waiting")

    def __init__(self, ring: Ring | None = None) -> None:
        self._pieces: deque[Readable] = deque()
        self._fd = -1 if ring is None else ring.fd
        self.waiting = False
        """Whether bytes wait, because the kernel's send buffer was full."""

    def send(self, sock: socket.socket, pieces: Sequence[Readable] = ()) -> None:
        """Send pieces after those that wait, until the kernel's send buffer is full.

        Raises:
            OSError: the connection cannot be used for sending any more.
        """
        if self.waiting:
            self._pieces.extend(pieces)
            self._send_waiting(sock)
        elif pieces:
            self._send_new(sock, pieces)

    def _send_new(self, sock: socket.socket, pieces: Sequence[Readable]) -> None:
        if len(pieces) == 1:
            data = pieces[0]
        else:
            size = sum(map(len, pieces))
            if size > JOINED_BYTES_MAX or size >= LARGE_PIECE_BYTES * len(pieces):
                self._pieces.extend(pieces)
                self._send_waiting(sock)
                return
            data = b"".join(pieces)
        try:
            if self._fd >= 0:
                sent, self._fd = send_with_ring(sock, data, self._fd), -1
            else:
                sent = sock.send(data, _DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._pieces.append(memoryview(data)[sent:])
            self.waiting = True

    def _send_waiting(self, sock: socket.socket) -> None:
        pieces = self._pieces
        self.waiting = True
        while pieces:
            try:
                sent = sock.sendmsg(islice(pieces, IOV_MAX), (), _DONTWAIT)
            except BlockingIOError:
                return
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.popleft())
            if sent:
                pieces[0] = memoryview(pieces[0])[sent:]
        self.waiting = False


_UNSENDABLE_GRACE_MS = 1_000
"""Maximum time in milliseconds to read remaining answers after sending has failed."""


class Line:
    """Client's `Delivery` core, with the socket to the agent that is open now."""

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
        """End the connection for a reason; `refused` means that the agent rejected HELLO."""
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
                ring.write(
                    publication.ring_position, publication.payload, publication.payload_bytes
                )
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
