"""Audit log sink that writes lines to a topic: a record's key is the principal, its value the line.

    offered ─▶ waiting ─▶ sending, one batch ─▶ appended ─▶ the next batch
       │ full: dropped       ▲   │ retriable: the same batch again, by the same producer
       ▼                     └───┤ other errors: by a new producer
    counted                      ▼ at stop, after `STOP_SECONDS`: dropped

Lines are written after the events that they describe, so a broker that is killed loses the waiting
lines. Each written line is one record. Duplicates are possible only if a batch was appended
although the append failed with a permanent error, because a new producer then appends it again. The
sink's own appends are not audited, except for its login.

The sink creates the topic before the first line, and again after a deletion. The topic has one
partition and `default.replication.factor` replicas, and only brokers may write to it (`internal`).
An existing topic is used unchanged; each broker writes to one of its partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.base.errors import PenstockError, RetriableError, UnavailableError
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.broker.configuration.configs import topic_config
from penstock.broker.net.listeners import Identity, own_address
from penstock.broker.topics.plan import TopicSpec
from penstock.records.header import HEADER_BYTES

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.client.appender import Appender
    from penstock.client.producers import ProducerIdentity
    from penstock.records.columnar.encode import EncodedBatch
    from penstock.security.audit import Line


FIRST_EPOCH: Final = 0
"""Producer epoch of every new producer of the broker, because each gets a new producer id."""


class OwnAppender:
    """Appender for the broker's own records. Belongs to the event-loop thread."""

    def __init__(self, identity: Identity, client_id: str, *, timeout_ms: int) -> None:
        """`timeout_ms` limits one append."""
        self._identity = identity
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._starting: asyncio.Task[Appender] | None = None

    async def producer(self) -> ProducerIdentity:
        """Return a new producer, whose sequences begin at 0; raises PenstockError."""
        from penstock.client.producers import ProducerIdentity

        return ProducerIdentity(await (await self._appender()).producer_id(), FIRST_EPOCH)

    async def append(
        self,
        producer: ProducerIdentity,
        topic: str,
        partition: int,
        batches: Sequence[EncodedBatch],
    ) -> None:
        """Append batches, and return when they are acknowledged (`acks=all`).

        Raises:
            PenstockError: the batches may or may not have been appended. After a `RetriableError`
                the same producer may append them again without duplicates.
        """
        from penstock.client.producer_partitions import Pieces, ProducerPartition

        ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        refused = (await self._appender()).append(
            ProducerPartition(
                producer.producer_id, producer.epoch, topic, partition, idempotent=True
            ),
            [Pieces(batch.data, batch.record_count) for batch in batches],
            producer.sequence(topic, partition),
            done,
        )
        error = refused or await ended
        if error is not None:
            raise error
        producer.advance(topic, partition, sum(batch.record_count for batch in batches))

    async def stop(self) -> None:
        if self._starting is None:
            return
        starting, self._starting = self._starting, None
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().stop(0)

    async def _appender(self) -> Appender:
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            return await asyncio.shield(self._starting)
        except PenstockError:
            self._starting = None
            raise

    async def _start(self) -> Appender:
        from penstock.client import errors
        from penstock.client.appender import Appender

        appender = Appender(
            own_address(self._identity),
            client_id=self._client_id,
            retry=replace(errors.RETRY, timeout_ms=self._timeout_ms),
            security=self._identity.as_client(),
        )
        await appender.start()
        return appender


logger = logging.getLogger(__name__)

CLIENT_ID: Final = "penstock-audit"
BATCH_LINES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 1 << 20
APPEND_TIMEOUT_MS: Final = 30_000
"""Timeout of one append, after which the sink pauses and retries."""
STOP_SECONDS: Final = 5.0
"""Time limit for a stopping broker to write waiting lines."""
_RECORD_BYTES: Final = 64
"""Upper bound of a record's bytes besides key and value."""
_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=30_000, steady=0.5)
Place = Callable[[], Awaitable[tuple[int, int]]]
"""Function that returns the partition to write to, and the largest batch in bytes."""


class AuditTopic:
    """Audit log sink (`LineSink`) of one broker. Belongs to the event-loop thread."""

    name = "topic"

    def __init__(self, topic: str, *, lines_max: int) -> None:
        """Queue up to `lines_max` lines for a topic; `start` begins to write them."""
        self._topic = topic
        self._lines_max = lines_max
        self._waiting: deque[Line] = deque()
        self._sending: list[Line] = []
        self._came = asyncio.Event()
        self._stopping = False
        self._producer: ProducerIdentity | None = None
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def offer(self, line: Line) -> None:
        if self._stopping or len(self._waiting) + len(self._sending) >= self._lines_max:
            self.dropped += 1
            return
        self._waiting.append(line)
        self._came.set()

    def close(self) -> None: ...

    def start(
        self,
        *,
        node_id: int,
        cluster: ClusterMetadata,
        topic_admin: TopicAdmin,
        identity: Identity,
    ) -> None:
        place = partial(self._place, node_id, cluster, topic_admin)
        self._task = asyncio.get_running_loop().create_task(self._run(identity, place))

    async def stop(self) -> None:
        """Write waiting lines for up to `STOP_SECONDS`, and accept no more. Idempotent."""
        self._stopping = True
        self._came.set()
        if self._task is None:
            return
        task, self._task = self._task, None
        await asyncio.wait([task], timeout=STOP_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if left := len(self._waiting) + len(self._sending):
            self.dropped += left
            logger.error("discarded %d audit events for topic %s at shutdown", left, self._topic)

    async def _run(self, identity: Identity, place: Place) -> None:
        client = OwnAppender(identity, CLIENT_ID, timeout_ms=APPEND_TIMEOUT_MS)
        failures = 0
        try:
            while self._sending or self._waiting or not self._stopping:
                if not (self._sending or self._waiting):
                    self._came.clear()
                    await self._came.wait()
                    continue
                try:
                    await self._write(client, *await place())
                    failures = 0
                except Exception as error:
                    failures += 1
                    self._failed(error, failures)
                    await pause(_BACKOFF.pause_seconds(failures))
        finally:
            await client.stop()

    def _failed(self, error: Exception, failures: int) -> None:
        if not isinstance(error, RetriableError | UnavailableError):
            self._producer = None
        if not isinstance(error, PenstockError):
            logger.exception("writing audit events to topic %s failed", self._topic)
        elif failures == 1:
            logger.error("retrying to write audit events to topic %s: %s", self._topic, error)

    async def _write(self, client: OwnAppender, partition: int, bytes_max: int) -> None:
        if not self._sending:
            self._sending = self._next(bytes_max - HEADER_BYTES)
        if not self._sending:
            return
        producer = self._producer or await client.producer()
        self._producer = producer
        sequence = producer.sequence(self._topic, partition)
        batches = await asyncio.to_thread(encoded, self._sending, producer, sequence)
        await client.append(producer, self._topic, partition, batches)
        self._sending = []

    async def _place(
        self, node_id: int, cluster: ClusterMetadata, admin: TopicAdmin
    ) -> tuple[int, int]:
        """Return this broker's partition of the topic, and the largest batch in bytes."""
        topics = cluster.image.topics
        if self._topic not in topics:
            spec = TopicSpec(
                name=self._topic,
                partition_count=1,
                configs=(("cleanup.policy", "delete"),),
                internal=True,
            )
            [made] = await admin.create(admin.plan([spec]))
            if isinstance(made, PenstockError) and made.code != "topic_already_exists":
                raise made
            topics = cluster.image.topics
        topic = topics[self._topic]
        config = topic_config(admin.levels(), topic.configs)
        return node_id % len(topic.partitions), min(config.max_message_bytes, BATCH_BYTES_MAX)

    def _next(self, room: int) -> list[Line]:
        lines: list[Line] = []
        while self._waiting and len(lines) < BATCH_LINES_MAX:
            size = len(self._waiting[0].text) + len(self._waiting[0].principal) + _RECORD_BYTES
            if lines and size > room:
                break
            line = self._waiting.popleft()
            if size > room:
                self.dropped += 1
                logger.error("audit event of %d bytes is too large for topic %s", size, self._topic)
                continue
            lines.append(line)
            room -= size
        return lines


def encoded(lines: Sequence[Line], producer: ProducerIdentity, sequence: int) -> list[EncodedBatch]:
    """Encode lines as record batches; equal arguments return equal bytes."""
    import numpy as np

    from penstock.records.columnar.arrays import Column, Input
    from penstock.records.columnar.encode import encode_batches

    texts, times, principals = zip(*lines, strict=True)
    records = Input(
        key=Column.of([principal or None for principal in principals]),
        value=Column.of([text[:-1] for text in texts]),
        timestamps=np.array(times, np.int64),
    )
    return encode_batches(
        records,
        now_ms=times[-1],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
