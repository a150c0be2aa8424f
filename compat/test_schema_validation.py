"""Topics that demand schema ids, with Confluent's serializers and without."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.serialization import MessageField, SerializationContext

from compat.registry import Link

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings at import are the foreign client's own
    from confluent_kafka.schema_registry import (
        SchemaRegistryClient,
        header_schema_id_serializer,
        prefix_schema_id_serializer,
    )
    from confluent_kafka.schema_registry.avro import AvroSerializer

SECONDS = 60
SCHEMA = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
WAYS = {"prefix": prefix_schema_id_serializer, "header": header_schema_id_serializer}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def topic(registry_link: Link) -> Iterator[str]:
    """A topic that demands schemas of its own subjects in keys and values."""
    name = "validated-orders"
    names = ("schema.validation.key", "schema.validation.value")
    config = dict.fromkeys(names, "true") | {"schema.validation.subject.strategy": "topic"}
    admin = AdminClient({"bootstrap.servers": registry_link.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(SECONDS)
    yield name
    admin.delete_topics([name])[name].result(SECONDS)


def serialized(link: Link, topic: str, way: str) -> tuple[list[bytes], list[tuple[str, bytes]]]:
    """A key and a value as Confluent's serializer writes them, with their headers."""
    headers: list[tuple[str, bytes]] = []
    parts = []
    with SchemaRegistryClient({"url": link.registry}) as registry:
        serializer = AvroSerializer(registry, SCHEMA, conf={"schema.id.serializer": WAYS[way]})
        for field in (MessageField.KEY, MessageField.VALUE):
            written = serializer({"id": 7}, SerializationContext(topic, field, headers))
            assert written is not None
            parts.append(written)
    return parts, headers


def send(link: Link, topic: str, messages: list[dict[str, Any]], codec: str) -> list[int]:
    """Produce messages; the number of each one's error, or 0."""
    found: list[int] = []

    def report(error: KafkaError | None, _: Message) -> None:
        found.append(0 if error is None else int(error.code()))

    producer = Producer({"bootstrap.servers": link.bootstrap, "compression.type": codec})
    for message in messages:
        producer.produce(topic, on_delivery=report, **message)
    assert producer.flush(SECONDS) == 0
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("way", WAYS)
def test_what_confluents_serializers_write_is_accepted(
    registry_link: Link, topic: str, way: str, codec: str
) -> None:
    (key, value), headers = serialized(registry_link, topic, way)
    assert bool(headers) == (way == "header")
    message = {"key": key, "value": value, "headers": headers}
    assert send(registry_link, topic, [message] * 100, codec) == [0] * 100
    tombstone = {"key": key, "value": None, "headers": headers}
    assert send(registry_link, topic, [tombstone], codec) == [0]


@pytest.mark.parametrize("codec", CODECS)
def test_other_records_are_refused(registry_link: Link, topic: str, codec: str) -> None:
    (key, value), _ = serialized(registry_link, topic, "prefix")
    _, headers = serialized(registry_link, topic, "header")
    plain, unknown = b'{"id": 7}', b"\0" + bytes.fromhex("7fffffff") + value[5:]
    refused = int(KafkaError.INVALID_RECORD)
    for wrong in (
        {"key": key, "value": plain},
        {"key": plain, "value": value},
        {"key": key, "value": unknown},
        {"key": key, "value": value, "headers": [(name, b"\3" + raw) for name, raw in headers]},
    ):
        assert send(registry_link, topic, [wrong] * 10, codec) == [refused] * 10
