"""Client of the host agent for event loops, asyncio's own and uvloop.

The loop reports when the socket is readable, and one receive reads what has arrived. Publishing
sends at once. If the kernel's send buffer is full, the rest is sent when the loop reports that the
socket is writable. The client does not use the loop's transports, because the first bytes must
carry the descriptor of a ring.

All methods must be called on the loop on which `start` was called.
"""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from penstock.base.errors import PenstockError
from penstock.base.extras import check_installed
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.host.client.line import Line
from penstock.host.client.options import DEFAULT_PATH, client_options
from penstock.host.client.publications import ProducerFacts, Turns, many, one
from penstock.host.client_machine import ClientState
from penstock.host.errors import ClientClosed, Draining, NoCredit, NotConnected
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.publication import Publication

_STEP_MS: Final = 1_000.0
"""Maximum time in milliseconds between two calls of the client's timer."""

_STOP_SECONDS: Final = 30.0
_DONTWAIT: Final = socket.MSG_DONTWAIT


class AsyncHostClient(ProducerFacts):
    """Producer for event loops that publishes to the agent at a socket file.

    `ClientOptions` documents the options that are not parameters here.

    Raises:
        InvalidSetting: an option is unknown or out of its bounds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        *,
        topics: Sequence[str] = (),
        producer_id: int | None = None,
        producer_epoch: int = 0,
        client_name: str = "",
        resend: bool = True,
        idempotent: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        **options: Any,
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._options = client_options(
            path,
            topics=topics,
            client_name=client_name,
            resend=resend,
            idempotent=idempotent,
            **options,
        )
        self._clock = clock
        self._core = self._options.delivery(
            NO_PRODUCER_ID if producer_id is None else producer_id, producer_epoch
        )
        self._line = Line(self._options, self._core, randomness, self._retire)
        self._turns = Turns()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = inf
        self._writing = False
        self._moved: list[asyncio.Future[None]] = []
        """Futures of waiting callers; they are resolved when a publication, connection or credit
        changes.
        """

    # Life

    async def start(self) -> None:
        """Start connecting in the background; `wait_started` waits for an agent.

        Raises:
            ClientClosed: the client was stopped.
        """
        if self._core.closing:
            raise _closed()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._on_timer()

    async def stop(self, timeout_seconds: float = _STOP_SECONDS) -> None:
        """Deliver outstanding publications for at most `timeout_seconds`, then close the
        connection.

        Publications without an answer by then end with `ClientClosed`. A second call has no effect.
        """
        core = self._core
        core.close()
        if self._loop is None:
            core.abandon(_closed())
            return
        try:
            await self._until(lambda: not core.outstanding, self._now_ms() + timeout_seconds * 1000)
        finally:
            core.abandon(ClientClosed("the client was stopped before an answer arrived"))
            self._line.lost("the client has been stopped", self._now_ms())
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._loop = None
            self._tell()

    async def __aenter__(self) -> AsyncHostClient:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.stop()

    def __del__(self) -> None:
        if getattr(self, "_loop", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        options = getattr(self, "_options", None)
        where = "" if options is None else f" {options.path} {self.state}"
        return f"<AsyncHostClient{where}>"

    # Publishing

    async def publish(
        self, payload: Any, *, events: int = 1, topic: str = "", partition: int | None = None
    ) -> None:
        """Publish one chunk, and return when the agent has accepted it.

        The payload's memory must not change until the chunk is accepted or has failed. Cancelling
        this call does not withdraw the chunk, so that also holds after a cancellation. If
        `partition` is None and the topic is one of the client's `topics`, partitions are used in
        turn.

        Raises:
            PenstockError: the same errors as `HostClient.send`.
        """
        partition = await self._partition(topic, partition)
        await (await self._publish(one(payload, events, topic, partition)))

    async def publish_batch(
        self,
        payloads: Any,
        *,
        event_counts: Sequence[int] | None = None,
        topic: str = "",
        partition: int | None = None,
    ) -> None:
        """Publish several chunks with one target as one frame, which is accepted or fails as a
        whole.

        `payloads` is a sequence of up to 4,096 buffers, or an Arrow array of bytes or text, whose
        values are sent without a copy.

        Raises:
            PenstockError: the same errors as `publish`.
        """
        partition = await self._partition(topic, partition)
        await (await self._publish(many(payloads, event_counts, topic, partition)))

    async def publish_records(self, topic: str, data: Any, **options: Any) -> int:
        """Publish a table as record batches; return the number of records when all are accepted.

        The parameters are those of `HostClient.publish_records`. Encoding blocks the loop for one
        batch at a time.

        Raises:
            PenstockError: the same errors as `HostClient.publish_records`.
        """
        check_installed("client")
        from penstock.host.client.encoding import RecordOptions, record_frames

        if not self._line.starts:
            await self.wait_started()
        machine = self._core.machine
        frames = record_frames(
            topic,
            data,
            RecordOptions.of(options),
            partitions=machine.partitions.get(topic, 0),
            frame_bytes_max=machine.frame_bytes_max,
            turns=self._turns,
            now_ms=self._clock.now_ms,
        )
        futures, records = [], 0
        for publication in frames:
            records += publication.records
            futures.append(await self._publish(publication))
        await asyncio.gather(*futures)
        return records

    def publish_nowait(
        self, payload: Any, *, events: int = 1, topic: str = "", partition: int | None = None
    ) -> asyncio.Future[None]:
        """Publish one chunk without waiting; the future ends when the agent has answered.

        Raises:
            NoCredit: there is not enough credit or buffer space now.
            PenstockError: the same errors as `publish`.
        """
        where = self._place(topic) if partition is None else partition
        return self._submit(one(payload, events, topic, where))

    def publish_batch_nowait(
        self,
        payloads: Any,
        *,
        event_counts: Sequence[int] | None = None,
        topic: str = "",
        partition: int | None = None,
    ) -> asyncio.Future[None]:
        """Publish several chunks in one frame without waiting, as `publish_nowait` does.

        Raises:
            PenstockError: the same errors as `publish_nowait`.
        """
        where = self._place(topic) if partition is None else partition
        return self._submit(many(payloads, event_counts, topic, where))

    def _place(self, topic: str) -> int:
        return self._turns.partition(topic, self._core.machine.partitions)

    async def _partition(self, topic: str, partition: int | None) -> int:
        if partition is not None:
            return partition
        if topic in self._options.topics and topic not in self._core.machine.partitions:
            await self.wait_started()
        return self._place(topic)

    async def _publish(self, publication: Publication) -> asyncio.Future[None]:
        """Submit a publication, and return its future.

        With `resend`, it waits for space in the buffer. Without, it waits only until the first
        agent is connected, and fails if there is no credit.
        """
        if not self._options.resend:
            if not self._line.starts:
                await self.wait_started()
            return self._submit(publication)
        deadline_ms = self._now_ms() + self._options.publish_timeout_ms
        while True:
            try:
                return self._submit(publication)
            except (NoCredit, NotConnected, Draining):
                if not await self._something(deadline_ms):
                    raise

    def _submit(self, publication: Publication) -> asyncio.Future[None]:
        loop = self._loop
        if loop is None:
            if self._core.closing:
                raise _closed()
            raise NotConnected("the client was not started; call start first")
        future: asyncio.Future[None] = loop.create_future()
        publication.waiter = future
        publication.on_end = self._on_end
        now_ms = self._now_ms()
        self._core.submit(publication, now_ms)
        self._line.flush(now_ms)
        if self._line.out.waiting:
            self._watch_writing()
        return future

    def _on_end(self, publication: Publication) -> None:
        future: asyncio.Future[None] = publication.waiter
        if not future.done():
            if publication.error is None:
                future.set_result(None)
            else:
                future.set_exception(publication.error)

    # Waiting

    async def wait_started(self, timeout_seconds: float | None = None) -> None:
        """Return when an agent has accepted this producer, by default within the connect timeout.

        Raises:
            NotConnected, HandshakeRefused: no agent has; the message has the reason.
            ClientClosed: the client was stopped.
        """
        limit_ms = (
            self._options.connect_timeout_ms if timeout_seconds is None else timeout_seconds * 1000
        )
        line, core = self._line, self._core
        await self._until(
            lambda: line.started or line.refused_for_good or core.closing,
            self._now_ms() + limit_ms,
        )
        if not line.started:
            raise core.fenced or (_closed() if core.closing else line.trouble())

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Return when all publications have ended.

        Raises:
            TimeoutError: some have not ended after `timeout_seconds`.
        """
        core = self._core
        deadline_ms = inf if timeout_seconds is None else self._now_ms() + timeout_seconds * 1000
        if not await self._until(lambda: not core.outstanding, deadline_ms):
            raise TimeoutError(
                f"{core.outstanding} frames have no answer after {timeout_seconds} s"
            )

    async def _until(self, done: Callable[[], bool], deadline_ms: float) -> bool:
        while not done():
            if self._loop is None or not await self._something(deadline_ms):
                return done()
        return True

    async def _something(self, deadline_ms: float) -> bool:
        """Wait until a publication, the connection or the credit changes; return False at the
        deadline.
        """
        loop = self._loop
        if loop is None:
            return False
        moved: asyncio.Future[None] = loop.create_future()
        self._moved.append(moved)
        left = None if deadline_ms == inf else max(0.0, deadline_ms - self._now_ms()) / 1000
        try:
            await asyncio.wait_for(moved, left)
        except TimeoutError:
            return False
        finally:
            if moved in self._moved:
                self._moved.remove(moved)
        return True

    def _tell(self) -> None:
        moved, self._moved = self._moved, []
        for future in moved:
            if not future.done():
                future.set_result(None)

    # The loop's calls

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _on_readable(self) -> None:
        now_ms = self._now_ms()
        self._line.arrived(self._line.receive(_DONTWAIT), now_ms)
        self._after(now_ms)

    def _on_writable(self) -> None:
        now_ms = self._now_ms()
        self._line.flush(now_ms)
        self._after(now_ms)

    def _on_timer(self) -> None:
        loop = self._loop
        if loop is None:
            return
        self._timer, self._timer_ms = None, inf
        now_ms = self._now_ms()
        line = self._line
        if now_ms >= line.connect_at_ms() and line.connect(now_ms) and line.socket is not None:
            line.socket.setblocking(False)
            loop.add_reader(line.socket.fileno(), self._on_readable)
        line.tick(now_ms)
        self._after(now_ms)

    def _after(self, now_ms: float) -> None:
        """Follow up each call that may have changed state: set the timer for the next timeout,
        watch for writability if bytes wait, and wake waiting callers.
        """
        loop = self._loop
        if loop is None:
            return
        self._watch_writing()
        wake_ms = min(self._line.next_wake_ms(now_ms), now_ms + _STEP_MS)
        if self._timer is None or wake_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = wake_ms
            self._timer = loop.call_later(max(0.0, wake_ms - now_ms) / 1000, self._on_timer)
        if self._moved:
            self._tell()

    def _watch_writing(self) -> None:
        loop, current, waiting = self._loop, self._line.socket, self._line.out.waiting
        if loop is None or current is None or waiting == self._writing:
            return
        self._writing = waiting
        if waiting:
            loop.add_writer(current.fileno(), self._on_writable)
        else:
            loop.remove_writer(current.fileno())

    def _retire(self, old: socket.socket) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.remove_reader(old.fileno())
            loop.remove_writer(old.fileno())
        self._writing = False
        old.close()

    # What is known

    @property
    def state(self) -> str:
        """State of the client: connecting, handshake, started, draining or closed."""
        if self._core.fenced is not None or (self._core.closing and self._loop is None):
            return "closed"
        state = self._core.machine.state
        return "connecting" if state is ClientState.DISCONNECTED else state.value


def _closed() -> PenstockError:
    return ClientClosed("the client has been stopped")
