"""The client for event loops, asyncio's own and uvloop.

The loop says when the socket can be read, and one receive takes in what has come; publishing sends
at once, and what the kernel does not take is sent when the loop says so. The socket is not handed
to the loop's transports, because a ring's descriptor has to go with the first bytes.

All methods are to be called on the loop that `start` was called on.
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
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.host.client.facts import ProducerFacts
from penstock.host.client.line import Line
from penstock.host.client.options import DEFAULT_PATH, client_options
from penstock.host.client.publications import Turns, many, one
from penstock.host.client_machine import ClientState
from penstock.host.errors import ClientClosed, Draining, NoCredit, NotConnected
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.publication import Publication

_STEP_MS: Final = 1_000.0
"""The clock is looked at as often when nothing happens."""

_STOP_SECONDS: Final = 30.0
_DONTWAIT: Final = socket.MSG_DONTWAIT


class AsyncHostClient(ProducerFacts):
    """Producer for event loops that publishes to the agent behind a socket file.

    `ClientOptions` has the options that are not named here.

    Raises:
        InvalidSetting: an option that is unknown or out of its bounds.
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
        """Resolved when something ends, begins or breaks."""

    # Life

    async def start(self) -> None:
        """Begin to connect, until an agent answers; see `wait_started`.

        Raises:
            ClientClosed: the client has been stopped.
        """
        if self._core.closing:
            raise _closed()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._on_timer()

    async def stop(self, timeout_seconds: float = _STOP_SECONDS) -> None:
        """Deliver what is left, for at most `timeout_seconds`, and end the connection.

        What has no answer by then ends with `ClientClosed`. Stopping again does nothing.
        """
        core = self._core
        core.close()
        if self._loop is None:
            core.abandon(_closed())
            return
        try:
            await self._until(lambda: not core.outstanding, self._now_ms() + timeout_seconds * 1000)
        finally:
            core.abandon(ClientClosed("the client was stopped before an answer came"))
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
        """Publish one chunk and return when the agent has accepted it.

        The payload's memory must stay as it is until then; so it must when this is cancelled, which
        does not take the chunk back. Without a partition, a topic that was named to the client has
        its partitions take turns.

        Raises:
            as `HostClient.send`.
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
        """Publish several chunks with one target as one frame, accepted or failed as one.

        `payloads` is a sequence of up to 4,096 buffers, or an Arrow array of bytes or text, whose
        values are sent from where they lie.

        Raises:
            as `publish`.
        """
        partition = await self._partition(topic, partition)
        await (await self._publish(many(payloads, event_counts, topic, partition)))

    async def publish_records(self, topic: str, data: Any, **options: Any) -> int:
        """Publish a table as record batches and return the number of records, all accepted.

        As `HostClient.publish_records`; encoding takes the loop's thread for a batch at a time.

        Raises:
            as `HostClient.publish_records`.
        """
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
        """Publish one chunk; the future ends when its fate is known.

        Raises:
            NoCredit: there is no room now.
            PenstockError: as `publish`.
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
        """Publish several chunks in one frame, as `publish_nowait`.

        Raises:
            PenstockError: as `publish_nowait`.
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
        """Submit; wait for room where frames are kept, otherwise only for the first agent."""
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
            raise NotConnected("the client has not been started")
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
        """Return when an agent has taken this producer in, by default in the connect timeout.

        Raises:
            NotConnected, HandshakeRefused: none has, and why.
            ClientClosed: the client has been stopped.
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
        """Return when the fate of everything published is known.

        Raises:
            TimeoutError: it is not in `timeout_seconds`.
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
        """Wait until anything has moved; False at the deadline."""
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
        """Set the timer and the writability watch for what is due next, and notify waiting
        callers."""
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
        """connecting, handshake, started, draining or closed."""
        if self._core.fenced is not None or (self._core.closing and self._loop is None):
            return "closed"
        state = self._core.machine.state
        return "connecting" if state is ClientState.DISCONNECTED else state.value


def _closed() -> PenstockError:
    return ClientClosed("the client has been stopped")
