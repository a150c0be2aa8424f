"""Client of the host agent for threads.

Any number of threads may use one `HostClient`. `publish` returns a future at once; `send` publishes
and waits. `engine.py` describes how threads wait.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Final

from penstock.base.extras import check_installed
from penstock.base.system import SYSTEM_CLOCK
from penstock.host.client import futures
from penstock.host.client.engine import Engine
from penstock.host.client.futures import PublishFuture
from penstock.host.client.options import DEFAULT_PATH, client_options
from penstock.host.client.publications import ProducerFacts, Turns, many, one
from penstock.host.errors import ClientClosed
from penstock.host.port import NO_PRODUCER_ID
from penstock.host.publication import Publication

# Handling of blocking clients when their process forks, and when it ends.
#
# A forked child has the parent's sockets, but not its threads. If both processes wrote frames to
# one stream, they would corrupt it. So all clients are closed in the child, without a message to
# the agent. The locks of all clients are held during the fork, so that the child finds each client
# in a consistent state.
#
# At the end of the interpreter, clients that were not closed deliver outstanding publications
# within a time limit.
#
# Source: `os.register_at_fork`; `logging` handles its locks in the same way.


_FORK_WAIT_SECONDS: Final = 1.0
"""Maximum time in seconds to wait for a client's lock before a fork."""

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: list[tuple[Engine, threading.Lock]] = []


def register(engine: Engine) -> None:
    """Register an engine for forks and for the end of the process.

    A forked child drops its copy of the engine. At the end of the process the engine is closed.
    """
    _engines.add(engine)


def forget(engine: Engine) -> None:
    """Undo `register` for an engine that has stopped."""
    _engines.discard(engine)


def _before_fork() -> None:
    _held.extend(
        (engine, engine.lock)
        for engine in list(_engines)
        if engine.lock.acquire(timeout=_FORK_WAIT_SECONDS)
    )


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()[1].release()


def _after_fork_in_child() -> None:
    _held.clear()
    futures.after_fork_in_child()
    for engine in list(_engines):
        with contextlib.suppress(Exception):
            engine.after_fork_in_child()
    _engines.clear()


def _at_exit() -> None:
    left = list(_engines)
    for engine in left:
        with contextlib.suppress(Exception):
            engine.close(engine.now_ms() + engine.options.exit_timeout_ms)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_at_exit)


_CLOSE_SECONDS: Final = 30.0


class HostClient(ProducerFacts):
    """Producer for threads that publishes to the agent at a socket file.

    The client connects in the background and retries; `wait_started` waits for an agent.
    `ClientOptions` documents the options that are not parameters here.

    With `resend` (the default), frames are kept until the agent has accepted them. `publish` then
    waits while the buffer is full, unless `block` is False. Without `resend`, publishing fails at
    once if there is no agent or no credit. Frames in flight fail with `LostOnDisconnect` when the
    connection ends.

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
        register(engine)

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

        The payload's memory must not change until then. If `partition` is None and the topic is one
        of the client's `topics`, partitions are used in turn.

        Raises:
            InvalidChunks: the payload cannot be sent.
            FrameTooLarge: the frame exceeds the limits of the agent, or of the client's buffer.
            NoCredit: there is no space within the publish timeout, or without `block` now.
            NotConnected, Draining: no agent accepts frames now; only without `resend`.
            ClientClosed: the client is closed, or belongs to the process that was forked.
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
        """Publish several chunks with one target as one frame, which is accepted or fails as a
        whole.

        `payloads` is a sequence of up to 4,096 buffers, or an Arrow array of bytes or text, whose
        values are sent without a copy.

        Raises:
            PenstockError: the same errors as `publish`.
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
        """Publish a table as record batches; return one future per batch, each sent as one frame.

        `data` is any object with Arrow's C stream interface. Options are those of
        `Client.write_arrow`: `key`, `value`, `timestamp`, `headers`, `partition`, `codec`, `level`,
        `batch_bytes`. The topic must be one of the client's `topics`, unless `partition` is a
        number.

        Raises:
            InvalidArgument: columns or options are invalid.
            PenstockError: the same errors as `publish`; frames that were published before continue.
        """
        check_installed("client")
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
        """Publish one chunk, and return when the agent has accepted it.

        Raises:
            TimeoutError: no answer arrived within `timeout` seconds; the publication continues.
            PenstockError: the same errors as `publish`, or the error of the frame.
        """
        if partition is None:
            partition = self._partition(topic) if topic else -1
        publication = one(payload, events, topic, partition)
        self._ready().send(publication, timeout, block=self._block)

    def _publish(self, publication: Publication, block: bool | None) -> PublishFuture:
        return self._ready().publish(publication, block=self._block if block is None else block)

    def _ready(self) -> Engine:
        """Return the engine; without `resend`, first wait until an agent is connected."""
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
        """Return when an agent has accepted this producer, by default within the connect timeout.

        Raises:
            NotConnected, HandshakeRefused: no agent has; the message has the reason.
            ClientClosed: the client was closed.
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
        """State of the client: connecting, handshake, started, draining or closed."""
        return "closed" if self._engine is None else self._engine.state

    # The end

    def flush(self, timeout: float | None = None) -> None:
        """Return when all publications have ended.

        Raises:
            TimeoutError: some have not ended after `timeout` seconds.
            ClientClosed: the client was closed.
        """
        engine, core = self._running(), self._core
        deadline_ms = float("inf") if timeout is None else engine.now_ms() + timeout * 1000
        if not engine.wait_until(lambda: not core.outstanding, deadline_ms) and core.outstanding:
            raise TimeoutError(f"{core.outstanding} frames have no answer after {timeout} s")

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Deliver outstanding publications for at most `timeout` seconds, then close the
        connection.

        Publications without an answer by then end with `ClientClosed`. A second call has no effect.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close(engine.now_ms() + timeout * 1000)
            forget(engine)

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
