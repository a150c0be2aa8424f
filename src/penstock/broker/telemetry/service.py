"""Service for client metrics, which the handlers call. Belongs to the event-loop thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.base.errors import PenstockError
from penstock.base.metrics import Metrics, Sample, counter, gauge
from penstock.broker.telemetry.series import ClientSeries, instance_text
from penstock.broker.telemetry.subscriptions import (
    CLIENT_ID,
    INSTANCE_ID,
    SOFTWARE,
    SOFTWARE_VERSION,
    SOURCE_ADDRESS,
    SOURCE_PORT,
    Instance,
    Instances,
    subscription_of,
)
from penstock.control.values.topics import CLIENT_METRICS, EntityConfigs

if TYPE_CHECKING:
    from penstock.base.system import Clock, Randomness
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.connection import RequestContext

INFLATED_BYTES_MAX: Final = 4 << 20
"""Largest size of one push after decompression."""


class TelemetryMetrics(Metrics, prefix="penstock_client_metrics_"):
    pushes = counter("pushes_total", "Accepted pushes of clients' metrics.")
    instances = gauge("instances", "Clients that recently requested their subscription, or pushed.")


class Telemetry:
    """Metrics that clients push to this broker."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        clock: Clock,
        randomness: Randomness,
        cluster: ClusterMetadata,
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._cluster = cluster
        self._configs: EntityConfigs = {}
        self._instances = Instances(settings.telemetry_max_bytes)
        self._series = ClientSeries()
        self._metrics = TelemetryMetrics()
        self.subscribed = False
        """Whether any subscription requests metrics."""

    def image_changed(self) -> None:
        """Apply the subscriptions of the newest image."""
        configs = self._cluster.image.entity_configs
        if configs is not self._configs:
            mine = _of_clients(configs)
            if mine != _of_clients(self._configs):
                subscriptions = [subscription_of(values) for values in mine.values()]
                self._instances.replace(subscriptions)
                self.subscribed = any(subscription.metrics for subscription in subscriptions)
            self._configs = configs

    def ask(self, context: RequestContext, instance_id: UUID | None) -> Instance:
        """Return a client's subscription; raises TooEarly. A client without an id gets a new id."""
        client = instance_id or self._randomness.uuid()
        return self._instances.ask(client, _attributes(context, client), self._now_ms())

    def push(
        self,
        context: RequestContext,
        instance_id: UUID,
        data: bytes,
        *,
        subscription_id: int,
        codec: int,
        ends: bool,
    ) -> None:
        """Store the metrics of a push; raises InvalidMetrics and the errors of `Instances.push`."""
        now_ms = self._now_ms()
        instance = self._instances.push(
            instance_id,
            _attributes(context, instance_id),
            now_ms,
            subscription_id=subscription_id,
            codec=codec,
            size_bytes=len(data),
            ends=ends,
        )
        # Protocol Buffers and codecs are loaded at the first push.
        from penstock.broker.telemetry.otlp import InvalidMetrics, points
        from penstock.records.compression import decompress

        if data:
            try:
                opened = bytes(decompress(codec, data, max_bytes=INFLATED_BYTES_MAX))
            except PenstockError as error:
                raise InvalidMetrics(f"the push cannot be decompressed: {error}") from error
            self._series.take(instance, points(opened), now_ms)
        self._metrics.pushes += 1

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def samples(self) -> Iterator[Sample]:
        self._metrics.instances = len(self._instances)
        yield from self._metrics.samples()
        yield from self._series.samples(self._now_ms())
        self._series.metrics.series = len(self._series)
        yield from self._series.metrics.samples()


def _of_clients(configs: EntityConfigs) -> dict[str, dict[str, str]]:
    return {
        name: dict(values) for (kind, name), values in configs.items() if kind == CLIENT_METRICS
    }


def _attributes(context: RequestContext, instance_id: UUID) -> dict[str, str]:
    connection = context.connection
    software, version = connection.software
    return {
        INSTANCE_ID: instance_text(instance_id),
        CLIENT_ID: context.client_id or "",
        SOFTWARE: software,
        SOFTWARE_VERSION: version,
        SOURCE_ADDRESS: connection.client_host,
        SOURCE_PORT: str(connection.client_port),
    }
