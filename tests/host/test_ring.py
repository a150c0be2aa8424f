"""The ring: what is taken from a peer, what is refused, and that no descriptor is ever left."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.errors import BugError
from penstock.host.errors import InvalidRing
from penstock.host.ring import RING_BYTES_MAX, Ring, receive_with_ring, send_with_ring
from tests.host.open_files import open_files

SIZE = 17 * mmap.PAGESIZE
SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


NAME = f"test-{os.getpid()}"
"""Of the memory files that are made here."""


def ours(directory: Path) -> list[str]:
    """Return the open descriptors of rings and of a test's own files.

    All else that this process opens meanwhile is other tests' that left threads behind: their
    clients may have rings too, but none as large as these.
    """
    found = []
    for target, size in open_files():
        ring = target.startswith("/memfd:penstock-ring ") and size == SIZE
        mine = target.startswith((f"/memfd:{NAME} ", f"{directory}/"))
        if ring or mine or target == str(directory):
            found.append(target)
    return found


def identity(fd: int) -> tuple[int, int, str]:
    """Return a descriptor's target; its number may be reused as soon as it is closed."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, Path(f"/proc/self/fdinfo/{fd}").read_text()


def is_open(fd: int, what: tuple[int, int, str]) -> bool:
    try:
        return identity(fd) == what
    except OSError:
        return False


@pytest.fixture(autouse=True)
def no_descriptor_is_left(tmp_path: Path) -> Iterator[None]:
    assert ours(tmp_path) == []
    yield
    assert ours(tmp_path) == []


@pytest.fixture
def pair(no_descriptor_is_left: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def memory_file(size: int, seals: int, flags: int = 0) -> int:
    fd = os.memfd_create(NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def plain_file(path: Path) -> int:
    fd = os.open(path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, SIZE)
    return fd


def test_both_sides_see_the_same_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    ring = Ring.create(SIZE)
    assert send_with_ring(left, b"hello", ring.fd) == 5
    data, fd = receive_with_ring(right, 100)
    assert data == b"hello"
    assert fd is not None
    assert not os.get_inheritable(fd)
    other = Ring.adopt(fd, SIZE)
    ring.write(SIZE - 7, [b"abc", memoryview(b"de"), bytearray(b"fg")], 7)
    assert bytes(other.memory[SIZE - 7 :]) == b"abcdefg"
    assert other.memory.readonly
    ring.close()
    assert bytes(other.memory[SIZE - 7 :]) == b"abcdefg"
    other.close()


def test_the_size_of_the_ring_is_sealed() -> None:
    ring = Ring.create(SIZE)
    for size in (0, SIZE - 1, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(ring.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(ring.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    ring.close()


def test_its_memory_is_taken_when_it_is_made() -> None:
    ring = Ring.create(SIZE)
    assert os.fstat(ring.fd).st_blocks * 512 >= SIZE
    ring.close()


def test_a_size_out_of_bounds_is_refused() -> None:
    for size in (0, -1, RING_BYTES_MAX + 1, 1 << 62, 1 << 70):
        with pytest.raises(InvalidRing):
            Ring.create(size)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: memory_file(SIZE, 0), "not sealed"),
        (lambda path: memory_file(SIZE, fcntl.F_SEAL_SHRINK), "not sealed"),
        (lambda path: memory_file(SIZE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE), "not sealed"),
        (lambda path: memory_file(SIZE - 1, SEALED), f"{SIZE} bytes, but its file has {SIZE - 1}"),
        (lambda path: memory_file(0, SEALED), "its file has 0"),
        (lambda path: plain_file(path), "not a file in memory"),
        (lambda path: os.open("/dev/zero", os.O_RDWR), "not a file in memory"),
        (lambda path: os.open(path, os.O_RDONLY), "not a file in memory"),
        (lambda path: os.open(path, os.O_PATH), "cannot be mapped"),
        (lambda path: socket.socket().detach(), "not a file in memory"),
        (lambda path: os.eventfd(0), "not a file in memory"),
        (lambda path: memory_file(2 << 20, SEALED, os.MFD_HUGETLB), "pages of"),
    ],
    ids=[
        "no seals", "may grow", "may shrink", "too small", "empty", "a file", "a device",
        "a directory", "a path", "a socket", "an event", "huge pages",
    ],
)  # fmt: skip
def test_a_bad_ring_is_refused_and_closed(
    make: Callable[[Path], int], reason: str, tmp_path: Path
) -> None:
    fd = make(tmp_path)
    what = identity(fd)
    assert is_open(fd, what)
    with pytest.raises(InvalidRing, match=reason):
        Ring.adopt(fd, SIZE)
    assert not is_open(fd, what)


def test_a_ring_that_is_open_for_writing_only_is_refused() -> None:
    fd = memory_file(SIZE, SEALED)
    write_only = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
    os.close(fd)
    with pytest.raises(InvalidRing, match="cannot be mapped"):
        Ring.adopt(write_only, SIZE)


def test_a_size_of_nothing_is_refused() -> None:
    for size in (0, -1):
        with pytest.raises(InvalidRing):
            Ring.adopt(memory_file(SIZE, SEALED), size)


def test_a_ring_with_holes_reads_as_zeros() -> None:
    fd = memory_file(SIZE, SEALED)
    ring = Ring.adopt(fd, SIZE)
    assert bytes(ring.memory) == bytes(SIZE)
    ring.close()


def test_a_peer_that_tries_to_shrink_an_adopted_ring_fails() -> None:
    """In a process of its own: were it wrong, SIGBUS would end it."""
    mine = memory_file(SIZE, SEALED)
    child = os.fork()
    if child == 0:  # pragma: no cover
        signal.alarm(60)
        ring = Ring.adopt(os.dup(mine), SIZE)
        try:
            os.ftruncate(mine, 0)
        except PermissionError:
            os._exit(0 if bytes(ring.memory[-mmap.PAGESIZE :]) == bytes(mmap.PAGESIZE) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    os.close(mine)
    assert os.waitstatus_to_exitcode(status) == 0


def test_surplus_descriptors_are_closed(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    left, right = pair
    for count in (2, 3, 16, 40):
        fds = [memory_file(SIZE, SEALED) for _ in range(count)]
        before = len(ours(tmp_path))
        assert before == count
        socket.send_fds(left, [b"x"], fds)
        data, fd = receive_with_ring(right, 10)
        assert data == b"x"
        assert fd is not None
        assert len(ours(tmp_path)) == before + 1
        for each in (*fds, fd):
            os.close(each)


def test_bytes_without_a_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.sendall(b"hello")
    assert receive_with_ring(right, 100) == (b"hello", None)
    left.shutdown(socket.SHUT_WR)
    assert receive_with_ring(right, 100) == (b"", None)


def test_an_unexpected_descriptor_is_closed(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    left, right = pair
    fd = memory_file(SIZE, SEALED)
    send_with_ring(left, b"hello", fd)
    os.close(fd)
    assert right.recv(100) == b"hello"
    assert ours(tmp_path) == []


def test_other_ancillary_data_is_no_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    right.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    left.sendmsg([b"x"])
    assert receive_with_ring(right, 10) == (b"x", None)
    fd = memory_file(SIZE, SEALED)
    left.sendmsg([b"y"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    data, got = receive_with_ring(right, 10)
    assert data == b"y"
    assert got is not None
    os.close(got)


def test_a_write_beyond_the_end_of_another_size_or_after_the_close_is_a_bug() -> None:
    ring = Ring.create(SIZE)
    with pytest.raises(BugError, match=f"{SIZE + 1}"):
        ring.write(SIZE - 1, [b"a", b"b"], 2)
    with pytest.raises(BugError, match="2 bytes instead of 1"):
        ring.write(0, [b"a", b"b"], 1)
    ring.close()
    with pytest.raises(BugError, match="closed"):
        ring.write(0, [b"a"], 1)


def test_views_outlive_the_ring() -> None:
    ring = Ring.create(SIZE)
    ring.write(0, [b"kept"], 4)
    view = ring.memory[:4]
    ring.close()
    ring.close()
    assert bytes(view) == b"kept"
    assert len(ring.memory) == 0
    view.release()
