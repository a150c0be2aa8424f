"""Pipelines that read values by a schema registry, written by its own clients' serialisers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from penstock.formats.json.debezium import MARKER
from penstock.formats.value_format import InvalidFormat
from penstock.lake.commits import LakeTable
from penstock.spark.formats.registry import pinned_schema
from penstock.spark.pipeline.analysis import problems
from penstock.spark.pipeline.journal import Definitions, Journal
from penstock.spark.pipeline.readers import NothingToPin
from penstock.spark.pipeline.runner import QueryFailed
from penstock.spark.pipeline.state import PipelinePaths
from penstock.testing import Broker
from tests.lake.oracle import stored
from tests.ports import free_port
from tests.spark.pipeline.conftest import Pipeline
from tests.spark.pipeline.test_change_events import shown
from tests.spark.pipeline.test_faults import fail_for
from tests.spark.pipeline.test_iceberg import target_of
from tests.spark.tables.histories import COLUMNS, Database, Event

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FIRST = {
    "type": "record", "name": "Order",
    "fields": [{"name": "city", "type": "string"}, {"name": "street", "type": "string"}],
}  # fmt: skip
SWAPPED = FIRST | {"fields": FIRST["fields"][::-1]}
GROWN = FIRST | {
    "fields": [{"name": "zip", "type": ["null", "int"], "default": None}, *SWAPPED["fields"]]
}
SHRUNK = FIRST | {"fields": [{"name": "city", "type": "string"}]}
ROW = {"type": "record", "name": "Value", "fields": [
    {"name": name, "type": ["null", "long" if name == "id" else "string"], "default": None}
    for name in COLUMNS
]}  # fmt: skip
ENVELOPE = {"type": "record", "name": "Envelope", "namespace": "shop.public.orders", "fields": [
    {"name": "before", "type": ["null", ROW], "default": None},
    {"name": "after", "type": ["null", "Value"], "default": None},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "ts_ms", "type": "long"},
    ]}},
    {"name": "op", "type": "string"},
    {"name": "ts_ms", "type": ["null", "long"], "default": None},
]}  # fmt: skip
UNSENT = {"name": "unchanged", "type": ["null", {"type": "array", "items": ["null", "string"]}],
          "default": None}  # fmt: skip
ENVELOPES = (ENVELOPE, ENVELOPE | {"fields": [*ENVELOPE["fields"], UNSENT]})
"""Schemas as Debezium registers them, without and with the list of values that were not sent."""
CHANGES = """
table = "lake"
mode = "cdc"
keys = ["region", "id"]
[sink.iceberg]
from = "addresses"
iceberg = "db.rows"
mode = "cdc"
keys = ["region", "id"]
catalog = {{type = "sql", uri = "sqlite:///catalog.db", warehouse = "lake"}}
"""
FILE = """
name = "addresses-{number}"
[run]
trigger = "once"
[source.addresses]
topic = "{topic}"
format = "registry"
registry = "{registry}"
{more}
[sink.lake]
from = "addresses"
table = "lake"
evolve = "add"
[errors]
dead_letters = "{dead}"
"""


@pytest.fixture(scope="module")
def registry() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def broker(registry: str) -> Iterator[Broker]:
    settings = {
        "registry.enable": "true",
        "registry.listener": registry.removeprefix("http://"),
    }
    with Broker(settings, process=True) as running:
        yield running


@pytest.fixture
def pipeline(tmp_path: Path, broker: Broker, spark: SparkSession) -> Iterator[Pipeline]:
    made = Pipeline(tmp_path, broker, spark)
    yield made
    made.client.close()


class Producer:
    """Rows of one topic, serialised by Confluent's client."""

    def __init__(self, pipeline: Pipeline, url: str, registry: SchemaRegistryClient) -> None:
        self.topic = pipeline.topic("addresses")
        self.dead = pipeline.topic("dead")
        self._client = pipeline.client
        self.number = pipeline.number
        self.url = url
        self.registry = registry
        self.subject = f"{self.topic}-value"
        self.registry.set_compatibility(self.subject, level="NONE")

    def send(self, schema: Any, *rows: dict[str, Any], in_header: bool = False) -> None:
        conf = {"schema.id.serializer": header_schema_id_serializer} if in_header else {}
        serialize = AvroSerializer(self.registry, json.dumps(schema), conf=conf)
        values, headers = [], []
        for row in rows:
            context = SerializationContext(self.topic, MessageField.VALUE, headers=[])
            values.append(serialize(row, context))
            headers.append([{"key": k, "value": v} for k, v in context.headers or []])
        self.send_bytes(*values, headers=headers)

    def send_bytes(self, *values: bytes | None, headers: Any = None) -> None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        given = pa.array(headers or [[] for _ in values], kind)
        self._client.write_arrow(self.topic, pa.table({"value": list(values), "headers": given}))

    def file(self, more: str = "") -> str:
        return FILE.format(
            topic=self.topic, registry=self.url, more=more, dead=self.dead, number=self.number
        )


@pytest.fixture
def producer(pipeline: Pipeline, registry: str) -> Iterator[Producer]:
    with SchemaRegistryClient({"url": registry}) as client:
        yield Producer(pipeline, registry, client)


def address(city: str, street: str, **more: Any) -> dict[str, Any]:
    return {"city": city, "street": street, **more}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["city"]))


def reasons(pipeline: Pipeline, topic: str) -> list[dict[str, str]]:
    """The headers of dead letters, by offset."""
    return [
        {header["key"]: header["value"].decode("latin-1") for header in record["headers"]}
        for record in pipeline.records(topic)
    ]


def test_two_schemas_of_one_topic_an_unknown_id_and_a_later_version(
    pipeline: Pipeline, producer: Producer
) -> None:
    producer.send(FIRST, address("a", "1"), address("b", "2"))
    producer.send(SWAPPED, address("c", "3"))
    producer.send(SWAPPED, address("d", "4"), in_header=True)
    producer.send_bytes(b"\0\0\1\0\0\2a\2b", b"\7")
    pipeline.run(producer.file("reader = 1"))
    assert in_order(pipeline.rows("lake")) == [
        address("a", "1"), address("b", "2"), address("c", "3"), address("d", "4"),
    ]  # fmt: skip
    first, second = reasons(pipeline, producer.dead)
    assert first["penstock.error.reason"].startswith(
        "schema id 65536 is not in the schema registry"
    )
    assert (first["penstock.error.topic"], first["penstock.error.offset"]) == (producer.topic, "4")
    assert second["penstock.error.reason"] == (
        "does not start with the magic byte 0 of the confluent framing"
    )
    # Spark's source reads the same values without a pipeline.
    options = {"subscribe": producer.topic, "valueFormat": "registry", "valueReader": "1"}
    options |= {"bootstrap": pipeline.broker.bootstrap, "valueRegistry": producer.url}
    frame = pipeline.spark.read.format("penstock").options(**options).load()
    cities = [row["city"] for row in frame.select("_value.city").collect()]
    assert sorted(city for city in cities if city) == ["a", "b", "c", "d"]
    # The newest version adds a column; records of older ones have nulls there.
    producer.send(GROWN, address("e", "5", zip=7))
    producer.send(FIRST, address("f", "6"))
    pipeline.run(producer.file())
    rows = in_order(pipeline.rows("lake"))
    assert [row["zip"] for row in rows] == [None, None, None, None, 7, None]
    assert rows[4:] == [address("e", "5", zip=7), address("f", "6", zip=None)]
    # A version that lacks a column is refused, before any record is read.
    producer.send(SHRUNK, {"city": "g"})
    with pytest.raises(InvalidFormat, match=r"version 4 of subject .* lacks field zip, and 1 more"):
        pipeline.run(producer.file())
    pipeline.run(producer.file("reader = 3"))
    assert len(pipeline.rows("lake")) == 6
    assert (
        "READER_FIELD_MISSING_DEFAULT"
        in reasons(pipeline, producer.dead)[2]["penstock.error.reason"]
    )


def test_a_replayed_batch_keeps_its_readers_schema(
    pipeline: Pipeline, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two sinks fails; a new version follows before the batch is repeated."""
    text = (
        producer.file()
        + """
    [sink.second]
    from = "addresses"
    table = "second"
    evolve = "add"
    """
    )
    producer.send(FIRST, address("a", "1"))
    fail_for(monkeypatch, "second")
    with pytest.raises(QueryFailed, match="no space left"):
        pipeline.run(text)
    monkeypatch.undo()
    producer.send(GROWN, address("b", "2", zip=7))
    pipeline.run(text)
    for table in ("lake", "second"):
        assert in_order(pipeline.rows(table)) == [
            address("a", "1", zip=None), address("b", "2", zip=7),
        ]  # fmt: skip
    spec = pipeline.write(text)
    paths = PipelinePaths(spec)
    definitions = Definitions(paths.definitions)
    read_with = [
        pinned_schema(
            definitions.load(entry.definition, spec.run).spec.sources["addresses"].value_format
        ).version
        for entry in Journal(paths.journal("addresses")).entries()
    ]
    assert read_with == [1, 2]


def test_change_events_in_avro_are_applied(pipeline: Pipeline, producer: Producer) -> None:
    """Events with unsent values have a newer schema than the one that the pipeline pins."""
    database = Database(3, keys=40, moved_toast=False)
    database.run(600)
    serialize = [AvroSerializer(producer.registry, json.dumps(each)) for each in ENVELOPES]
    context = SerializationContext(producer.topic, MessageField.VALUE)
    values: list[bytes | None] = []
    for number, event in enumerate(database.events):
        marker = dict.fromkeys(event.unchanged, MARKER) if number % 2 else {}
        value = envelope(event, marker)
        values.append(serialize["unchanged" in value](value, context))
        if event.op == "d":
            values.append(None)
    text = FILE.replace('table = "lake"\nevolve = "add"', CHANGES).format(
        topic=producer.topic, registry=producer.url, dead=producer.dead, number=producer.number,
        more='envelope = "debezium"\nreader = 1',
    )  # fmt: skip
    for part in (values[:400], [b"nonsense", *values[400:]]):
        producer.send_bytes(*part)
        pipeline.run(text)
    assert shown(pipeline.rows("lake")) == shown(database.rows())
    lake = LakeTable(target_of(pipeline, "db.rows"), application="tests")
    assert shown(stored(lake).scan().to_arrow().to_pylist()) == shown(database.rows())
    (reason,) = reasons(pipeline, producer.dead)
    assert "magic byte" in reason["penstock.error.reason"]


def envelope(event: Event, marker: dict[str, str]) -> dict[str, Any]:
    """Return the value of an event: unsent values are marked, or else listed."""
    moment_ms = int(event.at.timestamp() * 1000)
    row = event.sent | marker
    value: dict[str, Any] = {
        "before": row if event.op == "d" else None, "after": row if event.op in "cru" else None,
        "source": {"lsn": event.lsn, "ts_ms": moment_ms}, "op": event.op, "ts_ms": moment_ms + 5,
    }  # fmt: skip
    if event.unchanged and not marker:
        value["unchanged"] = list(event.unchanged)
    return value


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (FIRST, "needs values with the fields op, ts_ms, before and after"),
        (
            json.loads(json.dumps(ENVELOPES[0]).replace('"note"', '"_change"')),
            "has a column _change",
        ),
    ],
)
def test_validate_reports_values_that_are_no_change_events(
    pipeline: Pipeline, producer: Producer, schema: Any, said: str
) -> None:
    producer.registry.register_schema(producer.subject, Schema(json.dumps(schema), "AVRO"))
    spec = pipeline.write(producer.file('envelope = "debezium"'))
    assert [said in problem.message for problem in problems(spec, pipeline.spark)] == [True]


def test_without_a_registry_the_first_id_is_pinned(
    pipeline: Pipeline, producer: Producer, spark: SparkSession
) -> None:
    (pipeline.folder / "order.avsc").write_text(json.dumps(FIRST))
    framed = producer.file().replace(
        f'format = "registry"\nregistry = "{producer.url}"',
        'format = "avro"\nschema_file = "order.avsc"\nframing = "confluent"',
    )
    with pytest.raises(NothingToPin, match="has no record yet to take it from; set ids"):
        pipeline.run(framed)
    (problem,) = problems(pipeline.write(framed), spark)
    assert problem.where == "source.addresses"
    assert "has no record yet" in problem.message
    producer.send(FIRST, address("a", "1"))
    producer.send(SWAPPED, address("b", "2"))
    pipeline.run(framed)
    producer.send(FIRST, address("c", "3"))
    pipeline.run(framed)
    assert in_order(pipeline.rows("lake")) == [address("a", "1"), address("c", "3")]
    (reason,) = reasons(pipeline, producer.dead)
    assert reason["penstock.error.offset"] == "1"
    assert 'Use format = "registry"' in reason["penstock.error.reason"]


def test_validate_finds_what_a_run_would_refuse(
    pipeline: Pipeline, producer: Producer, spark: SparkSession
) -> None:
    def found(text: str) -> tuple[str, str]:
        (problem,) = problems(pipeline.write(text), spark)
        return problem.where, problem.message

    where, said = found(producer.file())
    assert where == "source.addresses.subject"
    assert "has no such schema" in said
    producer.registry.register_schema(producer.subject, Schema(json.dumps(FIRST), "AVRO"))
    assert not problems(pipeline.write(producer.file()), spark)
    where, said = found(producer.file("reader = 2"))
    assert where == "source.addresses.reader"
    tree = {"name": "Tree", "type": "record", "fields": [{"name": "t", "type": ["null", "Tree"]}]}
    producer.registry.register_schema(producer.subject, Schema(json.dumps(tree), "AVRO"))
    where, said = found(producer.file())
    assert where == "source.addresses.reader"
    assert "version 2 of subject" in said
    assert "field t: uses the type 'Tree' within itself" in said
    away = f"http://127.0.0.1:{free_port()}"
    monkey = producer.file().replace(producer.url, away)
    where, said = found(monkey)
    assert where == "source.addresses"
    assert "failed at the schema registry" in said
    # A table without the new column refuses it, with the version that has it.
    write_deltalake(str(pipeline.folder / "lake"), pa.table({"city": ["a"]}))
    where, said = found(producer.file("reader = 1").replace('evolve = "add"', ""))
    assert where == "sink.lake.table"
    assert "has no column street" in said
    assert "addresses is read with version 1 of subject" in said
