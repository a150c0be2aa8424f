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

from penstock.base.metrics import Exemplar
from penstock.base.traces import TraceContext, Tracer
from penstock.records.appends import AppendResult
from penstock.records.header import HEADER_BYTES
from penstock.records.trace_headers import SEARCHED_BYTES, find_parent, first_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.base.ids import TopicPartition
    from penstock.base.system import Clock
    from penstock.broker.net.connection import RequestContext
    from penstock.broker.requests.metrics import RequestMetrics
    from penstock.partitions import Partition
    from penstock.records.appends import Done, Outcome

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


class Producing(Struct, frozen=True, kw_only=True):
    """Callback of a traced batch's append: calls `done`, then records the spans of the batch."""

    done: Done
    traces: BrokerTraces
    request: RequestContext
    metrics: RequestMetrics
    partition: TopicPartition
    last_offset_delta: int
    parent: TraceContext | None
    context: TraceContext
    appended: float

    def __call__(self, outcome: Outcome) -> None:
        traces, request, context = self.traces, self.request, self.context
        now = traces.monotonic()
        self.done(outcome)
        base_offset, error = -1, ""
        if not isinstance(outcome, AppendResult):
            error = str(outcome) or outcome.code
        elif outcome.error is not None:
            error = outcome.message or outcome.error
        else:
            base_offset = outcome.base_offset
        tracer, attributes = traces.tracer, traces.attributes(self.partition)
        tracer.record(
            "produce", context, self.parent, start=request.started, end=now, kind="server",
            attributes={
                **attributes,
                "messaging.client.id": request.client_id or "",
                "messaging.batch.message_count": self.last_offset_delta + 1,
                "messaging.kafka.offset": base_offset,
            },
            error=error,
        )  # fmt: skip
        self.metrics.traced(request, traces.exemplar(context, request.started, now))
        if error:
            return
        tracer.record(
            "commit", tracer.context(context), context, start=self.appended, end=now,
            attributes=attributes,
        )  # fmt: skip
        last = base_offset + self.last_offset_delta
        traces.keep(TracedBatch(self.partition, base_offset, last, context))


class BrokerTraces:
    """Contexts of the newest traced batches. Belongs to the event loop."""

    def __init__(self, tracer: Tracer, *, node_id: int, clock: Clock) -> None:
        self.tracer = tracer
        self.monotonic = clock.monotonic
        self._node_id = node_id
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

    def exemplar(self, context: TraceContext, started: float, now: float) -> Exemplar:
        """Return the exemplar of a request that arrived at `started` and is answered now."""
        return Exemplar(now - started, context.trace_id, self.tracer.nanoseconds(now) / 1e9)

    def producing(
        self,
        done: Done,
        request: RequestContext,
        metrics: RequestMetrics,
        records: memoryview,
        partition: Partition,
    ) -> Done:
        """Return the callback for the append of a batch: `done`, or `Producing` if it is traced."""
        searched = len(records) > SEARCHED_BYTES or find_parent(records, HEADER_BYTES)
        parent = first_trace(records) if searched else None
        if parent is None and not self.tracer.begins():
            return done
        return Producing(
            done=done,
            traces=self,
            request=request,
            metrics=metrics,
            partition=partition.topic_partition,
            last_offset_delta=int.from_bytes(records[_LAST_OFFSET_DELTA], "big", signed=True),
            parent=parent,
            context=self.tracer.context(parent),
            appended=self.monotonic(),
        )

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

    def fetched(self, batches: Iterable[TracedBatch], *, started: float, client_id: str) -> None:
        """Record that a request, which arrived at `started`, returns these batches now."""
        tracer, now = self.tracer, self.monotonic()
        for batch in batches:
            tracer.record(
                "fetch", tracer.context(batch.context), batch.context, start=started, end=now,
                kind="server",
                attributes={**self.attributes(batch.partition), "messaging.client.id": client_id},
            )  # fmt: skip
