"""Values opened in the worker: the columns, what is wrong, and what the options refuse."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType, VariantType

from penstock.formats import ValueFormat
from penstock.spark.errors import InvalidOption
from penstock.spark.formats.decoders import ReaderDecoder, decoder, opening_of
from penstock.spark.options import parse, value_options
from penstock.spark.schema import spark_schema
from tests.formats.avro.reference import encode
from tests.spark.conftest import Topic

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "int"}},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "x", "type": "double"}, {"name": "ok", "type": "boolean"}],
            },
        },
    ],
}
VARIANT = StructType([StructField("any", VariantType())]).json()
SOURCE = {"bootstrap": "localhost:9092", "subscribe": "orders"}


def order(number: int) -> bytes:
    value = {
        "id": number,
        "customer": (1, f"c{number}") if number % 3 else (0, None),
        "at": datetime(2026, 1, 2, 3, 4, number % 60, tzinfo=UTC),
        "amount": Decimal(number).scaleb(-2),
        "tags": ["a"] * (number % 4),
        "more": [("k", number)],
        "place": {"x": number / 2, "ok": number % 2 == 0},
    }
    return encode(SCHEMA, value)


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(SCHEMA))
    return path


@pytest.mark.spark
def test_the_source_opens_what_spark_would(topic: Topic, schema_file: Path) -> None:
    values = [order(number) for number in range(500)]
    values[7:7] = [b"\xff", b""]
    nothing = pa.array([*values, None], pa.binary())
    topic.client.write_arrow(topic.name, pa.table({"value": nothing}), partition=0)
    value_format = ValueFormat(kind="avro", schema_file=schema_file)
    options = value_options(value_format)
    opened = topic.batch(**options)
    expected = decoder(value_format).decode(topic.batch())
    assert opened.schema == expected.schema
    assert opened.orderBy("offset").collect() == expected.orderBy("offset").collect()
    wrong = opened.where("_error is not null")
    assert [row["offset"] for row in wrong.orderBy("offset").collect()] == [7, 8]
    assert opened.where("_value is null and _error is null").count() == 1
    # Columns and fields are chosen apart; every value is checked as a whole.
    some = topic.batch(columns="offset", valueFields='["place", "id"]', **options)
    assert some.columns == ["offset", "_value", "_error"]
    assert some.schema["_value"].dataType.names == ["id", "place"]  # type: ignore[attr-defined]
    assert some.where("_error is not null").count() == 2
    total = some.agg(F.sum("_value.id")).collect()[0][0]
    assert total == sum(range(500))
    assert topic.batch(columns="offset").schema == spark_schema(("offset",))


@pytest.mark.spark
def test_json_is_opened_as_spark_would(topic: Topic) -> None:
    values = [b'{"n": %d, "at": "2026-01-02 03:04:05", "more": {"x": [1]}}' % n for n in range(50)]
    values[7:7] = [b"{", b'{"n": "x"}', b'{"n": 1, "at": "2026-01-02T03:04:05+05:00", "other": 0}']
    topic.client.write_arrow(topic.name, pa.table({"value": pa.array(values, pa.binary())}))
    schema = "n bigint, at timestamp, day date, more struct<x: array<int>>"
    made = decoder(ValueFormat(kind="json", schema=schema))
    assert isinstance(made, ReaderDecoder)
    opened = topic.batch(**value_options(made.value_format))
    expected = made.decode(topic.batch())
    assert opened.schema == expected.schema
    assert opened.orderBy("value").collect() == expected.orderBy("value").collect()
    assert opened.where("_error is not null").count() == 2


@pytest.mark.spark
def test_a_stream_opens_too(topic: Topic, schema_file: Path, tmp_path: Path) -> None:
    values = pa.array([order(number) for number in range(100)], pa.binary())
    topic.client.write_arrow(topic.name, pa.table({"value": values}))
    stream = topic.stream(columns="offset", valueFormat="avro", valueSchemaFile=schema_file)
    query = (
        stream.select("_value.id")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(60)
    found = topic.spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.id for row in found.collect()) == list(range(100))
    with pytest.raises(PySparkException, match=r"valueSchemaFile = '[^']*gone"):
        topic.batch(valueFormat="avro", valueSchemaFile="gone.avsc")


REGISTRY = {"valueFormat": "registry", "valueRegistry": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"valueFormat": "xml"}, "valueFormat"),
        ({"valueFormat": "avro"}, "valueSchemaFile = '': format avro needs a schema file"),
        ({"valueSchemaFile": "x"}, "valueSchemaFile"),
        ({"valueFormat": "json"}, "valueSchema"),
        ({"valueFormat": "json", "valueSchema": "{}"}, "valueSchema"),
        ({"valueFormat": "json", "valueSchema": '{"type":"struct","fields":[]}'}, "no fields"),
        ({"valueFormat": "json", "valueSchema": VARIANT}, "only Spark decodes field any"),
        ({"valueFraming": "confluent"}, "valueFraming"),
        ({"valueIds": "[1]"}, "valueIds"),
        ({"valueIds": "1"}, r"must look like \[1, 2\]"),
        ({"valueFormat": "registry"}, "valueRegistry"),
        ({"valueFormat": "registry", "valueSchema": "{}"}, "valueRegistry"),
        ({**REGISTRY, "valueSchema": "{}"}, "valueSchema = '{}': is not a pinned schema"),
        ({**REGISTRY, "valueReader": "none.avsc"}, "valueReader = 'none.avsc': cannot be read"),
        ({**REGISTRY, "valueRegistryConfig": "none"}, "valueRegistryConfig = 'none'"),
        ({"valueFields": "id"}, "valueFields = 'id': must be JSON"),
        ({"valueFields": "{}"}, "valueFields"),
        ({"valueFields": "[]"}, "valueFields"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        opening_of(parse(SOURCE | options))


def test_options_of_a_format_are_read_back() -> None:
    framed = ValueFormat(kind="avro", schema_file=Path("a.avsc"), framing="confluent", ids=(1, 2))
    chosen = ValueFormat(
        kind="registry", schema="{}", registry="http://127.0.0.1:8081", subject="s", reader="id 7"
    )
    for given in (framed, chosen):
        assert parse(SOURCE | value_options(given)).value_format == given


def test_fields_that_are_not_there(schema_file: Path) -> None:
    options = {"valueFormat": "avro", "valueSchemaFile": str(schema_file), "valueFields": '["no"]'}
    with pytest.raises(
        InvalidOption, match="valueFields = 'no': must name at least one of the fields id, cust"
    ):
        opening_of(parse(SOURCE | options))
