"""Newest values of clients' metrics for the admin endpoint.

`org.apache.kafka.producer.connection.creation.rate` becomes
`kafka_client_producer_connection_creation_rate`, with labels for the client's instance id, id and
software, and for the attributes of the data point. Monotonic series are counters, whose names end
in `_total`; deltas are summed up while the series exists.

The numbers of clients and series are limited. A client without a push for three of its intervals is
discarded with its series. This also applies after its terminating push.

Source: OpenTelemetry's rules for Prometheus; KIP-714.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from penstock.base.metrics import Metric, Metrics, Sample, counter, gauge
from penstock.broker.telemetry.subscriptions import CLIENT_ID, SOFTWARE, SOFTWARE_VERSION, Instance

CLIENTS_MAX: Final = 1_000
"""Largest number of clients whose metrics are exposed."""
SERIES_PER_CLIENT_MAX: Final = 200
"""Largest number of exposed series of one client. Further ones are counted and dropped."""
TEXT_CHARACTERS_MAX: Final = 200
"""Length in characters to which names and labels are truncated."""

_PREFIX: Final = "kafka_client_"
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_]+")
_LABELS: Final = ("client_instance_id", "client_id", "client_software", "client_software_version")
Key = tuple[str, bool, tuple[tuple[str, str], ...]]
"""Key of a series: the metric's name, whether it is monotonic, and its attributes."""


class Point(NamedTuple):
    """Value of a time series in one push.

    With `delta` it is the increase since the previous push. `monotonic` values never decrease.
    """

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    monotonic: bool
    delta: bool


class _Client:
    __slots__ = ("labels", "series", "until_ms")

    def __init__(self, instance: Instance) -> None:
        attributes = instance.attributes
        self.labels = (
            instance_text(instance.instance_id),
            *[
                attributes[name][:TEXT_CHARACTERS_MAX]
                for name in (CLIENT_ID, SOFTWARE, SOFTWARE_VERSION)
            ],
        )
        self.series: dict[Key, float] = {}
        self.until_ms = 0.0


class SeriesMetrics(Metrics, prefix="penstock_client_metrics_"):
    series = gauge("series", "Exposed series of clients' metrics.")
    dropped = counter(
        "dropped_total",
        "Data points of clients' metrics that were dropped because of limits.",
    )


class ClientSeries:
    """Newest values of each client's metrics, least recently used client first."""

    def __init__(self) -> None:
        self._clients: dict[UUID, _Client] = {}
        self.metrics = SeriesMetrics()

    def __len__(self) -> int:
        return sum(len(client.series) for client in self._clients.values())

    def take(self, instance: Instance, points: Iterable[Point], now_ms: float) -> None:
        """Store the points of a push."""
        self._forget(now_ms)
        client = self._clients.pop(instance.instance_id, None) or _Client(instance)
        client.until_ms = now_ms + instance.kept_ms
        for point in points:
            key = point.name, point.monotonic, point.attributes
            before = client.series.get(key)
            if before is None and len(client.series) >= SERIES_PER_CLIENT_MAX:
                self.metrics.dropped += 1
            else:
                client.series[key] = point.value + (before or 0.0 if point.delta else 0.0)
        if len(self._clients) >= CLIENTS_MAX:
            del self._clients[next(iter(self._clients))]
        self._clients[instance.instance_id] = client

    def _forget(self, now_ms: float) -> None:
        gone = [key for key, client in self._clients.items() if client.until_ms < now_ms]
        for key in gone:
            del self._clients[key]

    def samples(self, now_ms: float) -> Iterator[Sample]:
        """Yield the series of all clients that pushed recently."""
        self._forget(now_ms)
        for client in self._clients.values():
            for (name, monotonic, attributes), value in client.series.items():
                keys = tuple([key for key, _ in attributes])
                values = tuple([text for _, text in attributes])
                yield Sample(_metric(name, monotonic, keys), value, (*client.labels, *values))


@lru_cache(maxsize=4096)
def _metric(name: str, monotonic: bool, attributes: tuple[str, ...]) -> Metric:
    """Return the exposed metric; label names that are already used get a prefix."""
    stem = _FOREIGN.sub("_", name.removeprefix("org.apache.kafka.")).strip("_")
    labels = list(_LABELS)
    for attribute in attributes:
        label = _FOREIGN.sub("_", attribute)
        while label in labels or not label or not label[0].isalpha():
            label = f"attribute_{label}"
        labels.append(label)
    if monotonic and not stem.endswith("_total"):
        stem += "_total"
    return Metric(
        name=_PREFIX + stem,
        kind="counter" if monotonic else "gauge",
        doc=f"Metric {name} that clients push.",
        labels=tuple(labels),
    )


def instance_text(instance_id: UUID) -> str:
    """Format a client's instance id as Kafka's tools do."""
    return urlsafe_b64encode(instance_id.bytes).rstrip(b"=").decode()
