"""The audit log as records of a topic: the value is the line, the key who it is of.

    offered ─▶ waiting ─▶ sending, one batch ─▶ appended ─▶ the next batch
       │ full: dropped       ▲   │ it may pass: the same batch again, by the same producer
       ▼                     └───┤ it may not: by a new producer
    counted                      ▼ at stop, after `STOP_SECONDS`: dropped

Lines are written behind what they tell of: a broker that is killed loses those that waited. Each is
there once, unless the topic refused a batch for good after it was appended. What the broker does
here is in no line but for its login, which its connection has one of: so lines make no lines.

The topic is made when the first line comes, and made again when it was deleted: one partition,
replicas as `default.replication.factor` says, internal, so that nobody but brokers writes to it. If
somebody else has made it, it is as they made it; a broker's lines are in one partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError, RetriableError, UnavailableError
from penstock.base.pause import pause
from penstock.base.retry import Backoff
from penstock.broker.configs import topic_config
from penstock.broker.own_appender import OwnAppender
from penstock.broker.topic_plan import TopicSpec
from penstock.records.header import HEADER_BYTES

if TYPE_CHECKING:
    from penstock.broker.identity import Identity
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.topic_admin import TopicAdmin
    from penstock.client.producers import ProducerIdentity
    from penstock.records.columnar.encode import EncodedBatch
    from penstock.security.audit import Line

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "penstock-audit"
BATCH_LINES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 1 << 20
APPEND_TIMEOUT_MS: Final = 30_000
"""How long one append is tried before a pause."""
STOP_SECONDS: Final = 5.0
"""How long a broker that stops goes on writing what waits."""
_RECORD_BYTES: Final = 64
"""Of a record, besides key and value, at most."""
_BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=30_000, steady=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTopicParts:
    """What the topic's writer uses of a broker."""

    node_id: int
    cluster: ClusterMetadata
    topic_admin: TopicAdmin
    identity: Identity


class AuditTopic:
    """A `LineSink` of one broker. Belongs to the event-loop thread."""

    name = "topic"

    def __init__(self, topic: str, *, lines_max: int) -> None:
        """Take lines for a topic from now on, `lines_max` at most until `start`."""
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

    def close(self) -> None:
        """Nothing is left to do: `stop` has written what it could."""

    def start(self, parts: AuditTopicParts) -> None:
        """Write what waits, and what comes."""
        self._task = asyncio.get_running_loop().create_task(self._run(parts))

    async def stop(self) -> None:
        """Write what waits, for a moment at most, and take nothing more. Idempotent."""
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
            logger.error("%d audit events did not get to topic %s", left, self._topic)

    async def _run(self, parts: AuditTopicParts) -> None:
        client = OwnAppender(parts.identity, CLIENT_ID, timeout_ms=APPEND_TIMEOUT_MS)
        failures = 0
        try:
            while self._sending or self._waiting or not self._stopping:
                if not (self._sending or self._waiting):
                    self._came.clear()
                    await self._came.wait()
                    continue
                try:
                    await self._write(parts, client)
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
            logger.error("audit events wait for topic %s: %s", self._topic, error)

    async def _write(self, parts: AuditTopicParts, client: OwnAppender) -> None:
        """Write one batch; raises PenstockError."""
        partition, bytes_max = await self._place(parts)
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

    async def _place(self, parts: AuditTopicParts) -> tuple[int, int]:
        """This broker's partition of the topic, and how large a batch may be."""
        admin, topics = parts.topic_admin, parts.cluster.image.topics
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
            topics = parts.cluster.image.topics
        topic = topics[self._topic]
        config = topic_config(admin.levels(), topic.configs)
        return parts.node_id % len(topic.partitions), min(config.max_message_bytes, BATCH_BYTES_MAX)

    def _next(self, room: int) -> list[Line]:
        """The lines of the next batch; one that never fits is dropped."""
        lines: list[Line] = []
        while self._waiting and len(lines) < BATCH_LINES_MAX:
            size = len(self._waiting[0].text) + len(self._waiting[0].principal) + _RECORD_BYTES
            if lines and size > room:
                break
            line = self._waiting.popleft()
            if size > room:
                self.dropped += 1
                logger.error("an audit event of %d bytes is too large for %s", size, self._topic)
                continue
            lines.append(line)
            room -= size
        return lines


def encoded(lines: Sequence[Line], producer: ProducerIdentity, sequence: int) -> list[EncodedBatch]:
    """Lines as records; the same lines are the same records."""
    import pyarrow as pa

    from penstock.records.columnar import encode_batches

    texts, times, principals = zip(*lines, strict=True)
    records = pa.table(
        {
            "key": pa.array([principal or None for principal in principals], pa.binary()),
            "value": pa.array([text[:-1] for text in texts], pa.binary()),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    return encode_batches(
        records,
        now_ms=times[-1],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
