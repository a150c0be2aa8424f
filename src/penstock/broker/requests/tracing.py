"""Traces of a broker: spans of produced batches, their commits, and the fetches that return them.

A batch is traced if its first record has a sampled trace context (`records/trace_headers.py`), or
if the broker begins a new trace for it (`otlp.sample.ratio`). The broker keeps the contexts of the
newest traced batches, so that it finds them when consumers fetch the batches: records are never
searched on the way out.

| span      | parent                      | from                   | to                        |
|-----------|-----------------------------|------------------------|---------------------------|
| `produce` | context of the first record | arrival of the request | the batch is acknowledged |
| `commit`  | `produce`                   | append                 | the batch is acknowledged |
| `fetch`   | `produce`                   | arrival of the request | response                  |
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.traces import TraceContext, Tracer
from penstock.records.header import HEADER_BYTES
from penstock.records.trace_headers import SEARCHED_BYTES, find_parent, first_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.base.ids import TopicPartition
    from penstock.base.system import Clock
    from penstock.broker.net.connection import RequestContext
    from penstock.partitions import Partition

KEPT_MAX: Final = 1_024
"""Traced batches whose contexts a broker keeps."""
FOUND_MAX: Final = 16
"""Traced batches of one partition for which one request gets spans."""
_LAST_OFFSET_DELTA: Final = slice(23, 27)


class TracedBatch(Struct, frozen=True):
    """Batch of a trace: its first and last offset, and the context of its `produce` span."""

    partition: TopicPartition
    first_offset: int
    last_offset: int
    context: TraceContext


class Producing:
    """Traced batch that waits for its acknowledgement."""

    __slots__ = ("_appended", "_context", "_delta", "_parent", "_partition", "_started", "_traces",
                 "_who")  # fmt: skip

    def __init__(
        self,
        traces: BrokerTraces,
        request: RequestContext,
        parent: TraceContext | None,
        partition: TopicPartition,
        delta: int,
    ) -> None:
        self._traces = traces
        self._parent = parent
        self._context = traces.tracer.context(parent)
        self._partition = partition
        self._delta = delta
        self._who = request.client_id or ""
        self._started = request.started
        self._appended = traces.monotonic()

    @property
    def exemplar(self) -> tuple[bytes, float]:
        return self._traces.exemplar(self._context)

    def acknowledged(self, base_offset: int, error: str) -> None:
        """Record the spans of the batch, and keep its context unless the append failed."""
        traces, tracer = self._traces, self._traces.tracer
        now = traces.monotonic()
        attributes = {
            **traces.attributes(self._partition),
            "messaging.client.id": self._who,
            "messaging.batch.message_count": self._delta + 1,
            "messaging.kafka.offset": base_offset,
        }
        tracer.record(
            "produce", self._context, self._parent, start=self._started, end=now, kind="server",
            attributes=attributes, error=error,
        )  # fmt: skip
        if error:
            return
        tracer.record(
            "commit", tracer.context(self._context), self._context, start=self._appended, end=now,
            attributes=traces.attributes(self._partition),
        )  # fmt: skip
        last = base_offset + self._delta
        traces.keep(TracedBatch(self._partition, base_offset, last, self._context))


class BrokerTraces:
    """Contexts of the newest traced batches. Belongs to the event loop."""

    def __init__(self, tracer: Tracer, *, node_id: int, clock: Clock) -> None:
        self.tracer = tracer
        self.monotonic = clock.monotonic
        self._node_id = node_id
        self._until_next = tracer.gap()
        """Batches without a context until a new trace begins."""
        self._order: deque[TracedBatch] = deque()
        self.kept: dict[TopicPartition, deque[TracedBatch]] = {}
        """Traced batches by partition, oldest first."""

    def attributes(self, partition: TopicPartition) -> dict[str, str | int]:
        return {
            "messaging.system": "kafka",
            "messaging.destination.name": partition.topic,
            "messaging.destination.partition.id": str(partition.partition),
            "penstock.broker": self._node_id,
        }

    def exemplar(self, context: TraceContext) -> tuple[bytes, float]:
        """Return a trace id and the current time in seconds since the epoch."""
        return context.trace_id, self.tracer.nanoseconds(self.monotonic()) / 1e9

    def producing(
        self, request: RequestContext, records: memoryview, partition: Partition
    ) -> Producing | None:
        """Return the trace of a batch that is about to be appended; None if it has none."""
        searched = len(records) > SEARCHED_BYTES or find_parent(records, HEADER_BYTES)
        parent = first_trace(records) if searched else None
        if parent is None:
            self._until_next -= 1
            if self._until_next > 0:
                return None
            self._until_next = self.tracer.gap()
        delta = int.from_bytes(records[_LAST_OFFSET_DELTA], "big", signed=True)
        return Producing(self, request, parent, partition.topic_partition, delta)

    def keep(self, batch: TracedBatch) -> None:
        if len(self._order) == KEPT_MAX:
            oldest = self._order.popleft()
            remaining = self.kept[oldest.partition]
            remaining.popleft()
            if not remaining:
                del self.kept[oldest.partition]
        self._order.append(batch)
        self.kept.setdefault(batch.partition, deque()).append(batch)

    def within(self, partition: TopicPartition, start: int, end: int) -> Iterator[TracedBatch]:
        """Yield up to `FOUND_MAX` kept batches with records at offsets [start, end)."""
        count = 0
        for batch in self.kept.get(partition, ()):
            if batch.last_offset >= start and batch.first_offset < end:
                yield batch
                count += 1
                if count == FOUND_MAX:
                    return

    def fetched(
        self, batch: TracedBatch, *, started: float, name: str = "fetch", client_id: str = ""
    ) -> None:
        """Record that a request, which arrived at `started`, returns a batch now."""
        tracer = self.tracer
        tracer.record(
            name, tracer.context(batch.context), batch.context, start=started,
            end=self.monotonic(), kind="server",
            attributes={**self.attributes(batch.partition), "messaging.client.id": client_id},
        )  # fmt: skip
