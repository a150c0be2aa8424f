"""The client's end of a socket: how it is opened, what it brings, what it has still to take.

Everything that both clients do with a socket stands here, and nothing here waits: `Inbox` cuts
received bytes into frames, `Outbound` sends pieces until the kernel takes no more.

Answers are small, so one buffer of the size of the largest header is received into again and
again. Small pieces are joined before they are sent: the copy costs less than what the kernel does
per piece.

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
"""Pieces of one sendmsg."""

JOINED_BYTES_MAX: Final = 128 << 10
"""Up to this size pieces are joined."""

_LARGE_PIECE_BYTES: Final = 16 << 10
"""Pieces that are on average this large are not joined."""

_INBOX_BYTES: Final = 2 * (HEADER_BYTES_MAX + 1 + PRELUDE_BYTES)
_DONTWAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_EXPLAINED: Final = {
    errno.ENOENT: "there is no such file: no agent runs, or it serves another path",
    errno.ECONNREFUSED: "no agent serves it, or the path is not a socket",
    errno.EACCES: "permission denied: the user has to be in the agent's group",
    errno.EAGAIN: "the agent does not accept connections at the moment",
    errno.EPROTOTYPE: "it is a socket of another kind",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.ETIMEDOUT: "the agent does not accept connections at the moment",
}


def open_socket(options: ClientOptions) -> socket.socket:
    """Connect, without waiting: a Unix socket is connected at once or not at all.

    The socket returned is blocking.

    Raises:
        NotConnected: it cannot be connected now, and why.
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
    """A ring for one connection, if one is wanted and the host has the memory.

    Never the ring of an earlier connection: its agent may still be reading there.
    """
    if not options.ring_bytes:
        return None
    try:
        return Ring.create(options.ring_bytes)
    except InvalidRing:
        return None


class Inbox:
    """Received bytes, cut into frames."""

    __slots__ = ("_data", "_filled", "_view", "room")

    def __init__(self) -> None:
        self._data = bytearray(_INBOX_BYTES)
        self._view = memoryview(self._data)
        self._filled = 0
        self.room = self._view
        """Where the next bytes are to be received."""

    def take(self, received: int) -> list[Frame]:
        """The frames that are whole now that `received` bytes have come into `room`.

        Raises:
            MalformedFrame: the agent cannot be trusted.
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
        """Forget what has come of an earlier connection."""
        self._filled = 0
        self.room = self._view


class Outbound:
    """Pieces of bytes on their way into one socket, in order."""

    __slots__ = ("_fd", "_pieces", "waiting")

    def __init__(self, ring: Ring | None = None) -> None:
        self._pieces: deque[Readable] = deque()
        self._fd = -1 if ring is None else ring.fd
        self.waiting = False
        """Whether the kernel has not taken everything."""

    def send(self, sock: socket.socket, pieces: Sequence[Readable] = ()) -> None:
        """Send pieces behind those that wait, as far as the kernel takes them now.

        Raises:
            OSError: the connection is of no more use for sending.
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
