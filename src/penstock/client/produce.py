"""Core of produce: decides when to send each batch, and how to handle a response, without I/O.

Batches of a partition are sent in order, at most `in_flight_max` of them unanswered. With an
idempotent producer each batch has a sequence number. The broker recognises a batch that was sent
before, and rejects a batch whose predecessor is missing. Therefore failures are handled by these
rules:

- A failed batch returns to the front of its partition's queue. So does every later batch that the
  broker rejected as out of order because of it. The order of the queue does not change.
- After a failure a partition sends nothing until all its batches in flight are answered.
- If the oldest batch of a partition is rejected as out of order, the write fails, because a retry
  cannot succeed.
- The second batch of a partition waits until the first is acknowledged. A broker without state for
  a producer accepts any first sequence, so it would accept the second batch as the first.
- *Duplicate sequence* counts as an acknowledgement with an unknown offset.

One request holds at most one batch per partition, as Kafka requires since message format 2.

Source: KIP-98 (idempotence), KIP-185; Kafka's `Sender` and `TransactionManager`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from penstock.base.errors import PenstockError
from penstock.base.retry import RetryPolicy
from penstock.client import errors
from penstock.client.errors import (
    TimedOut,
    broker_error,
    code_name,
    is_retriable,
)
from penstock.client.protocol import Call
from penstock.wire.kafka.apis import APIS, PRODUCE
from penstock.wire.kafka.framing import uvarint

PRODUCE_VERSION: Final = 9
TRANSACTION_VERSION: Final = 12
"""First version in which a produce request adds its partitions to the open transaction."""
DUPLICATE_SEQUENCE: Final = 46
OUT_OF_ORDER_SEQUENCE: Final = 45
MESSAGE_TOO_LARGE: Final = 10


class Batch(Struct, eq=False):
    """Encoded batch to be sent; `order` is its position in its partition.

    The bytes are `data` followed by `tail`. `tail` lets a batch get a new header without a copy of
    its records.
    """

    partition: int
    data: bytes | memoryview
    record_count: int
    order: int = -1
    failures: int = 0
    first_sent_ms: float = -1.0
    tail: memoryview | None = None
    acknowledged: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.data) if self.tail is None else len(self.data) + len(self.tail)


class Acknowledged(Struct, frozen=True):
    """Result for one batch of a produce response."""

    partition: int
    error_code: int
    base_offset: int
    message: str | None


class ProduceRequest(Struct, eq=False):
    node_id: int
    batches: tuple[Batch, ...]

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)


class PartitionReport(Struct):
    """Acknowledged offsets of a write in one partition; an offset is -1 if unknown."""

    first_offset: int = -1
    last_offset: int = -1
    records: int = 0


class _PartitionQueue(Struct):
    """Queued and unanswered batches of a partition, in order."""

    waiting: deque[Batch] = field(default_factory=deque)
    under_way: list[Batch] = field(default_factory=list)
    repairing: bool = False
    acknowledged: bool = False
    added: int = 0


class ProduceCore:
    """State machine from batches to requests; `error` is set when the write has failed."""

    def __init__(
        self,
        topic: str,
        *,
        retry: RetryPolicy,
        idempotent: bool,
        in_flight_max: int = errors.IN_FLIGHT_MAX,
        request_bytes: int = errors.PRODUCE_REQUEST_BYTES,
    ) -> None:
        self.topic = topic
        self.error: PenstockError | None = None
        self.failed: Batch | None = None
        """Batch that caused `error`."""
        self.reports: dict[int, PartitionReport] = {}
        self.buffered_bytes = 0
        self.records = 0
        self.bytes = 0
        self.retries = 0
        self.metadata_stale = False
        self.trouble = ""
        """Reason why a batch is retried or cannot be sent; empty after an acknowledgement."""
        self.not_before_ms = 0.0
        self._retry = retry
        self._idempotent = idempotent
        self._in_flight_max = in_flight_max
        self._request_bytes = request_bytes
        self._queues: dict[int, _PartitionQueue] = {}
        self._requests_under_way: dict[int, int] = {}
        self._turn = 0

    @property
    def done(self) -> bool:
        return self.buffered_bytes == 0

    @property
    def waiting(self) -> bool:
        """Whether a batch is queued, for its first attempt or a retry."""
        return any(queue.waiting for queue in self._queues.values())

    def add(self, batches: Iterable[Batch]) -> None:
        """Queue batches; the batches of a partition must be in the order of their sequences."""
        for batch in batches:
            queue = self._queues.setdefault(batch.partition, _PartitionQueue())
            batch.order = queue.added
            queue.added += 1
            queue.waiting.append(batch)
            self.buffered_bytes += batch.size_bytes

    def next_request(self, leaders: Mapping[int, int], now_ms: float) -> ProduceRequest | None:
        """Return the next request to send, or None; `leaders` maps partitions to brokers.

        After sending it, the caller calls `answered`, `acknowledged_unseen` or `disconnected`.
        """
        if self.error is not None or now_ms < self.not_before_ms:
            return None
        chosen: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        for partition, queue in self._in_turn():
            node_id = leaders.get(partition)
            if node_id is None:
                self._without_leader(queue.waiting[0], now_ms)
            elif self._may_send(queue, node_id):
                size = sizes.get(node_id, 0)
                if size and size + queue.waiting[0].size_bytes > self._request_bytes:
                    continue
                chosen.setdefault(node_id, []).append(queue.waiting[0])
                sizes[node_id] = size + queue.waiting[0].size_bytes
        if not chosen:
            return None
        largest = max(sizes, key=lambda node: sizes[node])
        return self._dispatch(largest, chosen[largest], now_ms)

    def _without_leader(self, batch: Batch, now_ms: float) -> None:
        self.metadata_stale = True
        self.trouble = f"{self.topic}-{batch.partition} has no leader"
        if batch.first_sent_ms < 0:
            batch.first_sent_ms = now_ms
        elapsed_ms = now_ms - batch.first_sent_ms
        if elapsed_ms >= self._retry.timeout_ms:
            reason = (
                f"produce to {self.topic}-{batch.partition}: the partition has had no leader for"
                f" {elapsed_ms:.0f} ms (limit {self._retry.timeout_ms} ms)"
            )
            self._fail(batch, TimedOut(reason))

    def _in_turn(self) -> list[tuple[int, _PartitionQueue]]:
        queues = [item for item in self._queues.items() if item[1].waiting]
        self._turn += 1
        start = self._turn % len(queues) if queues else 0
        return queues[start:] + queues[:start]

    def _may_send(self, queue: _PartitionQueue, node_id: int) -> bool:
        if queue.repairing and queue.under_way:
            return False
        if self._idempotent and queue.under_way and not queue.acknowledged:
            return False
        # The broker may have to recognise a failed batch after later ones were written, and it
        # stores five: never send a batch that is five or more after the oldest open one.
        oldest = queue.under_way[0].order if queue.under_way else queue.waiting[0].order
        return (
            queue.waiting[0].order < oldest + self._in_flight_max
            and self._requests_under_way.get(node_id, 0) < self._in_flight_max
        )

    def _dispatch(self, node_id: int, batches: Sequence[Batch], now_ms: float) -> ProduceRequest:
        for batch in batches:
            queue = self._queues[batch.partition]
            queue.waiting.popleft()
            queue.under_way.append(batch)
            queue.repairing = False
            if batch.first_sent_ms < 0:
                batch.first_sent_ms = now_ms
        self._requests_under_way[node_id] = self._requests_under_way.get(node_id, 0) + 1
        return ProduceRequest(node_id, tuple(batches))

    def answered(
        self,
        request: ProduceRequest,
        results: Mapping[int, Acknowledged],
        *,
        now_ms: float,
        chance: float,
    ) -> None:
        """Process the response to a request; `chance` is a number in [0, 1) for jitter."""
        self._requests_under_way[request.node_id] -= 1
        for batch in request.batches:
            result = results.get(batch.partition)
            if result is None:
                self._fail_later(
                    batch, "the response has no result for the partition", now_ms, chance
                )
            elif result.error_code == 0 or result.error_code == DUPLICATE_SEQUENCE:
                self._acknowledge(batch, result.base_offset)
            else:
                self._refused(batch, result, now_ms, chance)

    def acknowledged_unseen(self, request: ProduceRequest) -> None:
        """Record that a request that gets no response (acks=0) was written to the socket."""
        self._requests_under_way[request.node_id] -= 1
        for batch in request.batches:
            self._acknowledge(batch, -1)

    def disconnected(
        self,
        requests: Sequence[ProduceRequest],
        error: PenstockError,
        *,
        now_ms: float,
        chance: float,
    ) -> None:
        """Record that the connection of these requests was lost; they are ordered oldest first."""
        for request in requests:
            self._requests_under_way[request.node_id] -= 1
        for request in reversed(requests):
            for batch in request.batches:
                self._fail_later(batch, str(error), now_ms, chance)

    def _acknowledge(self, batch: Batch, base_offset: int) -> None:
        queue = self._queues[batch.partition]
        queue.under_way.remove(batch)
        queue.acknowledged = batch.acknowledged = True
        self.trouble = ""
        self.buffered_bytes -= batch.size_bytes
        self.bytes += batch.size_bytes
        self.records += batch.record_count
        report = self.reports.setdefault(batch.partition, PartitionReport())
        report.records += batch.record_count
        if base_offset >= 0:
            if report.first_offset < 0:
                report.first_offset = base_offset
            report.last_offset = base_offset + batch.record_count - 1

    def _refused(self, batch: Batch, result: Acknowledged, now_ms: float, chance: float) -> None:
        queue = self._queues[batch.partition]
        oldest = queue.under_way[0] is batch and not (
            queue.waiting and queue.waiting[0].order < batch.order
        )
        repairable = self._idempotent and result.error_code == OUT_OF_ORDER_SEQUENCE and not oldest
        if repairable or is_retriable(result.error_code):
            self.metadata_stale = True
            reason = f"{code_name(result.error_code).upper()} ({result.error_code})"
            if result.message:
                reason += f": {result.message}"
            self._fail_later(batch, reason, now_ms, chance)
            return
        subject = (
            f"produce of {batch.record_count} records ({batch.size_bytes} bytes) to"
            f" {self.topic}-{batch.partition}"
        )
        message = result.message
        if result.error_code == MESSAGE_TOO_LARGE and not message:
            message = "the batch exceeds the topic's max.message.bytes"
        self._fail(batch, broker_error(result.error_code, subject, message))

    def _fail(self, batch: Batch, error: PenstockError) -> None:
        if self.error is None:
            self.error, self.failed = error, batch

    def _fail_later(self, batch: Batch, reason: str, now_ms: float, chance: float) -> None:
        """Return a batch to the front of its queue, or fail the write at its retry limits."""
        queue = self._queues[batch.partition]
        queue.under_way.remove(batch)
        place = 0
        while place < len(queue.waiting) and queue.waiting[place].order < batch.order:
            place += 1
        queue.waiting.insert(place, batch)
        queue.repairing = True
        batch.failures += 1
        self.retries += 1
        self.trouble = f"{self.topic}-{batch.partition}: {reason}"
        elapsed_ms = now_ms - batch.first_sent_ms
        pause = self._retry.pause_seconds(batch.failures, elapsed_ms=elapsed_ms, chance=chance)
        if pause is None:
            text = (
                f"produce to {self.topic}-{batch.partition} failed after {batch.failures}"
                f" attempts in {elapsed_ms:.0f} ms (limits {self._retry.attempts_max} and"
                f" {self._retry.timeout_ms} ms); the last failure: {reason}"
            )
            self._fail(batch, TimedOut(text))
            return
        self.not_before_ms = max(self.not_before_ms, now_ms + pause * 1000)


_HEAD: Final = struct.Struct(">hhih")
_ACKS: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_BASE_OFFSET: Final = bytes(8)
"""Base offset 0 of every produced batch; the batch's checksum does not cover it."""


def produce_call(
    request: ProduceRequest,
    *,
    topic: str,
    acks: int,
    timeout_ms: int,
    correlation_id: int,
    client_id: bytes,
    transactional_id: str | None = None,
) -> Call:
    """Encode a Produce request as pieces: heads, and the batches without a copy.

    It has version 9, or version 12 in a transaction. Both have this layout:

        length i32 | header v2 | transactional id | acks i16 | timeout i32
        | topics: 1 | name | partitions: n | { index i32 | records (compact bytes) | tags } | tags
    """
    name = topic.encode()
    version, transaction = PRODUCE_VERSION, b"\0"
    if transactional_id is not None:
        encoded = transactional_id.encode()
        version, transaction = TRANSACTION_VERSION, uvarint(len(encoded) + 1) + encoded
    head = b"".join(
        (
            _HEAD.pack(PRODUCE, version, correlation_id, len(client_id)),
            client_id,
            b"\0",  # tags of the header
            transaction,
            _ACKS.pack(acks, timeout_ms),
            uvarint(2),
            uvarint(len(name) + 1),
            name,
            uvarint(len(request.batches) + 1),
        )
    )
    pieces: list[bytes | memoryview] = [head]
    tags = b""
    for batch in request.batches:
        head_of_batch = _INDEX.pack(batch.partition) + uvarint(batch.size_bytes + 1)
        pieces.append(tags + head_of_batch + _BASE_OFFSET)
        pieces.append(memoryview(batch.data)[len(_BASE_OFFSET) :])
        if batch.tail is not None:
            pieces.append(batch.tail)
        tags = b"\0"
    pieces.append(b"\0\0\0")  # tags of the last partition, the topic, the request
    pieces[0] = _INDEX.pack(sum(map(len, pieces))) + head
    return Call(
        api=APIS[PRODUCE],
        version=version,
        correlation_id=correlation_id,
        pieces=tuple(pieces),
    )


def read_acknowledgements(response: Any) -> dict[int, Acknowledged]:
    """Return the results by partition of a Produce response for one topic."""
    results: dict[int, Acknowledged] = {}
    for topic in response.responses:
        for item in topic.partition_responses:
            message = item.error_message
            if not message and item.record_errors:
                message = item.record_errors[0].batch_index_error_message
            results[int(item.index)] = Acknowledged(
                int(item.index), int(item.error_code), int(item.base_offset), message
            )
    return results
