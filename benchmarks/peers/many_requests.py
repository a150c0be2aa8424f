"""Many small requests over many connections, beside a server that does only what it must.

The client keeps some requests in flight on each connection. It sends bytes that were built before
and counts the bytes of the answers, all of one size, so that it costs less than any server.

`BareServer` is the least that a Python server on uvloop does for a durable request: receive, write
and sync all requests of a turn with one call each, then send an answer of the size of a broker's.
It reads no request, checks nothing and keeps no log.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack

from benchmarks.peers.bare_client import received
from benchmarks.peers.round_trip import Script, checked_size

TIMEOUT_SECONDS = 60
WARM_UP_SECONDS = 0.5

BARE = """
import asyncio, os, sys, tempfile, uvloop
request_bytes, answer = int(sys.argv[1]), bytes(int(sys.argv[2]))
FILE_BYTES, BLOCK_BYTES = 64 << 20, 4096
file = tempfile.TemporaryFile(prefix='penstock-bench-')
file.write(bytes(FILE_BYTES)); file.flush(); os.fsync(file.fileno())
position, waiting = 0, []
def commit():
    global position, waiting
    group, waiting = waiting, []
    data = [part for _, _, part in group]
    size = sum(map(len, data))
    data.append(bytes(-size % BLOCK_BYTES))
    if position + size > FILE_BYTES - BLOCK_BYTES: position = 0
    for start in range(0, len(data), 1000):
        position += os.pwritev(file.fileno(), data[start:start + 1000], position)
    os.fdatasync(file.fileno())
    for transport, count, _ in group:
        if count and not transport.is_closing(): transport.write(answer * count)
class Bare(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport; self.left = 0
    def data_received(self, data):
        count, self.left = divmod(self.left + len(data), request_bytes)
        if not waiting: loop.call_soon(commit)
        waiting.append((self.transport, count, data))
async def main():
    global loop
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


class BareServer(Script):
    """Bare durable server in a process of its own."""

    def __init__(self, request_bytes: int, answer_bytes: int) -> None:
        super().__init__(BARE, request_bytes, answer_bytes)


def answered_per_second(
    port: int,
    request: bytes,
    *,
    connections: int,
    in_flight: int,
    seconds: float,
    answer_bytes: int = 0,
) -> float:
    """Return how many requests a second are answered.

    Args:
        answer_bytes: the size of an answer of the bare server; 0 asks the broker for it.
    """
    answer_bytes = answer_bytes or checked_size(port, request)
    by_descriptor: dict[int, socket.socket] = {}
    burst = [request * count for count in range(in_flight + 1)]
    answered, begun = 0, 0.0
    start = time.perf_counter()
    with ExitStack() as stack, select.epoll() as poll:
        for _ in range(connections):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            by_descriptor[connection.fileno()] = connection
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(connection.fileno(), select.EPOLLIN)
            connection.sendall(burst[in_flight])
        left = dict.fromkeys(by_descriptor, 0)
        while True:
            now = time.perf_counter()
            if not begun and now - start >= WARM_UP_SECONDS:
                answered, begun = 0, now
            elif begun and now - begun >= seconds:
                break
            for descriptor, _ in poll.poll(TIMEOUT_SECONDS):
                connection = by_descriptor[descriptor]
                size = left[descriptor] + len(received(connection))
                count, left[descriptor] = divmod(size, answer_bytes)
                if count:
                    answered += count
                    connection.sendall(burst[count])
    return answered / (now - begun)
