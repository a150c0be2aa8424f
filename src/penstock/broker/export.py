"""Export of a broker's metrics and spans by OTLP (`otlp.endpoint`).

Metrics are collected on the event loop, as for a scrape, and sent by the exporter's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.base.otlp import Exporter
from penstock.base.traces import Tracer
from penstock.broker.requests.tracing import BrokerTraces

if TYPE_CHECKING:
    from penstock.base.metrics import Registry, Sample
    from penstock.base.otlp_settings import OtlpSettings
    from penstock.base.system import Clock, Randomness

STOP_SECONDS: Final = 5.0
"""Time for which a stopping broker waits for the last export."""


class OtlpExport:
    """Exporter of one broker, and the source of its traces."""

    def __init__(
        self,
        settings: OtlpSettings,
        *,
        node_id: int,
        clock: Clock,
        randomness: Randomness,
        registry: Registry,
    ) -> None:
        identity = {"service.name": "penstock-broker", "service.instance.id": str(node_id)}
        self._exporter = Exporter(settings, identity)
        self._registry = registry
        self._seconds = settings.interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._collecting: asyncio.Task[None] | None = None
        tracer = Tracer(
            self._exporter.record, clock=clock, randomness=randomness, ratio=settings.sample_ratio
        )
        self.traces = BrokerTraces(tracer, node_id=node_id, clock=clock)
        registry.add(self._exporter.samples)

    def start(self, groups: Callable[[], Awaitable[Iterable[Sample]]]) -> None:
        """Begin to export; `groups` returns the samples of groups, which need the database."""
        self._groups = groups
        self._exporter.start()
        self._schedule()

    async def stop(self) -> None:
        """Export what waits, within `STOP_SECONDS`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait([self._collecting])
        self._exporter.offer(self._registry.collect())
        await asyncio.to_thread(self._exporter.stop, STOP_SECONDS)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._tick)

    def _tick(self) -> None:
        self._schedule()
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        self._exporter.offer([*self._registry.collect(), *await self._groups()])
