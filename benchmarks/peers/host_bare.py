"""The least that both sides of the host socket can do in Python: frames, answers, system calls.

    python -m benchmarks.peers.host_bare PATH

The agent takes frames apart by the product's decoder, and accepts all that one receive brought by
one answer. The producer describes its chunks, encodes a header and sends. Neither has credit,
order, futures, threads, time limits, checks of fields, a sink, or anything to send again.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import uvloop

from penstock.apps.loads.unix_socket import connect, listen
from penstock.host.client.publications import many
from penstock.host.publication import single
from penstock.host.ring import Ring
from penstock.wire.frames import ACCEPTED, Frame, Header, decode, encode

FRAME_BYTES_MAX = 16 << 20
BUFFER_BYTES = 2 * FRAME_BYTES_MAX
TURN_BYTES = 1 << 20
ANSWER_BYTES = 64 << 10
ANSWERS_READ_EVERY = 8
"""Frames, as the client does."""


class Producer:
    """A connection to the bare agent."""

    def __init__(self, path: str) -> None:
        self._socket = connect(path)
        self._sequence = self._accepted = 0
        self._rest = b""

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def batches(self, chunks: Any, count: int, ring: Ring | None = None) -> float:
        """Send the same frame of chunks `count` times; return MB/s until all are accepted.

        Args:
            chunks: a sequence, or an Arrow array.
        """
        last = self._sequence + count * len(chunks)
        position = size_bytes = 0
        begun = time.perf_counter()
        for number in range(count):
            publication = many(chunks, None, "", -1)
            publication.first_sequence = self._sequence
            self._sequence += publication.count
            header, size_bytes = publication.header(), publication.payload_bytes
            if ring is None:
                self._socket.sendall(
                    b"".join((encode(header, payload_bytes=size_bytes), *publication.payload))
                )
                self._look(number)
                continue
            if position + size_bytes > ring.size_bytes:
                position = 0
            ring.write(position, publication.payload, size_bytes)
            header.ring_position, header.ring_bytes = position, size_bytes
            position += size_bytes
            self._socket.send(encode(header, in_ring=True))
            self._look(number)
        self._await(last)
        return size_bytes * count / (time.perf_counter() - begun) / 1e6

    def send(self, payload: bytes) -> None:
        """Send one chunk and wait for the answer."""
        publication = single(payload)
        publication.first_sequence = self._sequence
        self._sequence += 1
        head = encode(publication.header(), payload_bytes=len(payload))
        self._socket.send(head + payload)
        self._await(self._sequence)

    def _await(self, sequence: int) -> None:
        """Return when all below a sequence is accepted."""
        while self._accepted < sequence:
            self._answered(self._socket.recv(ANSWER_BYTES))

    def _look(self, number: int) -> None:
        if number % ANSWERS_READ_EVERY == 0:
            with suppress(BlockingIOError):
                self._answered(self._socket.recv(ANSWER_BYTES, socket.MSG_DONTWAIT))

    def _answered(self, received: bytes) -> None:
        data, at = self._rest + received, 0
        while (found := decode(data, at, FRAME_BYTES_MAX))[0] is not None:
            frame: Frame = found[0]
            at += found[1]
            self._accepted = frame.header.ranges[-2] + frame.header.ranges[-1]
        self._rest = data[at:]


class Agent:
    """The other side of one connection."""

    def __init__(self, accepted: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        accepted.setblocking(False)
        self._socket = accepted
        self._loop = loop
        self._memory = memoryview(bytearray(BUFFER_BYTES))
        self._filled = self._size = 0
        loop.add_reader(accepted.fileno(), self._readable)

    def _readable(self) -> None:
        size, filled = self._size, self._filled
        stop = max(TURN_BYTES // size, 1) * size if size else TURN_BYTES
        stop = stop if stop > filled else filled + TURN_BYTES
        received = self._socket.recv_into(self._memory[filled:stop])
        if not received:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            return
        filled += received
        data, at, ranges = self._memory[:filled], 0, [0, 0]
        while (found := decode(data, at, FRAME_BYTES_MAX))[0] is not None:
            header = found[0].header
            self._size = found[1]
            at += self._size
            ranges = [header.first_sequence, header.count or 1]
        self._filled = filled - at
        if at:
            self._memory[: self._filled] = self._memory[at:filled]
            self._socket.send(encode(Header(type=ACCEPTED, ranges=ranges)))


async def serve(path: str) -> None:
    """Accept producers until the process is ended."""
    loop = asyncio.get_running_loop()
    listener = listen(path)
    listener.setblocking(False)
    print("ready", flush=True)
    while True:
        accepted, _ = await loop.sock_accept(listener)
        Agent(accepted, loop)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
