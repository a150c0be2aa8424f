"""Socket of a client: opening, the frames that arrive, and the bytes that wait to be sent.

Both clients use this module, and nothing in it waits. `Inbox` cuts received bytes into frames.
`Outbound` sends pieces until the kernel's send buffer is full.

Answers are small, so one buffer of the size of the largest header is used for all receives. Small
pieces are joined before they are sent, because a copy costs less than the kernel's work per piece.

Source: sendmsg(2), `IOV_MAX`; unix(7).
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from penstock.base.crc import Readable
from penstock.host.client.options import ClientOptions
from penstock.host.errors import InvalidRing, NotConnected
from penstock.host.ring import Ring, send_with_ring
from penstock.wire.frames import HEADER_BYTES_MAX, PRELUDE_BYTES, Frame, decode

IOV_MAX: Final = 1024
"""Maximum number of pieces per sendmsg call."""

JOINED_BYTES_MAX: Final = 128 << 10
"""Maximum total bytes of pieces that are joined before they are sent."""

_LARGE_PIECE_BYTES: Final = 16 << 10
"""Average size in bytes from which pieces are not joined."""

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
            if size > JOINED_BYTES_MAX or size >= _LARGE_PIECE_BYTES * len(pieces):
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
