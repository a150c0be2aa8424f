"""Parser of the OTLP metrics that clients push: gauges and sums.

The schema below contains only the fields that are used, because parsers of Protocol Buffers skip
unknown fields. Field numbers are those of `opentelemetry/proto/metrics/v1/metrics.proto`.

    MetricsData   1 resource metrics
    Resource…     2 scope metrics
    Scope…        2 metrics
    Metric        1 name, 5 gauge {1 points}, 7 sum {1 points, 2 temporality, 3 monotonic}
    Point         4 double, 6 sfixed64, 7 attributes
    KeyValue      1 key, 2 value {1 string, 2 bool, 3 int, 4 double}

Source: OpenTelemetry Protocol 1.x; KIP-714.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.base.errors import InvalidError
from penstock.broker.telemetry.series import TEXT_CHARACTERS_MAX, Point

POINTS_MAX: Final = 2_000
"""Largest number of data points that are read from one push."""


ATTRIBUTES_MAX: Final = 8
"""Largest number of attributes of a data point that become labels."""


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
