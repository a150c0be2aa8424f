"""Publisher of records: the interface, and its implementation for a topic.

`TopicPublisher` uses `penstock.client.Client`, which works with any Kafka cluster. The client
blocks, so it has its own thread. Records that arrive during a write wait in a queue and become the
next write. So the record of a single sender is sent at once, and the records of a thousand senders
are sent as one batch. One thread and one queue also keep the order of `publish` calls. The key is
the partition id, so all records of an id are in one partition of the topic.

After a failed publish, the caller publishes again. Consumers drop duplicates by the batch id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError
from penstock.base.extras import check_installed
from penstock.base.metrics import Sample
from penstock.client.errors import BATCH_BYTES, Disconnected
from penstock.outbox.errors import OutboxBusy, OutboxClosed
from penstock.outbox.metrics import PublisherCounts
from penstock.outbox.pointer import OutboxRecord
from penstock.outbox.settings import PUBLISH_QUEUE_BYTES, PUBLISH_QUEUE_RECORDS

if TYPE_CHECKING:
    from penstock.client import Client

PUBLISH_RECORDS_MAX: Final = 1024
"""Records of one write to the topic, unless its first call alone has more."""
PUBLISH_BYTES_MAX: Final = 8 << 20
"""Bytes of keys and values of one write, unless its first call alone has more."""
RECORD_OVERHEAD_BYTES: Final = 4096
"""Largest size of a record's headers and of the header of its record batch."""


class PointerPublisher(Protocol):
    """Interface for publishing records. All calls come from the thread of one event loop."""

    async def start(self) -> None: ...

    async def stop(self, deadline_seconds: float | None = None) -> None:
        """Publish waiting records until the deadline. Then release all resources."""
        ...

    async def publish(self, records: Sequence[OutboxRecord]) -> None:
        """Publish records in their order. Return when all are acknowledged.

        Raises:
            InvalidError: the topic permanently rejects a record.
            PenstockError: some records may not have been published.
        """
        ...

    def samples(self) -> Iterator[Sample]: ...


class _Request(Struct, eq=False):
    records: Sequence[OutboxRecord]
    size_bytes: int
    done: asyncio.Future[None]


class TopicPublisher:
    """Publisher to one topic of a cluster.

    Args:
        bootstrap: addresses of the cluster, as `Client` takes them, or a function that creates a
            client. The publisher closes the client.
        topic: an existing topic. If it is missing, the first publish fails.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Callable[[], Client],
        topic: str,
        *,
        queue_records: int = PUBLISH_QUEUE_RECORDS,
        queue_bytes: int = PUBLISH_QUEUE_BYTES,
    ) -> None:
        """Check the installation before a payload is written; raises MissingExtra."""
        check_installed("client")
        self._bootstrap = bootstrap
        self._topic = topic
        self._queue_records = queue_records
        self._queue_bytes = queue_bytes
        self._queue: deque[_Request] = deque()
        self._client: Client | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._drain: asyncio.Task[None] | None = None
        self._stopping = False
        self.counts = PublisherCounts()

    async def start(self) -> None:
        """Create the client. It connects at the first publish."""
        self._stopping = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="outbox-publish")
        self._client = await asyncio.get_running_loop().run_in_executor(self._pool, self._connect)

    def _connect(self) -> Client:
        if callable(self._bootstrap):
            return self._bootstrap()
        from penstock.client import Client

        return Client(self._bootstrap, client_id="penstock-outbox")

    async def stop(self, deadline_seconds: float | None = None) -> None:
        """Publish waiting records until the deadline.

        The calls of records that still wait then fail with OutboxClosed.
        """
        self._stopping = True
        if self._drain is not None:
            await asyncio.wait({self._drain}, timeout=deadline_seconds)
        waiting = list(self._queue)
        self._queue.clear()
        self._finish(waiting, OutboxClosed(f"publisher of {self._topic}: stopped"))
        if self._client is not None:
            self._client.close()  # a write in progress ends with an error
            self._client = None
        if self._drain is not None:
            await asyncio.wait({self._drain})
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    async def publish(self, records: Sequence[OutboxRecord]) -> None:
        """Publish records in their order, after those of earlier calls.

        Raises:
            OutboxBusy: the queue is full. Nothing was published.
            OutboxClosed: the publisher is not started, or is stopping.
            PenstockError: the errors of `PointerPublisher.publish`.
        """
        if self._stopping or self._pool is None:
            raise OutboxClosed(f"publisher of {self._topic}: not started or stopping")
        if not records:
            return
        size_bytes = sum([record.size_bytes for record in records])
        self._check_room(len(records), size_bytes)
        loop = asyncio.get_running_loop()
        request = _Request(records, size_bytes, loop.create_future())
        self._queue.append(request)
        self.counts.waiting_records += len(records)
        self.counts.waiting_bytes += size_bytes
        if self._drain is None:
            self._drain = loop.create_task(self._publish_waiting())
        await request.done

    async def check(self) -> None:
        """Check that a broker has the topic. Waits for a write in progress.

        Raises:
            PenstockError: no broker has the topic, or none answers.
        """
        client = self._client
        if client is None:
            raise OutboxClosed(f"publisher of {self._topic}: not started or stopping")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, client.describe_topic, self._topic)

    def samples(self) -> Iterator[Sample]:
        return self.counts.samples()

    def _check_room(self, records: int, size_bytes: int) -> None:
        if not self._queue:
            return  # it is next, regardless of its size
        if self.counts.waiting_records + records > self._queue_records:
            raise OutboxBusy(
                f"publisher of {self._topic}: {self.counts.waiting_records} records are queued, and"
                f" {records} more exceed the limit of {self._queue_records}"
            )
        if self.counts.waiting_bytes + size_bytes > self._queue_bytes:
            raise OutboxBusy(
                f"publisher of {self._topic}: {self.counts.waiting_bytes} bytes are queued, and"
                f" {size_bytes} more exceed the limit of {self._queue_bytes}"
            )

    async def _publish_waiting(self) -> None:
        try:
            while self._queue:
                await self._publish_one(self._take())
        finally:
            self._drain = None

    def _take(self) -> list[_Request]:
        taken: list[_Request] = []
        records = size_bytes = 0
        while self._queue:
            request = self._queue[0]
            records += len(request.records)
            size_bytes += request.size_bytes
            full = records > PUBLISH_RECORDS_MAX or size_bytes > PUBLISH_BYTES_MAX
            if taken and full:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _publish_one(self, requests: list[_Request]) -> None:
        error = await self._write(requests)
        if isinstance(error, InvalidError) and len(requests) > 1:
            # A rejected record must not fail the others of its write.
            for request in requests:
                self._finish([request], await self._write([request]))
        else:
            self._finish(requests, error)

    async def _write(self, requests: list[_Request]) -> PenstockError | None:
        records = list(chain.from_iterable(request.records for request in requests))
        client, loop = self._client, asyncio.get_running_loop()
        if client is None:
            return OutboxClosed(f"publisher of {self._topic}: stopped")
        self.counts.publishes += 1
        return await loop.run_in_executor(self._pool, _write, client, self._topic, records)

    def _finish(self, requests: Iterable[_Request], error: PenstockError | None) -> None:
        for request in requests:
            self.counts.waiting_records -= len(request.records)
            self.counts.waiting_bytes -= request.size_bytes
            if request.done.done():
                continue  # its caller was cancelled
            if error is None:
                request.done.set_result(None)
            else:
                request.done.set_exception(error)


def _write(client: Client, topic: str, records: Sequence[OutboxRecord]) -> PenstockError | None:
    """Write the records and return an error, if any. Runs on the publisher's thread."""
    # A record above the client's usual batch size has its own batch, which the topic may reject.
    largest = max([record.size_bytes for record in records]) + RECORD_OVERHEAD_BYTES
    batch_bytes = max(BATCH_BYTES, largest)
    try:
        client.write_arrow(topic, record_table(records), batch_bytes=batch_bytes)
    except PenstockError as error:
        return error
    except OSError as error:
        return Disconnected(f"publish to {topic}: {error!r}")
    return None


def record_table(records: Sequence[OutboxRecord]) -> Any:
    import pyarrow as pa

    headers = [record.headers for record in records]
    flat = list(chain.from_iterable(headers))
    ends = pa.array(list(accumulate(map(len, headers), initial=0)), pa.int32())
    pairs = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        names=["key", "value"],
    )
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.ListArray.from_arrays(ends, pairs),
        }
    )
