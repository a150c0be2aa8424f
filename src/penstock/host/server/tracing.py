"""Traces of a host agent: a span `publish` for each traced frame, from its arrival to its verdict.

A frame is traced if its producer sent a sampled trace context, or if the agent begins a new trace
for it (`otlp.sample.ratio`). The frame's first record gets the context of the span as headers, so
that brokers continue the trace. Frames of record batches are passed on unchanged.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.base.otlp import Exporter
from penstock.base.traces import TraceContext, Tracer
from penstock.host.port import ChunkFormat, Failed

if TYPE_CHECKING:
    from penstock.base.metrics import Registry
    from penstock.base.otlp_settings import OtlpSettings
    from penstock.base.system import Clock, Randomness
    from penstock.host.port import Chunks, Completion, FinalVerdict

STOP_SECONDS: Final = 5.0
"""Time for which a stopping agent waits for the last export."""


class AgentTraces:
    """Tracer of an agent, and the export of its spans and metrics."""

    def __init__(
        self,
        settings: OtlpSettings,
        *,
        identity: str,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
    ) -> None:
        resource = {"service.name": "penstock-host-agent", "service.instance.id": identity}
        self._exporter = Exporter(settings, resource)
        self._registry = registry
        self._seconds = settings.interval_ms / 1000
        self._monotonic = clock.monotonic
        self._tracer = Tracer(
            self._exporter.record, clock=clock, randomness=randomness, ratio=settings.sample_ratio
        )
        self._timer: asyncio.TimerHandle | None = None
        registry.add(self._exporter.samples)

    def start(self) -> None:
        self._exporter.start()
        self._schedule()

    async def stop(self) -> None:
        """Export what waits, within `STOP_SECONDS`."""
        if self._timer is not None:
            self._timer.cancel()
        self._exporter.offer(self._registry.collect())
        await asyncio.to_thread(self._exporter.stop, STOP_SECONDS)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._collect)

    def _collect(self) -> None:
        self._schedule()
        self._exporter.offer(self._registry.collect())

    def publishing(self, chunks: Chunks, complete: Completion) -> Completion:
        """Return the completion of a frame, which also records its span if it is traced."""
        parent = chunks.trace
        if parent is None and not self._tracer.begins():
            return complete
        context = self._tracer.context(parent)
        if chunks.format == ChunkFormat.OPAQUE:
            chunks.trace = context
        return partial(self.completed, chunks, context, parent, self._monotonic(), complete)

    def completed(
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
