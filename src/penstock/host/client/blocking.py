"""The client for threads: publish chunks to the host's agent, and wait for them if you like.

One `HostClient` may be used by any number of threads. `publish` returns a future at once; `send`
publishes and waits. See `engine.py` for how waiting works.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Final

from penstock.base.system import SYSTEM_CLOCK
from penstock.host.client import processes
from penstock.host.client.engine import Engine
from penstock.host.client.facts import ProducerFacts
from penstock.host.client.futures import PublishFuture
from penstock.host.client.options import DEFAULT_PATH, client_options
from penstock.host.client.publications import Turns, many, one
from penstock.host.errors import ClientClosed
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.publication import Publication

_CLOSE_SECONDS: Final = 30.0


class HostClient(ProducerFacts):
    """Producer that publishes to the agent behind a socket file.

    The client connects in the background and keeps trying; `wait_started` waits for the agent.
    `ClientOptions` has the options that are not named here.

    With `resend` (the default) frames are kept until the agent has accepted them, and `publish`
    waits while the buffer is full, unless `block` is False. Without it, publishing fails at once if
    there is no agent or no credit, and frames in flight fail with `LostOnDisconnect` when the
    connection ends.

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
        **options: Any,
    ) -> None:
        self._engine: Engine | None = None
        self._options = client_options(
            path,
            topics=topics,
            client_name=client_name,
            resend=resend,
            idempotent=idempotent,
            **options,
        )
        self._turns = Turns()
        self._block = resend
        engine = self._engine = Engine(
            self._options,
            producer_id=NO_PRODUCER_ID if producer_id is None else producer_id,
            producer_epoch=producer_epoch,
        )
        self._core = engine.line.core
        processes.register(engine)

    # Publishing

    def publish(
        self,
        payload: Any,
        *,
        events: int = 1,
        topic: str = "",
        partition: int | None = None,
        block: bool | None = None,
    ) -> PublishFuture:
        """Publish one chunk; the future ends when the agent has accepted it, or with an error.

        The payload's memory must stay as it is until then. Without a partition, a topic that was
        named to the client has its partitions take turns.

        Raises:
            InvalidChunks: the payload cannot be sent as it is.
            FrameTooLarge: it is over the limits of the agent, or of the client's buffer.
            NoCredit: no room, in the publish timeout; without `block`, right now.
            NotConnected, Draining: without `resend`.
            ClientClosed: after `close`, and in a forked process.
        """
        if partition is None:
            partition = self._partition(topic) if topic else -1
        return self._publish(one(payload, events, topic, partition), block)

    def publish_batch(
        self,
        payloads: Any,
        *,
        event_counts: Sequence[int] | None = None,
        topic: str = "",
        partition: int | None = None,
        block: bool | None = None,
    ) -> PublishFuture:
        """Publish several chunks with one target as one frame, accepted or failed as one.

        `payloads` is a sequence of up to 4,096 buffers, or an Arrow array of bytes or text, whose
        values are sent from where they lie.

        Raises:
            as `publish`.
        """
        if partition is None:
            partition = self._partition(topic) if topic else -1
        return self._publish(many(payloads, event_counts, topic, partition), block)

    def publish_records(
        self,
        topic: str,
        data: Any,
        *,
        block: bool | None = None,
        **options: Any,
    ) -> list[PublishFuture]:
        """Publish a table as record batches, one frame and one future each.

        `data` is anything with Arrow's C stream; options as for `Client.write_arrow`: `key`,
        `value`, `timestamp`, `headers`, `partition`, `codec`, `level`, `batch_bytes`. The topic has
        to be one of the client's topics, unless `partition` is a number.

        Raises:
            InvalidArgument: invalid columns or options.
            PenstockError: as `publish`; frames published before continue.
        """
        from penstock.host.client.encoding import RecordOptions, record_frames

        engine = self._running()
        machine = self._core.machine
        if not engine.line.starts:
            self._wait_for_first_agent(engine)
        frames = record_frames(
            topic,
            data,
            RecordOptions.of(options),
            partitions=machine.partitions.get(topic, 0),
            frame_bytes_max=machine.frame_bytes_max,
            turns=self._turns,
            now_ms=SYSTEM_CLOCK.now_ms,
        )
        return [self._publish(publication, block) for publication in frames]

    def send(
        self,
        payload: Any,
        *,
        events: int = 1,
        topic: str = "",
        partition: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish one chunk and return when the agent has accepted it.

        Raises:
            TimeoutError: no answer in `timeout` seconds; the publication continues.
            PenstockError: as `publish`, or the outcome of the frame.
        """
        if partition is None:
            partition = self._partition(topic) if topic else -1
        publication = one(payload, events, topic, partition)
        self._ready().send(publication, timeout, block=self._block)

    def _publish(self, publication: Publication, block: bool | None) -> PublishFuture:
        return self._ready().publish(publication, block=self._block if block is None else block)

    def _ready(self) -> Engine:
        """The engine; where frames are not kept, after the first agent has been waited for."""
        engine = self._running()
        if not self._block and not engine.line.starts:
            self._wait_for_first_agent(engine)
        return engine

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise _closed()
        return engine

    def _partition(self, topic: str) -> int:
        engine = self._running()
        if topic in self._options.topics and topic not in self._core.machine.partitions:
            self._wait_for_first_agent(engine)
        return self._turns.partition(topic, self._core.machine.partitions)

    def _wait_for_first_agent(self, engine: Engine) -> None:
        self._wait_started(engine, self._options.connect_timeout_ms / 1000)

    # The connection

    def wait_started(self, timeout: float | None = None) -> None:
        """Return when an agent has taken this producer in, by default in the connect timeout.

        Raises:
            NotConnected, HandshakeRefused: none has, and why.
            ClientClosed: the client has been closed.
        """
        engine = self._running()
        limit = self._options.connect_timeout_ms / 1000 if timeout is None else timeout
        self._wait_started(engine, limit)

    def _wait_started(self, engine: Engine, seconds: float) -> None:
        line = engine.line
        engine.wait_until(
            lambda: line.started or line.refused_for_good or line.core.closing,
            engine.now_ms() + seconds * 1000,
        )
        if not line.started:
            raise line.core.fenced or (_closed() if line.core.closing else line.trouble())

    @property
    def state(self) -> str:
        """connecting, handshake, started, draining or closed."""
        return "closed" if self._engine is None else self._engine.state

    # The end

    def flush(self, timeout: float | None = None) -> None:
        """Return when the fate of everything published is known.

        Raises:
            TimeoutError: it is not in `timeout` seconds.
            ClientClosed: the client has been closed.
        """
        engine, core = self._running(), self._core
        deadline_ms = float("inf") if timeout is None else engine.now_ms() + timeout * 1000
        if not engine.wait_until(lambda: not core.outstanding, deadline_ms) and core.outstanding:
            raise TimeoutError(f"{core.outstanding} frames have no answer after {timeout} s")

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Deliver what is left, for at most `timeout` seconds, and end the connection.

        What has no answer by then ends with `ClientClosed`. Closing again does nothing.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close(engine.now_ms() + timeout * 1000)
            processes.forget(engine)

    def __enter__(self) -> HostClient:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.stopped:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            engine.orphan()

    def __repr__(self) -> str:
        options = getattr(self, "_options", None)
        where = "" if options is None else f" {options.path} {self.state}"
        return f"<HostClient{where}>"


def _closed() -> ClientClosed:
    return ClientClosed("the client has been closed")
