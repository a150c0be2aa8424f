"""Traces of a host agent: a span `publish` for each traced frame, from its arrival to its verdict.

A frame is traced if its producer sent a sampled trace context, or if the agent begins a new trace
for it (`otlp.sample.ratio`). The frame's first record gets the context of the span as headers, so
that brokers continue the trace. Frames of record batches are passed on unchanged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.host.port import ChunkFormat, Failed

if TYPE_CHECKING:
    from penstock.base.otlp import OtlpExport
    from penstock.base.system import Clock
    from penstock.base.traces import TraceContext
    from penstock.host.port import Chunks, Completion, FinalVerdict


class AgentTraces:
    """Spans of an agent's frames, and the export that sends them."""

    def __init__(self, export: OtlpExport, clock: Clock) -> None:
        self.export = export
        self._tracer = export.tracer
        self._monotonic = clock.monotonic

    def publishing(self, chunks: Chunks, complete: Completion) -> Completion:
        """Return the completion of a frame, which also records its span if it is traced."""
        parent = chunks.trace
        if parent is None and not self._tracer.begins():
            return complete
        context = self._tracer.context(parent)
        if chunks.format == ChunkFormat.OPAQUE:
            chunks.trace = context
        return partial(self._completed, chunks, context, parent, self._monotonic(), complete)

    def _completed(
        self,
        chunks: Chunks,
        context: TraceContext,
        parent: TraceContext | None,
        started: float,
        complete: Completion,
        verdict: FinalVerdict,
    ) -> None:
        self._tracer.record(
            "publish", context, parent, start=started, end=self._monotonic(), kind="producer",
            attributes={
                "messaging.system": "kafka",
                "messaging.destination.name": chunks.topic,
                "messaging.batch.message_count": chunks.count,
            },
            error=verdict.reason if isinstance(verdict, Failed) else "",
        )  # fmt: skip
        complete(verdict)
