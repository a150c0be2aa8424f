"""Accepted connection of an agent: decodes frames from bytes and sends verdicts, within limits.

**Receiving.** When the socket is readable, the connection receives until no bytes are left or a
limit is reached. It passes each complete frame to the core (`server_machine.py`) without a copy. A
sink that keeps a payload gets a copy in a reused buffer. The event loop's own transports are not
used, because they drop the descriptor that is sent with HELLO.

**Sending.** Answers are sent at the end of a turn, so many frames share one ACCEPTED. Bytes that
the kernel does not accept wait here. Above a limit, nothing more is read from this producer. A
producer that does not read its answers for too long is disconnected.

Source: `host-ipc.txt`, concurrency without sadness (nothing here blocks the loop).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.base.buffers import Lease, ReceivePool
from penstock.base.errors import PenstockError, RetriableError, UnavailableError
from penstock.host.errors import InvalidRing, ProtocolViolation
from penstock.host.port import (
    Chunks,
    ChunkSink,
    Completion,
    Failed,
    FinalVerdict,
    Introduction,
    Pending,
)
from penstock.host.ring import Ring, receive_with_ring
from penstock.host.server.access_file import Access
from penstock.host.server_machine import (
    Close,
    Deliver,
    Effect,
    Introduce,
    ServerMachine,
    ServerState,
    ServerTerms,
)
from penstock.wire.frames import PRELUDE_BYTES, Frame, MalformedFrame, decode, decode_body
from penstock.wire.frames.codec import Prelude, decode_prelude

if TYPE_CHECKING:
    from penstock.host.server.tracing import AgentTraces

# Decoding of frames from the bytes of one connection, with few copies.
#
# All connections of an agent receive into one shared block, because each processes its bytes before
# the next one has its turn. A receive ends where a frame of the last frame's size would end. So
# with frames of equal size no frame is cut off. If a turn ends within a frame
#
# - a small part of it is copied out of the block;
# - with a large part, the connection takes the block over, and the agent continues with another
#   block (a few may be on loan);
# - a frame larger than a block gets a buffer of exactly its size; so does any large frame when too
#   many blocks are on loan.


SMALL_FRAME_BYTES: Final = 64 << 10
"""Maximum bytes of an incomplete frame that are copied at the end of a turn."""
SCRATCH_BYTES: Final = (1 << 20) + (80 << 10)
"""Size of the shared block: a payload of 1 MiB and its header."""
BLOCKS_ON_LOAN_MAX: Final = 8
"""Maximum number of blocks that connections may take over for incomplete frames."""
RECEIVE_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of a large frame that are received in one step."""


class PeerClosed(Exception):
    """The producer has closed its side of the connection."""


class Scratch:
    """Receive buffers of an agent: one block that all connections share, and blocks on loan.

    A connection that has received a large part of a frame borrows the block until the frame is
    complete. The others then share another block.
    """

    __slots__ = ("_block_bytes", "_spare", "on_loan", "view")

    def __init__(self, block_bytes: int = SCRATCH_BYTES) -> None:
        self._block_bytes = block_bytes
        self._spare: list[memoryview] = []
        self.on_loan = 0
        self.view = memoryview(bytearray(block_bytes))

    def lend(self) -> bool:
        """Lend the shared block to the caller, and replace it; return False if too many are on
        loan.
        """
        if self.on_loan >= BLOCKS_ON_LOAN_MAX:
            return False
        self.on_loan += 1
        self.view = self._spare.pop() if self._spare else memoryview(bytearray(self._block_bytes))
        return True

    def give_back(self, block: memoryview) -> None:
        """Take back a block on loan, which becomes the shared block again."""
        self.on_loan -= 1
        self._spare.append(self.view)
        self.view = block


class FrameReader:
    """Decoder of one connection's received bytes into frames, with few copies.

    In each turn of the loop, call `receive` and `frames` alternately, and at the end `rest`.
    """

    __slots__ = (
        "_block", "_end", "_filled", "_limit", "_pool", "_prelude", "_scratch", "_size", "_start",
        "_tail", "lease", "partial_bytes",
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
        self.partial_bytes = 0
        """Size of the incomplete frame as far as it is known, else 0."""
        self._size = 0
        """Size of the last frame."""
        self.lease: Lease | None = None
        """Pool buffer into which a large incomplete frame is received; None if there is none."""
        self._prelude: Prelude | None = None
        self._filled = 0

    def receive(self, receive_into: Callable[[memoryview], int]) -> bool:
        """Receive once.

        Returns:
            Whether the buffer was filled, so that more bytes may be available.

        Raises:
            PeerClosed: the producer has closed the connection.
            OSError: `receive_into` failed.
        """
        if self.lease is not None:
            return self._receive_rest(self.lease, receive_into)
        block = self._scratch.view if self._block is None else self._block
        start, end, need = self._start, self._end, self.partial_bytes
        if self._tail:
            start, end = 0, len(self._tail)
        elif end and start + max(need, PRELUDE_BYTES) > len(block):
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
        if self.lease is not None:
            yield from self._large()
            return
        block = self._scratch.view if self._block is None else self._block
        data = block[: self._end]
        while self._start < self._end:
            frame, size = decode(data, self._start, self._limit)
            if frame is None:
                self.partial_bytes = size
                if size > len(block):
                    self._move_out(data[self._start :], size)
                return
            self._start += size
            self._size = size
            self.partial_bytes = 0
            yield frame, None
        self._start = self._end = self.partial_bytes = 0
        self._return_block()

    def _large(self) -> Iterator[tuple[Frame, Lease | None]]:
        lease, prelude = self.lease, self._prelude
        if lease is None or prelude is None or self._filled < lease.size_bytes:
            return
        self.lease = self._prelude = None
        self.partial_bytes = 0
        try:
            yield decode_body(prelude, lease.view[: lease.size_bytes]), lease
        finally:
            lease.release()

    def rest(self) -> None:
        """End the turn: free the shared block for other connections, and keep an incomplete frame.

        A small part of a frame is copied. With a large part, the connection borrows the block, or
        moves the part to a buffer of its own.
        """
        if self._block is not None or self.lease is not None or self._start == self._end:
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
            self._move_out(part, self.partial_bytes)

    def _move_out(self, part: memoryview, size: int) -> None:
        """Copy a part of a frame to a buffer of the frame's size, which receives the remaining
        bytes.
        """
        body_bytes = size - PRELUDE_BYTES
        self._prelude = decode_prelude(part, 0, body_bytes)
        lease = self.lease = self._pool.take(body_bytes)
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
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()
        self._tail = b""
        self._start = self._end = self.partial_bytes = 0
        self._return_block()


TURN_BYTES: Final = 4 << 20
"""Maximum bytes that are received from one producer in a turn, before answers are sent."""
HELLO_BYTES_MAX: Final = 64 << 10
"""Maximum bytes of one receive while a descriptor may be sent along."""
ANSWER_BACKLOG_BYTES_MAX: Final = 256 << 10
"""Unsent bytes of answers above which nothing more is read from a producer."""
ANSWER_STALL_MS: Final = 10_000
"""Time in milliseconds after which a producer that reads no answers is disconnected."""
LAST_ANSWER_MS: Final = 1_000
"""Maximum time in milliseconds to send the last answer of a connection that ends."""
FRAME_GRACE_MS: Final = 5_000.0
FRAME_BYTES_PER_MS_MIN: Final = 64
"""Minimum rate of a frame's bytes; a frame may take the grace time plus its size at this rate."""

logger = logging.getLogger(__name__)

_BROKEN: Final = Failed("the sink failed; the agent's log has the cause", retryable=True)

Introduced = Callable[[Introduction | PenstockError], None]


class ConnectionOwner(Protocol):
    """Interface of the agent that its connections call."""

    sink: ChunkSink
    access: Access
    traces: AgentTraces | None
    pool: ReceivePool
    scratch: Scratch
    draining: bool
    bytes_in: int
    bytes_out: int

    @property
    def sink_trouble(self) -> str:
        """Reason why the sink does not accept frames; empty if it does."""

    def now_ms(self) -> float:
        """Return the time in monotonic milliseconds."""

    def terms(self, *, refused: bool) -> ServerTerms:
        """Return the offer to a new producer; without credit if it is rejected."""

    def opened(self, connection: HostConnection) -> bool:
        """Add a connection; return False if there are too many, or its producer is rejected."""

    def closed(self, connection: HostConnection, lost_frames: int, reason: str) -> None:
        """Remove an ended connection; the verdicts of its `lost_frames` cannot be delivered."""

    def rejected(self, connection: HostConnection, error: Exception) -> None:
        """Report that a producer sent an invalid frame, or that its connection failed."""

    def introduce(
        self, connection: HostConnection, producer_id: int, topics: Sequence[str], done: Introduced
    ) -> None:
        """Ask the sink about a producer; call `done` later, on the loop."""


class HostConnection:
    """Agent's side of one producer's socket; all calls are made on the loop's thread."""

    __slots__ = (
        "_backlog", "_closing_by_ms", "_flushing", "_frame_since_ms", "_frames_seen", "_loop",
        "_owner", "_progress_ms", "_reader", "_reading", "_ring", "_ring_fd", "_socket", "closed",
        "machine", "refusal",
    )  # fmt: skip

    def __init__(
        self, accepted: socket.socket, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._socket = accepted
        self._owner = owner
        self._loop = loop
        permission, self.refusal = owner.access.of_peer(accepted)
        self.machine = ServerMachine(
            owner.terms(refused=bool(self.refusal)),
            now_ms=owner.now_ms(),
            draining=owner.draining,
            sink_trouble=owner.sink_trouble,
            permission=permission,
        )
        self.closed = False
        self._reader = FrameReader(owner.scratch, owner.pool, self.machine.terms.frame_bytes_max)
        self._frame_since_ms = 0.0
        """Time at which the present incomplete frame was first seen; 0 for none."""
        self._frames_seen = 0
        self._backlog = bytearray()
        self._progress_ms = 0.0
        self._closing_by_ms = 0.0
        self._reading = False
        self._flushing = False
        self._ring: Ring | None = None
        self._ring_fd: int | None = None

    def start(self) -> None:
        """Start reading; reject the connection if there are too many, or no rule allows it."""
        if not self._owner.opened(self):
            why = self.refusal or "the agent has too many connections"
            self._apply(self.machine.refuse(why, retryable=not self.refusal))
            self._send_output()
            return
        self._resume()

    @property
    def idle(self) -> bool:
        """Whether the connection awaits no verdict and has no unsent answer."""
        return not (self.machine.in_flight or self._backlog or self._flushing)

    # What the agent asks for

    def tick(self, now_ms: float) -> None:
        """Handle timeouts."""
        if self.closed:
            return
        if self._closing_by_ms:
            if now_ms >= self._closing_by_ms:
                self.abort("it did not read its last answer")
            return
        if self._backlog and now_ms - self._progress_ms >= ANSWER_STALL_MS:
            self.abort(f"it did not read its answers for {ANSWER_STALL_MS} ms")
            return
        since_ms = self._frame_since_ms
        if self._reading and since_ms and now_ms - since_ms >= self._frame_allowed_ms():
            self._apply(self.machine.violated("a frame took too long to arrive"))
        elif close := self.machine.tick(now_ms):
            self._apply(close)
        self._send_output()

    def _frame_allowed_ms(self) -> float:
        size = self._reader.partial_bytes
        return FRAME_GRACE_MS + size / FRAME_BYTES_PER_MS_MIN

    def rules_changed(self) -> None:
        """Apply changed rules to the producer, or end the connection."""
        if self.closed or self._closing_by_ms:
            return
        self.machine.permission, self.refusal = self._owner.access.of_peer(self._socket)
        if self.refusal:
            self._apply(self.machine.violated(self.refusal))
            self._send_output()

    def drain(self, deadline_ms: int, reason: str) -> None:
        """Inform the producer that the agent is stopping."""
        self.machine.drain(deadline_ms, reason)
        self._send_output()

    def close(self, reason: str) -> None:
        """Close the connection after sending the remaining output."""
        self._apply(Close(reason))
        self._send_output()

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        if self.closed:
            return
        self.closed = True
        self._pause()
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._reader.drop()
        self._backlog.clear()
        if self._ring_fd is not None:
            os.close(self._ring_fd)
            self._ring_fd = None
        self.machine.ring = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        self._owner.pool.forget(self._resume)
        self._owner.closed(self, self.machine.disconnected(), reason)

    # Receiving

    def _resume(self) -> None:
        """Resume reading, unless unsent answers or the memory limit prevent it."""
        if self.closed or self._reading or self._closing_by_ms:
            return
        if len(self._backlog) > ANSWER_BACKLOG_BYTES_MAX:
            return
        lease = self._reader.lease
        if lease is not None and not self._owner.pool.may_read(lease):
            self._owner.pool.wait(self._resume)
            return
        self._reading = True
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _on_readable(self) -> None:
        """Receive for one turn: until no bytes are left, or the limit of the turn is reached."""
        try:
            self._take_turn()
        except (BlockingIOError, InterruptedError):
            pass
        except PeerClosed:
            self.abort("the producer closed the connection")
        except OSError as error:
            self.abort(f"receiving failed: {error}")
        except (ProtocolViolation, MalformedFrame) as error:
            self._owner.rejected(self, error)
            self._apply(self.machine.violated(str(error)))
        except Exception as error:
            logger.exception("a connection failed")
            self._owner.rejected(self, error)
            self._apply(self.machine.violated("an internal error"))
        if not self.closed:
            self._end_turn()

    def _take_turn(self) -> None:
        reader, owner = self._reader, self._owner
        turn_ends_at = owner.bytes_in + TURN_BYTES
        more = True
        while more and self._reading and owner.bytes_in < turn_ends_at:
            more = reader.receive(self._receive_into)
            for frame, lease in reader.frames():
                self._handle(frame, lease)
                if self.closed or self._closing_by_ms:
                    return

    def _end_turn(self) -> None:
        owner, machine, reader = self._owner, self.machine, self._reader
        now_ms = owner.now_ms()
        if self._closing_by_ms:
            reader.drop()
        else:
            reader.rest()
        if not reader.partial_bytes:
            self._frame_since_ms = 0.0
        elif not self._frame_since_ms or machine.frames != self._frames_seen:
            self._frame_since_ms = now_ms
        self._frames_seen = machine.frames
        if reader.lease is not None and not owner.pool.may_read(reader.lease):
            self._pause()
            owner.pool.wait(self._resume)
        machine.heard(now_ms)
        if machine.denied and machine.permission is not None:
            for topic in machine.denied:
                owner.access.denied(machine.permission, topic)
            machine.denied.clear()
        machine.flush()
        self._send_output()

    def _receive_into(self, target: memoryview) -> int:
        if self.machine.state is ServerState.HANDSHAKE:
            received = self._receive_hello(target)
        else:
            received = self._socket.recv_into(target)
        self._owner.bytes_in += received
        return received

    def _receive_hello(self, target: memoryview) -> int:
        """Receive bytes, and the descriptor that is sent with them, if any."""
        size = min(len(target), HELLO_BYTES_MAX)
        data, descriptor = receive_with_ring(self._socket, size)
        if descriptor is not None:
            if self._ring_fd is not None:
                os.close(self._ring_fd)
            self._ring_fd = descriptor
        target[: len(data)] = data
        return len(data)

    # Frames and verdicts

    def _handle(self, frame: Frame, lease: Lease | None) -> None:
        effect = self.machine.receive(frame)
        if type(effect) is Deliver:
            self._deliver(effect.chunks, lease)
        elif effect is not None:
            self._apply(effect)

    def _deliver(self, chunks: Chunks, lease: Lease | None) -> None:
        if self._ring is None or chunks.payload.obj is not self._ring.memory.obj:
            if lease is not None:
                chunks.lease = lease
            else:
                chunks.on_keep = self._keep
        own: Completion = partial(self._completed, chunks)
        traces = self._owner.traces
        complete = own if traces is None else traces.publishing(chunks, own)
        try:
            verdict = self._owner.sink.accept(chunks, complete)
        except Exception:
            logger.exception("the sink %s failed", self._owner.sink.name)
            verdict = _BROKEN
        if isinstance(verdict, Pending):
            return
        if complete is own:
            self.machine.completed(chunks, verdict)
        else:
            complete(verdict)

    def _keep(self, chunks: Chunks) -> None:
        """Copy a payload from the shared receive buffer: a sink keeps it beyond `accept`."""
        size = len(chunks.payload)
        lease = self._owner.pool.take(max(size, 1))
        lease.view[:size] = chunks.payload
        self._owner.pool.received(lease, lease.size_bytes)
        chunks.payload = lease.view[:size]
        chunks.lease = lease
        chunks.on_keep = None

    def _completed(self, chunks: Chunks, verdict: FinalVerdict) -> None:
        self.machine.completed(chunks, verdict)
        if not self._flushing and not self.closed:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self.closed:
            self.machine.flush()
            self._send_output()

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, Introduce):
            self._introduce(effect)
        elif isinstance(effect, Close) and not self.closed and not self._closing_by_ms:
            logger.info("closing a producer's connection: %s", effect.reason)
            self._closing_by_ms = self._owner.now_ms() + LAST_ANSWER_MS
            self._pause()

    def _introduce(self, effect: Introduce) -> None:
        ring_offered = effect.ring_bytes > 0 and self._ring_fd is not None

        def done(result: Introduction | PenstockError) -> None:
            if self.closed:
                return
            if isinstance(result, PenstockError):
                again = isinstance(result, (RetriableError, UnavailableError))
                self._apply(self.machine.refuse(str(result), retryable=again))
            else:
                if ring_offered:
                    self._adopt_ring(effect.ring_bytes)
                self.machine.introduced(result, ring=self._ring is not None)
            self._send_output()

        self._owner.introduce(self, effect.producer_id, effect.topics, done)

    def _adopt_ring(self, ring_bytes: int) -> None:
        """Map the producer's ring; if that fails, its payloads are sent over the socket."""
        descriptor, self._ring_fd = self._ring_fd, None
        if descriptor is None:
            return
        try:
            self._ring = Ring.adopt(descriptor, ring_bytes)
        except InvalidRing as error:
            logger.warning("cannot use a producer's ring: %s", error)
            return
        self.machine.ring = self._ring.memory

    # Sending

    def _send_output(self) -> None:
        if self.closed:
            return
        output = self.machine.take_output()
        if output and not self._backlog:
            self._send(b"".join(output))
        elif output:
            for piece in output:
                self._backlog += piece
        if self._backlog and len(self._backlog) > ANSWER_BACKLOG_BYTES_MAX:
            self._pause()
        if self._closing_by_ms and not self._backlog and not self.closed:
            self.abort("closed")

    def _send(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.abort(f"sending failed: {error}")
            return
        self._owner.bytes_out += sent
        if sent < len(data):
            self._backlog += memoryview(data)[sent:]
            self._progress_ms = self._owner.now_ms()
            self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            with memoryview(self._backlog) as view:
                sent = self._socket.send(view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(f"sending failed: {error}")
            return
        self._owner.bytes_out += sent
        self._progress_ms = self._owner.now_ms()
        del self._backlog[:sent]
        if not self._backlog:
            with contextlib.suppress(OSError):
                self._loop.remove_writer(self._socket.fileno())
        self._send_output()
        self._resume()
