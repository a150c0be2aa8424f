"""Ring of shared memory between a producer and its agent, which holds payloads.

The producer creates an anonymous file in memory, seals its size and maps it. It passes the
descriptor with the first bytes of the connection (`SCM_RIGHTS`). For each frame it first copies the
payload into the ring, at a position from `RingSpace`, and then sends the head on the socket. A
producer that dies during a copy has sent no head, so the agent never reads a partial payload.

The agent does not trust a descriptor that it receives. If the producer could shrink the file, the
agent's next access would end in SIGBUS. So the seals against shrinking and growing are required.
Huge pages can fault in the same way when none are left, even if sealed, so only normal pages are
accepted. All memory is allocated when the ring is created. So on a host without memory the creation
fails, and the writer is not killed later.

Source: memfd_create(2), fcntl(2) on file sealing, unix(7) on `SCM_RIGHTS`.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import mmap
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.base.crc import Readable
from penstock.base.errors import BugError
from penstock.host.errors import InvalidRing

RING_BYTES_MAX: Final = 1 << 30
"""Maximum size of a ring; no other limit keeps a file in memory from using all memory."""
_JOINED_BYTES_MAX: Final = 128 << 10
_NAME: Final = "penstock-ring"
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_DESCRIPTORS_MAX: Final = 16
"""Maximum descriptors received with one message; all but the first are closed.

The kernel drops further descriptors.
"""


class Ring:
    """Mapped ring; `fd` is -1 if the descriptor is not needed any more."""

    __slots__ = ("_map", "fd", "memory", "size_bytes")

    def __init__(self, mapped: mmap.mmap, fd: int, size_bytes: int) -> None:
        self._map: mmap.mmap | None = mapped
        self.memory = memoryview(mapped)
        self.fd = fd
        self.size_bytes = size_bytes

    @classmethod
    def create(cls, size_bytes: int) -> Ring:
        """Create a writable ring with all of its memory allocated.

        Raises:
            InvalidRing: the size is out of bounds, or this host cannot allocate it.
        """
        if not 0 < size_bytes <= RING_BYTES_MAX:
            raise InvalidRing(
                f"a ring of {size_bytes} bytes is not allowed; the size must be from 1 to"
                f" {RING_BYTES_MAX}"
            )
        try:
            fd = os.memfd_create(_NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        except (OSError, AttributeError) as error:
            raise InvalidRing(
                f"this host cannot create a ring of {size_bytes} bytes: {error}"
            ) from error
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(mmap.mmap(fd, size_bytes), fd, size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise InvalidRing(
                f"this host cannot create a ring of {size_bytes} bytes: {error}"
            ) from error

    @classmethod
    def adopt(cls, fd: int, size_bytes: int) -> Ring:
        """Map a peer's ring for reading; it takes over `fd`, and closes it on an error.

        Raises:
            InvalidRing: it is not a file in memory, its size is not sealed or is below
                `size_bytes`, it has huge pages, or it cannot be mapped.
        """
        try:
            _check(fd, size_bytes)
            mapped = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise InvalidRing(
                f"the ring of {size_bytes} bytes cannot be mapped: {error}"
            ) from error
        finally:
            os.close(fd)  # the mapping keeps one of its own
        return cls(mapped, -1, size_bytes)

    def write(self, position: int, pieces: Sequence[Readable], size: int) -> None:
        """Copy pieces of bytes to `position`, one after another; they have `size` bytes in total.

        Many small pieces are joined first, because a second copy costs less than many single
        writes.

        Raises:
            BugError: the ring is closed, the pieces do not end inside it, or have another size.
        """
        mapped, end = self._map, position + size
        if mapped is None:
            raise BugError("the ring is closed")
        if end > self.size_bytes:
            raise BugError(
                f"a payload ends at byte {end}, but the ring has {self.size_bytes} bytes"
            )
        if len(pieces) > 1 and size <= _JOINED_BYTES_MAX:
            pieces = (b"".join(pieces),)
        mapped.seek(position)
        deque(map(mapped.write, pieces), 0)
        written = mapped.tell() - position
        if written != size:
            raise BugError(f"the payload has {written} bytes instead of {size}")

    def close(self) -> None:
        """Unmap the ring; existing views stay valid until they are dropped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        mapped, self._map = self._map, None
        if mapped is not None:
            with contextlib.suppress(BufferError):
                self.memory.release()
            with contextlib.suppress(BufferError):
                mapped.close()
            self.memory = memoryview(b"")


def _check(fd: int, size_bytes: int) -> None:
    """Raise `InvalidRing` if mapping and reading `fd` could ever fault."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise InvalidRing(
            "the descriptor that was passed as a ring is not a file in memory"
        ) from None
    if not seals & fcntl.F_SEAL_SHRINK or not seals & fcntl.F_SEAL_GROW:
        raise InvalidRing(f"the ring's size is not sealed (seals {seals:#x})")
    actual = os.fstat(fd).st_size
    if not 0 < size_bytes <= actual:
        raise InvalidRing(f"the ring should have {size_bytes} bytes, but its file has {actual}")
    block = os.fstatvfs(fd).f_bsize
    if block != mmap.PAGESIZE:
        raise InvalidRing(
            f"the ring has pages of {block} bytes; only pages of {mmap.PAGESIZE} bytes are accepted"
        )


def send_with_ring(sock: socket.socket, data: Readable, fd: int) -> int:
    """Send bytes with a descriptor, which the first byte carries; return the bytes sent."""
    return socket.send_fds(sock, [data], [fd])


def receive_with_ring(sock: socket.socket, size: int) -> tuple[bytes, int | None]:
    """Receive up to `size` bytes and the descriptor that was sent with them, if any.

    The caller owns the descriptor. Further descriptors are closed. Once a connection has its ring,
    or will have none, plain receives may be used, because the kernel closes descriptors that are
    not received.
    """
    data, ancillary, _, _ = sock.recvmsg(
        size,
        socket.CMSG_SPACE(_DESCRIPTORS_MAX * _DESCRIPTOR_BYTES),
        socket.MSG_CMSG_CLOEXEC,
    )
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
    for surplus in descriptors[1:]:
        os.close(surplus)
    return data, descriptors[0] if descriptors else None


# Allocation of ring space: first in, first out, each payload contiguous.
#
# A payload keeps its space until its frame is answered. Frames may be answered out of order, but
# space becomes free in the order of its allocation. A payload that does not fit before the end of
# the ring starts at position 0. The unused bytes at the end are freed together with it.


class _Place:
    __slots__ = ("free", "size", "taken")

    def __init__(self, size: int, taken: int) -> None:
        self.size = size
        self.taken = taken
        self.free = False


class RingSpace:
    """Allocator of ring space for payloads, first in, first out; it does not touch the memory."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._next = 0
        self._order: deque[_Place] = deque()
        self._by_position: dict[int, _Place] = {}

    def take(self, size_bytes: int) -> int | None:
        """Allocate `size_bytes` contiguous bytes; return their position, or None without space."""
        if not self.has_room(size_bytes):
            return None
        position, taken = self._place(size_bytes)
        place = _Place(size_bytes, taken)
        self._order.append(place)
        self._by_position[position] = place
        self.taken_bytes += taken
        self._next = (position + size_bytes) % self.size_bytes
        return position

    def has_room(self, size_bytes: int) -> bool:
        """Whether `take` would return a position."""
        if not 0 < size_bytes <= self.size_bytes:
            return False
        return self.taken_bytes + self._place(size_bytes)[1] <= self.size_bytes

    def _place(self, size_bytes: int) -> tuple[int, int]:
        """Return the position for a payload, and the number of bytes that it uses up.

        These include the bytes at the end of the ring that are skipped if the payload does not fit
        there.
        """
        if self._next + size_bytes > self.size_bytes:
            return 0, size_bytes + self.size_bytes - self._next
        return self._next, size_bytes

    def give_back(self, position: int) -> None:
        """Release a payload's space; it can be allocated again when all earlier payloads are
        released too.
        """
        place = self._by_position.pop(position, None)
        if place is None:
            return
        place.free = True
        order = self._order
        while order and order[0].free:
            self.taken_bytes -= order.popleft().taken
        if not order:
            self._next = 0
