"""Notices between processes of one machine, over sockets that their parent made before they began.

Each has two inboxes, to which all others send: a *bell*, a stream in which a byte means that
metadata changed, and datagrams of marks. Nobody waits for a reader: a bell that is full rings
anyway, and for marks that found no room the bell is rung, upon which all is looked at.

The parent keeps all ends open, so what comes while a process is started again waits for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.control.batch_index.values import PartitionKey, Watermarks
from penstock.control.drivers.mark_notices import decode_marks, watermark_notices
from penstock.control.limits import NOTICE_BYTES_MAX
from penstock.control.values import WatermarksListener

_DATAGRAMS_PER_TURN: Final = 64


class Inbox(NamedTuple):
    """Where one process is told by others: ends to read from and to send to."""

    bell: socket.socket
    ring: socket.socket
    marks: socket.socket
    tell: socket.socket

    def close(self) -> None:
        for end in self:
            end.close()


def new_inbox() -> Inbox:
    """An inbox of which nobody has an end yet."""
    inbox = Inbox(*socket.socketpair(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    for end in inbox:
        end.setblocking(False)
    return inbox


class SocketNotices:
    """One process's own inbox and those of the others."""

    def __init__(self, own: Inbox, others: Sequence[Inbox]) -> None:
        self._own = own
        self._others = others
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        """Have the running loop call back from now on."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._own.bell, self._rung, on_image)
        self._loop.add_reader(self._own.marks, self._told, on_watermarks)

    def close(self) -> None:
        """Listen no more; the ends are the parent's. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._own.bell)
            self._loop.remove_reader(self._own.marks)
            self._loop = None

    def ring(self) -> None:
        """Tell the others that metadata changed; from any thread."""
        for other in self._others:
            _ring(other)

    def tell(self, marks: Mapping[PartitionKey, Watermarks]) -> None:
        """Tell the others what was committed."""
        for notice in watermark_notices("m", marks):
            for other in self._others:
                try:
                    other.tell.send(notice.encode())
                except BlockingIOError:
                    _ring(other)

    def _rung(self, on_image: Callable[[], None]) -> None:
        with suppress(BlockingIOError):
            self._own.bell.recv(NOTICE_BYTES_MAX)
            on_image()

    def _told(self, on_watermarks: WatermarksListener) -> None:
        with suppress(BlockingIOError):
            for _ in range(_DATAGRAMS_PER_TURN):
                notice = self._own.marks.recv(NOTICE_BYTES_MAX).decode()
                on_watermarks(decode_marks(notice.split(" ")[1:]))


def _ring(other: Inbox) -> None:
    with suppress(BlockingIOError):
        other.ring.send(b"i")
