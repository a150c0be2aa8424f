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
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.base.errors import InvalidError
from penstock.base.metrics import Metric, Metrics, Sample, counter, gauge
from penstock.broker.telemetry.subscriptions import CLIENT_ID, SOFTWARE, SOFTWARE_VERSION, Instance

# Parser of the OTLP metrics that clients push: gauges and sums.
#
# The schema below contains only the fields that are used, because parsers of Protocol Buffers skip
# unknown fields. Field numbers are those of `opentelemetry/proto/metrics/v1/metrics.proto`.
#
#     MetricsData   1 resource metrics
#     Resource…     2 scope metrics
#     Scope…        2 metrics
#     Metric        1 name, 5 gauge {1 points}, 7 sum {1 points, 2 temporality, 3 monotonic}
#     Point         4 double, 6 sfixed64, 7 attributes
#     KeyValue      1 key, 2 value {1 string, 2 bool, 3 int, 4 double}
#
# Source: OpenTelemetry Protocol 1.x; KIP-714.


POINTS_MAX: Final = 2_000
"""Largest number of data points that are read from one push."""
ATTRIBUTES_MAX: Final = 8
"""Largest number of attributes of a data point that become labels."""
TEXT_CHARACTERS_MAX: Final = 200
"""Length in characters to which names and labels are truncated."""

_DELTA: Final = 1
_Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES: Final[dict[str, tuple[tuple[str, int, int, str], ...]]] = {
    "Value": (
        ("string_value", 1, _Field.TYPE_STRING, ""),
        ("bool_value", 2, _Field.TYPE_BOOL, ""),
        ("int_value", 3, _Field.TYPE_INT64, ""),
        ("double_value", 4, _Field.TYPE_DOUBLE, ""),
    ),
    "KeyValue": (("key", 1, _Field.TYPE_STRING, ""), ("value", 2, _Field.TYPE_MESSAGE, "Value")),
    "Point": (
        ("as_double", 4, _Field.TYPE_DOUBLE, ""),
        ("as_int", 6, _Field.TYPE_SFIXED64, ""),
        ("attributes", 7, _Field.TYPE_MESSAGE, "KeyValue*"),
    ),
    "Gauge": (("points", 1, _Field.TYPE_MESSAGE, "Point*"),),
    "Sum": (
        ("points", 1, _Field.TYPE_MESSAGE, "Point*"),
        ("temporality", 2, _Field.TYPE_INT32, ""),
        ("monotonic", 3, _Field.TYPE_BOOL, ""),
    ),
    "Metric": (
        ("name", 1, _Field.TYPE_STRING, ""),
        ("gauge", 5, _Field.TYPE_MESSAGE, "Gauge"),
        ("sum", 7, _Field.TYPE_MESSAGE, "Sum"),
    ),
    "Scope": (("metrics", 2, _Field.TYPE_MESSAGE, "Metric*"),),
    "Resource": (("scopes", 2, _Field.TYPE_MESSAGE, "Scope*"),),
    "Metrics": (("resources", 1, _Field.TYPE_MESSAGE, "Resource*"),),
}


class InvalidMetrics(InvalidError):
    code = "invalid_record"


class Point(NamedTuple):
    """Value of a time series in one push.

    With `delta` it is the increase since the previous push. `monotonic` values never decrease.
    """

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    monotonic: bool
    delta: bool


@cache
def metrics_type() -> Any:
    """Return the Protocol Buffers class of the message `MetricsData`."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(
        name="client_metrics.proto", package="clients", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, of in fields:
            field = message.field.add(name=field_name, number=number, type=kind)
            field.label = _Field.LABEL_REPEATED if of.endswith("*") else _Field.LABEL_OPTIONAL
            if of:
                field.type_name = f".clients.{of.rstrip('*')}"
            elif name in ("Value", "Point"):
                # Numbers of zero must be distinguishable from absent ones.
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("clients.Metrics"))


def points(data: bytes) -> Iterator[Point]:
    """Yield the gauges and sums of a push, up to `POINTS_MAX`; raises InvalidMetrics."""
    message = metrics_type()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise InvalidMetrics(f"{len(data)} bytes are not OTLP metrics: {error}") from error
    left = POINTS_MAX
    for metric in _metrics(message):
        summed = metric.HasField("sum")
        body = metric.sum if summed else metric.gauge
        delta = summed and body.temporality == _DELTA
        for point in body.points:
            value = _value(point)
            if value is None:
                continue
            if not left:
                return
            left -= 1
            monotonic = summed and body.monotonic
            yield Point(_cut(metric.name), _attributes(point), value, monotonic, delta)


def _metrics(message: Any) -> Iterator[Any]:
    for resource in message.resources:
        for scope in resource.scopes:
            yield from scope.metrics


def _value(point: Any) -> float | None:
    if point.HasField("as_double"):
        return float(point.as_double)
    return float(point.as_int) if point.HasField("as_int") else None


def _attributes(point: Any) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for attribute in point.attributes[:ATTRIBUTES_MAX]:
        value = attribute.value
        for kind in ("string_value", "bool_value", "int_value", "double_value"):
            if value.HasField(kind):
                found[_cut(attribute.key)] = _cut(str(getattr(value, kind)))
    return tuple(sorted(found.items()))


def _cut(text: str) -> str:
    return text[:TEXT_CHARACTERS_MAX]


CLIENTS_MAX: Final = 1_000
"""Largest number of clients whose metrics are exposed."""
SERIES_PER_CLIENT_MAX: Final = 200
"""Largest number of exposed series of one client. Further ones are counted and dropped."""

_PREFIX: Final = "kafka_client_"
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_]+")
_LABELS: Final = ("client_instance_id", "client_id", "client_software", "client_software_version")
Key = tuple[str, bool, tuple[tuple[str, str], ...]]
"""Key of a series: the metric's name, whether it is monotonic, and its attributes."""


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
