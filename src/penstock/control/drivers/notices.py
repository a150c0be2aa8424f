"""Change notices between processes of one machine, over sockets that their parent creates.

Each process has an inbox of two socket pairs. The *bell* is a stream: any byte means that metadata
changed. The other pair receives watermarks as datagrams. Senders never block. A full bell still
signals the change. If a datagram does not fit, the sender rings the bell instead, and the receiver
reloads everything. The parent keeps all ends open, so notices wait for a process that restarts.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from penstock.control.values.diskless import PartitionKey, Watermarks
from penstock.control.values.errors import NOTICE_BYTES_MAX
from penstock.control.values.topics import WatermarksListener

# Encoding of the watermarks of diskless partitions, for the notices that brokers send each other.
#
# A partition is one word of numbers, separated by commas: topic id, partition, high watermark, log
# start. A partition with transactions has two more: the first offset of its first open transaction,
# and the marker of the last aborted one.


NoticedWatermarks = tuple[UUID, int, Watermarks]
"""Topic id, partition, and watermarks whose size in bytes is `UNKNOWN_SIZE`."""

UNKNOWN_SIZE: Final = -1


def watermark_notices(head: str, watermarks: Mapping[PartitionKey, Watermarks]) -> list[str]:
    """Encode watermarks as notices of at most `NOTICE_BYTES_MAX` bytes each.

    `head` is the beginning of each notice: its kind, and in PostgreSQL also the sender.
    """
    notices: list[str] = []
    words, size = [head], len(head)
    for (topic_id, partition), (start, end, _, open_offset, aborted_offset) in watermarks.items():
        word = f"{topic_id.hex},{partition},{end},{start}"
        if (open_offset, aborted_offset) != (-1, -1):
            word += f",{open_offset},{aborted_offset}"
        if size + len(word) + 1 > NOTICE_BYTES_MAX:
            notices.append(" ".join(words))
            words, size = words[:1], len(head)
        words.append(word)
        size += len(word) + 1
    return [*notices, " ".join(words)] if len(words) > 1 else notices


def decode_watermarks(words: Iterable[str]) -> list[NoticedWatermarks]:
    """Decode a notice's words after its head, one word per partition.

    Raises ValueError for a malformed word.
    """
    found: list[NoticedWatermarks] = []
    for word in words:
        topic_id, partition, end, start, *transactions = word.split(",")
        watermarks = Watermarks(int(start), int(end), UNKNOWN_SIZE, *map(int, transactions))
        found.append((UUID(hex=topic_id), int(partition), watermarks))
    return found


_DATAGRAMS_PER_TURN: Final = 64


class Inbox(NamedTuple):
    """The sockets of one process.

    This process reads from `bell` and `incoming`. The other processes write to `ring` and
    `outgoing`, which are the opposite ends.
    """

    bell: socket.socket
    ring: socket.socket
    incoming: socket.socket
    outgoing: socket.socket

    def close(self) -> None:
        for end in self:
            end.close()


def new_inbox() -> Inbox:
    inbox = Inbox(*socket.socketpair(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    for end in inbox:
        end.setblocking(False)
    return inbox


class SocketNotices:
    """Change notices of one process: its own inbox, and the inboxes of the other processes."""

    def __init__(self, own: Inbox, others: Sequence[Inbox]) -> None:
        self._own = own
        self._others = others
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, on_image: Callable[[], None], on_watermarks: WatermarksListener) -> None:
        """Call the callbacks on the running event loop when notices arrive."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._own.bell, self._on_bell, on_image)
        self._loop.add_reader(self._own.incoming, self._on_datagrams, on_watermarks)

    def close(self) -> None:
        """Stop listening. The sockets stay open, as the parent owns them. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._own.bell)
            self._loop.remove_reader(self._own.incoming)
            self._loop = None

    def ring(self) -> None:
        """Notify the other processes of a metadata change. Thread-safe."""
        for other in self._others:
            _ring(other)

    def send(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Send committed watermarks to the other processes."""
        for notice in watermark_notices("m", watermarks):
            for other in self._others:
                try:
                    other.outgoing.send(notice.encode())
                except BlockingIOError:
                    _ring(other)

    def _on_bell(self, on_image: Callable[[], None]) -> None:
        with suppress(BlockingIOError):
            self._own.bell.recv(NOTICE_BYTES_MAX)
            on_image()

    def _on_datagrams(self, on_watermarks: WatermarksListener) -> None:
        with suppress(BlockingIOError):
            for _ in range(_DATAGRAMS_PER_TURN):
                notice = self._own.incoming.recv(NOTICE_BYTES_MAX).decode()
                on_watermarks(decode_watermarks(notice.split(" ")[1:]))


def _ring(other: Inbox) -> None:
    with suppress(BlockingIOError):
        other.ring.send(b"i")
