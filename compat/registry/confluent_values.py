"""confluent-kafka's serializers, with its own producer and consumer."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from compat.registry.port import READ_SECONDS, Link

Headers = list[tuple[str, bytes]]
Options = Mapping[str, Any]
OPTIONS: Final = {
    "auto": "auto.register.schemas",
    "latest": "use.latest.version",
    "latest_with": "use.latest.with.metadata",
    "use_id": "use.schema.id",
    "normalize": "normalize.schemas",
    "strategy": "subject.name.strategy.type",
}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ConfluentValues:
    """Serializers and deserializers of the three formats."""

    def __init__(self, link: Link, client: SchemaRegistryClient) -> None:
        self._bootstrap = link.bootstrap
        self._client = client
        self._pool = DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(link.descriptors).file:
            self._pool.Add(file)

    @property
    def operations(self) -> dict[str, Callable[..., Any]]:
        return {
            "serialize": self.serialize,
            "deserialize": self.deserialize,
            "write": self.write,
            "read": self.read,
        }

    def serialize(self, topic: str, kind: str, value: Any, options: Options) -> Any:
        (payload, headers), *_ = self._serialized(topic, kind, [value], options)
        return {"payload": _text(payload), "headers": [[key, _text(raw)] for key, raw in headers]}

    def _serialized(
        self, topic: str, kind: str, values: Sequence[Any], options: Options
    ) -> list[tuple[bytes, Headers]]:
        config = {OPTIONS[name]: value for name, value in options.items() if name in OPTIONS}
        header = options.get("header", False)
        config["schema.id.serializer"] = (
            header_schema_id_serializer if header else prefix_schema_id_serializer
        )
        schema = Schema.from_dict(options["schema"]) if "schema" in options else None
        serializer: Any
        if kind == "AVRO":
            serializer = AvroSerializer(self._client, schema, conf=config)
            values = [_native(value) for value in values]
        elif kind == "PROTOBUF":
            message = self._message(options["message"])
            serializer = ProtobufSerializer(message, self._client, conf=config)
            values = [json_format.ParseDict(value, message()) for value in values]
        else:
            serializer = JSONSerializer(schema, self._client, conf=config)
        made = []
        for value in values:
            context = SerializationContext(topic, MessageField.VALUE, [])
            made.append((serializer(value, context), context.headers))
        return made

    def _message(self, name: str) -> Any:
        return GetMessageClass(self._pool.FindMessageTypeByName(name))

    def deserialize(
        self,
        topic: str,
        kind: str,
        payload: str,
        headers: Any = (),
        message: str = "",
        latest: bool = False,
    ) -> Any:
        given = [(key, base64.b64decode(value)) for key, value in headers]
        return self._reader(kind, message, latest)(topic, base64.b64decode(payload), given)

    def _reader(
        self, kind: str, message: str, latest: bool = False
    ) -> Callable[[str, bytes, Headers], Any]:
        deserializer: Any
        finish: Callable[[Any], Any] = _plain
        if kind == "AVRO":
            config = {"use.latest.version": latest}
            deserializer = AvroDeserializer(self._client, conf=config)
        elif kind == "PROTOBUF":
            deserializer = ProtobufDeserializer(
                self._message(message), schema_registry_client=self._client
            )
            finish = json_format.MessageToDict
        else:
            deserializer = JSONDeserializer(None, schema_registry_client=self._client)
        return lambda topic, payload, headers: finish(
            deserializer(payload, SerializationContext(topic, MessageField.VALUE, headers))
        )

    def write(self, topic: str, kind: str, values: Sequence[Any], options: Options) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0})
        for payload, headers in self._serialized(topic, kind, values, options):
            producer.produce(topic, payload, headers=headers, partition=0)
        if producer.flush(READ_SECONDS):
            raise TimeoutError(f"{topic}: not all records were acknowledged")

    def read(self, topics: Sequence[str], kind: str, count: int, message: str = "") -> Any:
        reader = self._reader(kind, message)
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "registry-python", "log_level": 0}
        )
        consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
        found: dict[str, list[Any]] = {topic: [] for topic in topics}
        deadline = time.monotonic() + READ_SECONDS
        try:
            while any(len(values) < count for values in found.values()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"read only {found}")
                for message_read in consumer.consume(100, 0.2):
                    headers = [(key, value) for key, value in message_read.headers() or []]
                    topic = message_read.topic()
                    found[topic].append(reader(topic, message_read.value(), headers))
        finally:
            consumer.close()
        return found


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _native(value: Any) -> Any:
    """Return a value of Avro as the library takes it: with bytes and timestamps."""
    if not isinstance(value, dict) or "token" not in value:
        return value
    return {**value, "token": base64.b64decode(value["token"])}


def _plain(value: Any) -> Any:
    """Return a value of Avro in JSON: bytes in base64, timestamps in milliseconds."""
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, datetime):
        return round((value - EPOCH).total_seconds() * 1000)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
