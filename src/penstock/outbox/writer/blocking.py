"""Outbox for programs without an event loop. Its calls block or return futures.

`Outbox` has a thread with an event loop and an `OutboxWriter`. If a future is cancelled or a call
times out, file calls in progress continue. They keep the payload and its share of the limits until
they end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from penstock.base.metrics import Sample
from penstock.outbox.errors import OutboxClosed
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.publisher import PointerPublisher, TopicPublisher
from penstock.outbox.writer.safe_write import Payload
from penstock.outbox.writer.writer import OutboxWriter, SendResult, WriteResult

T = TypeVar("T")


class Outbox:
    """Outbox that any number of threads may use, from its construction to `close`.

    Args:
        settings: `root` must be set, and for `send` also `topic`.
        bootstrap: addresses of the cluster for `send`, as `penstock.client.Client` takes them.
        publisher: publisher to use instead of one for `bootstrap`.

    Raises:
        RootUnavailable: the root is missing.
    """

    def __init__(
        self,
        settings: OutboxSettings,
        bootstrap: str | None = None,
        *,
        publisher: PointerPublisher | None = None,
    ) -> None:
        if publisher is None and bootstrap is not None:
            publisher = TopicPublisher(
                bootstrap,
                settings.topic,
                queue_records=settings.publish_queue_records,
                queue_bytes=settings.publish_queue_bytes,
            )
        self._writer = OutboxWriter(settings, publisher=publisher)
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="outbox-loop", daemon=True)
        self._thread.start()
        try:
            self._submit(self._writer.start()).result()
        except BaseException:
            self._end()
            raise

    def write(self, payload: Payload, **options: Any) -> WriteResult:
        """Call `OutboxWriter.write`, and return when the file is complete."""
        return self.write_async(payload, **options).result()

    def send(self, payload: Payload, **options: Any) -> SendResult:
        """Call `OutboxWriter.send`, and return when the record is published."""
        return self.send_async(payload, **options).result()

    def write_async(
        self,
        payload: Payload,
        *,
        partition_id: str,
        batch_id: str | None = None,
        event_count: int = 1,
        codec: str = "none",
        at_ms: int | None = None,
        released: Callable[[], None] | None = None,
    ) -> Future[WriteResult]:
        """Start `OutboxWriter.write`. `released` is called on the outbox's own thread."""
        return self._submit(
            self._writer.write(
                payload,
                partition_id=partition_id,
                batch_id=batch_id,
                event_count=event_count,
                codec=codec,
                at_ms=at_ms,
                released=released,
            )
        )

    def send_async(
        self,
        payload: Payload,
        *,
        partition_id: str,
        batch_id: str | None = None,
        event_count: int = 1,
        codec: str = "none",
        at_ms: int | None = None,
        released: Callable[[], None] | None = None,
    ) -> Future[SendResult]:
        """Start `OutboxWriter.send`. `released` is called on the outbox's own thread."""
        return self._submit(
            self._writer.send(
                payload,
                partition_id=partition_id,
                batch_id=batch_id,
                event_count=event_count,
                codec=codec,
                at_ms=at_ms,
                released=released,
            )
        )

    def samples(self) -> list[Sample]:
        async def collect() -> list[Sample]:
            return list(self._writer.samples())

        return self._submit(collect()).result()

    def close(self, deadline_seconds: float | None = None) -> None:
        """Reject new calls, stop the writer (`OutboxWriter.stop`), and end the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            stopping = asyncio.run_coroutine_threadsafe(
                self._writer.stop(deadline_seconds), self._loop
            )
        try:
            stopping.result()
        finally:
            self._end()

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise OutboxClosed("outbox: closed")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _drain(self) -> None:
        here = asyncio.current_task()
        others = asyncio.all_tasks() - {here} if here else set()
        if others:
            await asyncio.wait(others)
