"""Decoding of frames from the bytes of one connection, with few copies.

All connections of an agent receive into one shared block, because each processes its bytes before
the next one has its turn. A receive ends where a frame of the last frame's size would end. So with
frames of equal size no frame is cut off. If a turn ends within a frame

- a small part of it is copied out of the block;
- with a large part, the connection takes the block over, and the agent continues with another block
  (a few may be on loan);
- a frame larger than a block gets a buffer of exactly its size; so does any large frame when too
  many blocks are on loan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from penstock.base.buffers import Lease, ReceivePool
from penstock.wire.frames import PRELUDE_BYTES, Frame, decode, decode_body
from penstock.wire.frames.codec import Prelude, decode_prelude

SMALL_FRAME_BYTES: Final = 64 << 10
"""Maximum bytes of an incomplete frame that are copied at the end of a turn."""
SCRATCH_BYTES: Final = (1 << 20) + (80 << 10)
"""Size of the shared block: a payload of 1 MiB and its header."""
BLOCKS_ON_LOAN_MAX: Final = 8
"""Maximum number of blocks that connections may take over for incomplete frames."""
RECEIVE_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of a large frame that are received in one step."""

_NOTHING: Final = memoryview(b"")


class PeerClosed(Exception):
    """The producer has closed its side of the connection."""


class Scratch:
    """Block into which all connections receive, and the blocks on loan."""

    __slots__ = ("_block_bytes", "_spare", "on_loan", "view")

    def __init__(self, block_bytes: int = SCRATCH_BYTES) -> None:
        self._block_bytes = block_bytes
        self._spare: list[memoryview] = []
        self.on_loan = 0
        self.view = memoryview(bytearray(block_bytes))

    def lend(self) -> bool:
        """Lend the present block to the caller and continue with another; return False if none is
        left.
        """
        if self.on_loan >= BLOCKS_ON_LOAN_MAX:
            return False
        self.on_loan += 1
        self.view = self._spare.pop() if self._spare else memoryview(bytearray(self._block_bytes))
        return True

    def give_back(self, block: memoryview) -> None:
        """Take back a block on loan, which is then the next to receive into."""
        self.on_loan -= 1
        self._spare.append(self.view)
        self.view = block


class FrameReader:
    """Receiver of one connection; call `receive` and `frames` in turns, then `rest`."""

    __slots__ = (
        "_block", "_end", "_filled", "_lease", "_limit", "_need", "_pool", "_prelude", "_scratch",
        "_size", "_start", "_tail",
    )  # fmt: skip

    def __init__(self, scratch: Scratch, pool: ReceivePool, frame_bytes_max: int) -> None:
        self._scratch = scratch
        self._pool = pool
        self._limit = frame_bytes_max
        self._block: memoryview | None = None
        """Block on loan, while it holds an incomplete frame."""
        self._start = self._end = 0
        """Bounds of the received bytes in the block that are not returned yet."""
        self._tail = b""
        self._need = 0
        """Number of bytes from `_start` that are needed to continue decoding; 0 if unknown."""
        self._size = 0
        """Size of the last frame."""
        self._lease: Lease | None = None
        self._prelude: Prelude | None = None
        self._filled = 0

    @property
    def partial_bytes(self) -> int:
        """Size of the incomplete frame as far as it is known, else 0."""
        return self._need

    @property
    def lease(self) -> Lease | None:
        """Buffer of an incomplete frame that is not in a block."""
        return self._lease

    def receive(self, receive_into: Callable[[memoryview], int]) -> bool:
        """Receive once.

        Returns:
            Whether the buffer was filled, so that more bytes may be available.

        Raises:
            PeerClosed: the producer has closed the connection.
            OSError: `receive_into` failed.
        """
        if self._lease is not None:
            return self._receive_rest(self._lease, receive_into)
        block = self._scratch.view if self._block is None else self._block
        start, end, need = self._start, self._end, self._need
        if self._tail:
            start, end = 0, len(self._tail)
        elif start + max(need, PRELUDE_BYTES) > len(block):
            block[: end - start] = block[start:end]
            start, end = 0, end - start
        size = need if need > PRELUDE_BYTES else self._size
        stop = len(block)
        if SMALL_FRAME_BYTES < size <= stop - start:
            stop -= (stop - start) % size
        received = receive_into(block[end:stop])
        if not received:
            raise PeerClosed
        if self._tail:
            block[:end] = self._tail
            self._tail = b""
        self._start, self._end = start, end + received
        return received == stop - end

    def _receive_rest(self, lease: Lease, receive_into: Callable[[memoryview], int]) -> bool:
        stop = min(lease.size_bytes, self._filled + RECEIVE_BYTES_MAX)
        asked = stop - self._filled
        received = receive_into(lease.view[self._filled : stop])
        if not received:
            raise PeerClosed
        self._filled += received
        self._pool.received(lease, received)
        return received == asked

    def frames(self) -> Iterator[tuple[Frame, Lease | None]]:
        """Yield the complete frames; each is valid until the next is requested.

        Raises:
            MalformedFrame: the bytes are invalid; the connection must be closed.
        """
        if self._lease is not None:
            yield from self._large()
            return
        block = self._scratch.view if self._block is None else self._block
        data = block[: self._end]
        while self._start < self._end:
            frame, size = decode(data, self._start, self._limit)
            if frame is None:
                self._need = size
                if size > len(block):
                    self._move_out(data[self._start :], size)
                return
            self._start += size
            self._size = size
            self._need = 0
            yield frame, None
        self._start = self._end = self._need = 0
        self._return_block()

    def _large(self) -> Iterator[tuple[Frame, Lease | None]]:
        lease, prelude = self._lease, self._prelude
        if lease is None or prelude is None or self._filled < lease.size_bytes:
            return
        self._lease = self._prelude = None
        self._need = 0
        try:
            yield decode_body(prelude, lease.view[: lease.size_bytes]), lease
        finally:
            lease.release()

    def rest(self) -> None:
        """End the turn, and leave the shared block to the other connections."""
        if self._block is not None or self._lease is not None or self._start == self._end:
            return
        part = self._scratch.view[self._start : self._end]
        if len(part) <= SMALL_FRAME_BYTES:
            self._tail = bytes(part)
            self._start = self._end = 0
            return
        block = self._scratch.view
        if self._scratch.lend():
            self._block = block
        else:
            self._move_out(part, self._need)

    def _move_out(self, part: memoryview, size: int) -> None:
        """Continue in a buffer of exactly the frame's size."""
        body_bytes = size - PRELUDE_BYTES
        self._prelude = decode_prelude(part, 0, body_bytes)
        lease = self._lease = self._pool.take(body_bytes)
        self._filled = len(part) - PRELUDE_BYTES
        lease.view[: self._filled] = part[PRELUDE_BYTES:]
        self._pool.received(lease, self._filled)
        self._start = self._end = 0
        self._return_block()

    def _return_block(self) -> None:
        if self._block is not None:
            block, self._block = self._block, None
            self._scratch.give_back(block)

    def drop(self) -> None:
        """Release all buffers."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
        self._tail = b""
        self._start = self._end = self._need = 0
        self._return_block()
