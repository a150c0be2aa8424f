"""Ring of shared memory between a producer and its agent: it holds payloads, the socket carries
heads.

The producer makes an anonymous file in memory, seals its size, maps it and passes its descriptor
with the first bytes of the connection (`SCM_RIGHTS`). From then on it copies a payload to its
place (`ring_space.py` says where) and only then sends the head. A producer that dies in the middle
of a copy has sent no head, so half a payload is never read.

The agent trusts nothing of a descriptor that was handed to it. A file that can shrink would let
the producer make the agent's next look at the ring end in SIGBUS, so the seals against shrinking
and growing have to be there; sealed huge pages can fault in the same way when none are left, so
only plain pages are taken. All memory is taken when the ring is made, not when it is first written
to: a host without memory refuses the ring instead of killing the writer.

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
from collections.abc import Sequence
from typing import Final

from penstock.base.crc import Readable
from penstock.base.errors import BugError
from penstock.host.errors import InvalidRing

RING_BYTES_MAX: Final = 1 << 30
"""Nothing else keeps a file in memory from taking all that the host has."""
_JOINED_BYTES_MAX: Final = 256 << 10
_NAME: Final = "penstock-ring"
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_DESCRIPTORS_MAX: Final = 16
"""Descriptors taken off one message, to be closed but for the first; the kernel drops the rest."""


class Ring:
    """A mapped ring. `fd` is -1 where the descriptor is not needed any more."""

    __slots__ = ("_map", "fd", "memory", "size_bytes")

    def __init__(self, mapped: mmap.mmap, fd: int, size_bytes: int) -> None:
        self._map: mmap.mmap | None = mapped
        self.memory = memoryview(mapped)
        self.fd = fd
        self.size_bytes = size_bytes

    @classmethod
    def create(cls, size_bytes: int) -> Ring:
        """A new ring that can be written to, all of its memory taken.

        Raises:
            InvalidRing: a size that is out of bounds, or that this host cannot give.
        """
        if not 0 < size_bytes <= RING_BYTES_MAX:
            raise InvalidRing(f"a ring of {size_bytes} bytes: must be 1 to {RING_BYTES_MAX}")
        try:
            fd = os.memfd_create(_NAME, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        except (OSError, AttributeError) as error:
            raise InvalidRing(f"no ring of {size_bytes} bytes can be made here: {error}") from error
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(mmap.mmap(fd, size_bytes), fd, size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise InvalidRing(f"no ring of {size_bytes} bytes can be made here: {error}") from error

    @classmethod
    def adopt(cls, fd: int, size_bytes: int) -> Ring:
        """Map a ring that a peer has passed, to be read only; takes `fd`, also when it refuses.

        Raises:
            InvalidRing: no file in memory, one whose size is not sealed, smaller than
                `size_bytes`, or made of huge pages; or it cannot be mapped.
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

    def write(self, position: int, pieces: Sequence[Readable]) -> None:
        """Copy pieces of bytes one after another to `position`.

        Many small pieces are joined first: a second copy costs less than as many steps here.

        Raises:
            BugError: they do not end inside the ring.
        """
        memory = self.memory
        if len(pieces) > 1 and sum(map(len, pieces)) <= _JOINED_BYTES_MAX:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            end = position + len(piece)
            if end > self.size_bytes:
                raise BugError(f"a payload ends at {end} in a ring of {self.size_bytes} bytes")
            memory[position:end] = piece
            position = end

    def close(self) -> None:
        """Let the ring go; views of it that others still hold stay valid until they are gone."""
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
    """Raise `InvalidRing` unless `fd` can be mapped and read without ever faulting."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise InvalidRing("the descriptor passed as ring is no file in memory") from None
    if not seals & fcntl.F_SEAL_SHRINK or not seals & fcntl.F_SEAL_GROW:
        raise InvalidRing(f"the ring's size is not sealed (seals {seals:#x})")
    actual = os.fstat(fd).st_size
    if not 0 < size_bytes <= actual:
        raise InvalidRing(f"a ring of {size_bytes} bytes in a file of {actual} bytes")
    block = os.fstatvfs(fd).f_bsize
    if block != mmap.PAGESIZE:
        raise InvalidRing(f"the ring has pages of {block} bytes; only {mmap.PAGESIZE} are taken")


def send_with_ring(sock: socket.socket, data: Readable, fd: int) -> int:
    """Send bytes with a descriptor; returns how many were sent, the first of them took it along."""
    return socket.send_fds(sock, [data], [fd])


def receive_with_ring(sock: socket.socket, size: int) -> tuple[bytes, int | None]:
    """Receive up to `size` bytes and the descriptor that came with them, which the caller owns.

    More descriptors than one are closed. Once a connection has its ring, or will have none, plain
    receives may be used: the kernel closes descriptors that are not received.
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
