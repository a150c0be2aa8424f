"""Rings that producers offer to an agent: good ones, bad ones, none, too many.

After any offer, the connection continues with payloads on the socket, and the agent keeps no
descriptor that it does not use.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterator

import pytest

from penstock.host.ring import Ring
from penstock.wire.frames import (
    ACCEPTED,
    DATA,
    FAILED,
    HELLO,
    HELLO_ACK,
    Frame,
    Header,
    decode,
    encode,
)
from tests.host.client.agents import PATIENCE_SECONDS, ThreadAgent, wait_for
from tests.host.open_files import open_files

SIZE = 19 * mmap.PAGESIZE
NAME = f"offered-{os.getpid()}-"
"""How the names of all files begin that are offered here."""
SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Producer:
    """A raw socket that says HELLO with any descriptors."""

    def __init__(self, path: str, *, ring_bytes: int, fds: list[int]) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(path)
        self._data = b""
        hello = Header(type=HELLO, version_min=1, version_max=1, ring_size_bytes=ring_bytes)
        socket.send_fds(self.socket, [encode(hello)], fds)
        for fd in fds:
            os.close(fd)
        answer = self.receive()
        assert answer is not None
        assert answer.header.type == HELLO_ACK
        assert answer.header.accepted
        self.ring_bytes = answer.header.ring_size_bytes

    def receive(self) -> Frame | None:
        while True:
            frame, size = decode(self._data, 0, 1 << 20)
            if frame is not None:
                self._data = self._data[size:]
                return frame
            more = self.socket.recv(1 << 16)
            if not more:
                return None
            self._data += more

    def publish(self, sequence: int, payload: bytes) -> Frame | None:
        head = encode(Header(type=DATA, first_sequence=sequence, event_count=1), [payload])
        self.socket.sendall(head + payload)
        return self.receive()

    def publish_in_ring(self, sequence: int, position: int, size: int) -> Frame | None:
        header = Header(
            type=DATA,
            first_sequence=sequence,
            event_count=1,
            ring_position=position,
            ring_bytes=size,
        )
        self.socket.sendall(encode(header, in_ring=True))
        return self.receive()


def memory_file(size: int, seals: int) -> int:
    fd = os.memfd_create(NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def plain_file() -> int:
    with tempfile.NamedTemporaryFile(prefix=NAME) as file:
        file.truncate(SIZE)
        return os.dup(file.fileno())


def good() -> int:
    return memory_file(SIZE, SEALED)


def punch_hole(fd: int, offset: int, size: int) -> None:
    """fallocate(2) with FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    assert libc.fallocate(fd, 3, offset, size) == 0, os.strerror(ctypes.get_errno())


def offered() -> int:
    """Return the number of open descriptors of offered rings; others may be other tests'."""
    return sum(
        NAME in target or (target.startswith("/memfd:penstock-ring ") and size == SIZE)
        for target, size in open_files()
    )


def accepted_socket(agent: ThreadAgent) -> str:
    """The agent's end of its only connection, as descriptors lead to it."""

    def find() -> str:
        (connection,) = agent.agent.connections
        return f"socket:[{os.fstat(connection._socket.fileno()).st_ino}]"

    return str(agent.call(find))


def nothing_is_left(agent: ThreadAgent, accepted: str) -> None:
    """Wait until the agent has closed its end of the socket, and everything offered."""
    wait_for(lambda: not agent.agent.connections)
    targets = [target for target, _ in open_files()]
    assert accepted not in targets
    wait_for(lambda: offered() == 0)


@pytest.fixture
def agent() -> Iterator[ThreadAgent]:
    with (
        tempfile.TemporaryDirectory(prefix="ps-") as directory,
        ThreadAgent(f"{directory}/s") as agent,
    ):
        yield agent


@pytest.mark.parametrize(
    ("ring_bytes", "makers", "mapped"),
    [
        (SIZE, [good], True),
        (SIZE // 2, [good], True),
        (SIZE, [good, good, plain_file], True),
        (SIZE, [], False),
        (0, [good], False),
        (0, [plain_file, good], False),
        (SIZE, [lambda: memory_file(SIZE, 0)], False),
        (SIZE, [lambda: memory_file(SIZE, fcntl.F_SEAL_GROW)], False),
        (SIZE, [lambda: memory_file(SIZE - 1, SEALED)], False),
        (SIZE, [plain_file], False),
        (SIZE, [plain_file, good], False),
        (1 << 60, [good], False),
        (2**64 - 1, [good], False),
    ],
)
def test_offers(
    agent: ThreadAgent, ring_bytes: int, makers: list[Callable[[], int]], mapped: bool
) -> None:
    assert offered() == 0
    path = agent.agent.settings.socket_path
    producer = Producer(path, ring_bytes=ring_bytes, fds=[make() for make in makers])
    assert producer.ring_bytes == (ring_bytes if mapped else 0)
    answer = producer.publish(0, b"on the socket")
    assert answer is not None
    assert answer.header.type == ACCEPTED
    accepted = accepted_socket(agent)
    assert mapped <= offered() <= 1, "at most the ring"
    answer = producer.publish_in_ring(1, 0, SIZE // 2)
    assert answer is not None
    assert answer.header.type == (ACCEPTED if mapped else FAILED)
    if not mapped:
        assert "no ring" in answer.header.reason
        assert producer.receive() is None
    producer.socket.close()
    nothing_is_left(agent, accepted)
    chunks = [frame.chunks for frame in agent.frames()]
    assert chunks == [(b"on the socket",), (bytes(SIZE // 2),)][: 1 + mapped]


@pytest.mark.parametrize(
    ("position", "size"), [(SIZE, 1), (0, SIZE + 1), (1, SIZE), (2**63, 1), (2**64 - 1, 2**31)]
)
def test_a_place_outside_the_ring_ends_the_connection(
    agent: ThreadAgent, position: int, size: int
) -> None:
    producer = Producer(agent.agent.settings.socket_path, ring_bytes=SIZE, fds=[good()])
    accepted = accepted_socket(agent)
    assert offered() == 1
    answer = producer.publish_in_ring(0, position, size)
    assert answer is not None
    assert (answer.header.type, answer.header.count) == (FAILED, 0)
    assert producer.receive() is None
    producer.socket.close()
    nothing_is_left(agent, accepted)


def test_a_producer_cannot_make_the_agent_fault(agent: ThreadAgent) -> None:
    """Shrinking is sealed off, and a hole that is punched reads as zeros."""
    fd = good()
    with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as mine:
        producer = Producer(agent.agent.settings.socket_path, ring_bytes=SIZE, fds=[fd])
        mine.write(b"x" * SIZE)
        for size in (0, 1, SIZE - 1):
            with pytest.raises(PermissionError):
                os.ftruncate(mine.fileno(), size)
        first = producer.publish_in_ring(0, 0, SIZE)
        assert first is not None
        assert first.header.type == ACCEPTED
        punch_hole(mine.fileno(), 0, SIZE)
        second = producer.publish_in_ring(1, 0, SIZE)
        assert second is not None
        assert second.header.type == ACCEPTED
        producer.socket.close()
    assert [frame.chunks for frame in agent.frames()] == [(b"x" * SIZE,), (bytes(SIZE),)]


def test_a_descriptor_later_than_hello_is_dropped(agent: ThreadAgent) -> None:
    producer = Producer(agent.agent.settings.socket_path, ring_bytes=0, fds=[])
    accepted = accepted_socket(agent)
    ring = Ring.create(SIZE)
    head = encode(Header(type=DATA, event_count=1), [b"x"])
    socket.send_fds(producer.socket, [head + b"x"], [ring.fd])
    ring.close()
    answer = producer.receive()
    assert answer is not None
    assert answer.header.type == ACCEPTED
    assert offered() == 0
    producer.socket.close()
    nothing_is_left(agent, accepted)
