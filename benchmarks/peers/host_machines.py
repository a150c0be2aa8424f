"""The state machines of both sides of the host socket, with one socket and nothing else.

    python -m benchmarks.peers.host_machines PATH

They do what the protocol guarantees: credit, order, frames to be sent again, their time limits, and
checks of every field. There are no threads, locks, futures, tracing, access rules or sinks. Frames
are small and one is in flight, so each receive brings a whole frame.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time

import uvloop

from benchmarks.peers.host_bare import ANSWER_BYTES, BUFFER_BYTES, FRAME_BYTES_MAX
from penstock.apps.loads.unix_socket import connect, listen
from penstock.host.client.options import client_options
from penstock.host.client.publications import one
from penstock.host.client_machine import ClientState
from penstock.host.port import ACCEPTED, NO_PARTITION, NO_PRODUCER_ID, Introduction
from penstock.host.server.settings import HostSettings
from penstock.host.server_machine import Deliver, Introduce, ServerMachine, ServerTerms
from penstock.wire.frames import HEADER_BYTES_MAX, decode


class Producer:
    """A connection to the agent of this module."""

    def __init__(self, path: str) -> None:
        self._socket = connect(path)
        self._memory = memoryview(bytearray(ANSWER_BYTES))
        self._core = client_options(path).delivery(NO_PRODUCER_ID, 0)
        self._core.connected(_now_ms(), ring=False)
        self._socket.send(b"".join(self._core.take_output()))
        while self._core.machine.state is not ClientState.STARTED:
            self._receive()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, payload: bytes) -> None:
        """Send one chunk and wait for the answer."""
        core, now_ms = self._core, _now_ms()
        publication = one(payload, 1, "", NO_PARTITION)
        core.submit(publication, now_ms)
        core.pump(now_ms)
        self._socket.send(b"".join(core.take_output()))
        while not publication.ended:
            self._receive()

    def _receive(self) -> None:
        size = self._socket.recv_into(self._memory)
        if not size:
            raise ConnectionError("the agent closed the connection")
        frame, _ = decode(self._memory[:size], 0, HEADER_BYTES_MAX)
        if frame is not None:
            self._core.receive(frame, _now_ms())


class Agent:
    """The other side of one connection."""

    def __init__(self, accepted: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        accepted.setblocking(False)
        settings = HostSettings()
        terms = ServerTerms(
            credit=settings.credit,
            frame_bytes_max=FRAME_BYTES_MAX,
            idle_timeout_ms=settings.idle_timeout_ms,
            ping_interval_ms=settings.ping_interval_ms,
            retry_after_ms=settings.retry_after_ms,
        )
        self._machine = ServerMachine(terms, now_ms=_now_ms())
        self._socket = accepted
        self._memory = memoryview(bytearray(BUFFER_BYTES))
        self._loop = loop
        loop.add_reader(accepted.fileno(), self._readable)

    def _readable(self) -> None:
        size = self._socket.recv_into(self._memory)
        if not size:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            return
        machine = self._machine
        frame, _ = decode(self._memory[:size], 0, FRAME_BYTES_MAX)
        effect = None if frame is None else machine.receive(frame)
        if isinstance(effect, Deliver):
            machine.completed(effect.chunks, ACCEPTED)
        elif isinstance(effect, Introduce):
            machine.introduced(Introduction(producer_id=1, partitions={}))
        machine.heard(_now_ms())
        machine.flush()
        self._socket.send(b"".join(machine.take_output()))


def _now_ms() -> float:
    return time.monotonic() * 1000


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
