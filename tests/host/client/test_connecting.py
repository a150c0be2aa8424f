"""Bytes in and out of a socket: frames cut anywhere, pieces of any number and size."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.host.client.line import IOV_MAX, JOINED_BYTES_MAX, Inbox, Outbound
from penstock.host.ring import Ring, receive_with_ring
from penstock.wire.frames import ACCEPTED, FAILED, PONG, Header, MalformedFrame, encode

FRAMES = [
    Header(type=ACCEPTED, ranges=[1, 2, 5, 1]),
    Header(type=FAILED, count=1, reason="x" * 300),
    Header(type=PONG, token=2**60),
    Header(type=ACCEPTED, ranges=list(range(2, 2000))),
] * 3
STREAM = b"".join(map(encode, FRAMES))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def feed(inbox: Inbox, data: bytes) -> list[Header]:
    inbox.room[: len(data)] = data
    return [frame.header for frame in inbox.take(len(data))]


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_found_however_they_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    inbox, found, at = Inbox(), [], 0
    longest = dice.choice([1, 7, 100, 5000])
    while at < len(STREAM):
        size = dice.randint(1, longest)
        found += feed(inbox, STREAM[at : at + size])
        at += size
    assert found == FRAMES


def test_all_at_once_and_nothing_left_over() -> None:
    inbox = Inbox()
    size = len(inbox.room)
    assert feed(inbox, STREAM) == FRAMES
    assert len(inbox.room) == size


def test_an_earlier_connection_is_forgotten() -> None:
    inbox = Inbox()
    assert feed(inbox, STREAM[:20]) == []
    inbox.clear()
    assert feed(inbox, STREAM) == FRAMES


def test_nonsense_is_refused() -> None:
    for wrong in (b"\xff" * 16, b"\0" * 16, STREAM[:16] + b"\0" * 8):
        with pytest.raises(MalformedFrame):
            feed(Inbox(), wrong)


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 3), (1, 1), (10, 3 * IOV_MAX), (700, 100), (3, JOINED_BYTES_MAX // 3 + 1), (300_000, 20)],
)
def test_pieces_arrive_in_order(
    pair: tuple[socket.socket, socket.socket], size: int, count: int
) -> None:
    left, right = pair
    out = Outbound()
    rounds = [[os.urandom(size) for _ in range(count)] for _ in range(3)]
    expected = b"".join(b"".join(pieces) for pieces in rounds)
    received = bytearray()

    def read() -> None:
        while len(received) < len(expected):
            received.extend(right.recv(50_000))

    thread = threading.Thread(target=read)
    thread.start()
    for pieces in rounds:
        out.send(left, pieces)
    while out.waiting:
        out.send(left)
    thread.join(20)
    assert bytes(received) == expected


def test_what_the_kernel_does_not_take_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    out = Outbound()
    data = os.urandom(4 << 20)
    out.send(left, [b"head", data])
    assert out.waiting
    out.send(left, [b"tail"])
    received = bytearray()
    while len(received) < len(data) + 8:
        received += right.recv(1 << 20)
        out.send(left)
    assert not out.waiting
    assert bytes(received) == b"head" + data + b"tail"


def test_the_rings_descriptor_goes_with_the_first_bytes_only(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = pair
    ring = Ring.create(4096)
    out = Outbound(ring)
    out.send(left, [b"first"])
    out.send(left, [b"second"])
    data, fd = receive_with_ring(right, 5)
    assert data == b"first"
    assert fd is not None
    Ring.adopt(fd, 4096).close()
    assert receive_with_ring(right, 100) == (b"second", None)
    ring.close()


def test_a_closed_peer_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    right.close()
    with pytest.raises(OSError, match="Broken pipe"):
        Outbound().send(left, [b"x"])
