"""Values with registered schemas: written and read by columns, and shown by `penstock consume`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import InvalidArgument, RegistryReader, SchemaClient, ValueSchema
from penstock.client.registered import RegistryPlace, pinned
from penstock.client.schemas import RegistryRefused, StoredSchema
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.ports import free_port

ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                    "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}  # fmt: skip
LATER = ORDER | {
    "fields": [{"name": "note", "type": ["null", "string"], "default": None}, *ORDER["fields"]]
}
PROTO = 'syntax = "proto3"; package shop; message A { int32 x = 1; } message B { bytes y = 2; }'


@pytest.fixture(scope="module")
def registry() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def broker(registry: str) -> Iterator[Broker]:
    listener = {"registry.enable": "true", "registry.listener": registry.removeprefix("http://")}
    with Broker(listener, process=True) as running:
        yield running


@pytest.fixture
def schemas(registry: str) -> Iterator[SchemaClient]:
    with SchemaClient(registry) as made:
        yield made


def orders(*ids: int, **more: Any) -> pa.Table:
    count = len(ids)
    return pa.table(
        {
            "key": pa.array([b"k"] * count),
            "id": pa.array(ids, pa.int32()),
            "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * count),
            "amount": pa.array([Decimal("1.25")] * count),
            **more,
        }
    )


def test_tables_are_written_and_read_by_columns(
    broker: Broker, registry: str, schemas: SchemaClient
) -> None:
    broker.create_topic("orders")
    with broker.client() as client:
        client.write_arrow(
            "orders", orders(1, 2), schema=ValueSchema(registry=registry, schema=ORDER)
        )
        notes = pa.array(["n", None])
        later = ValueSchema(registry=schemas, schema=json.dumps(LATER))
        client.write_arrow("orders", orders(3, 4, note=notes), schema=later)
        client.write_arrow("orders", pa.table({"value": [b"\0\0\0\3\xe7", None]}))
        # The newest version of the subject is the schema, and structs are values as they are.
        whole = client.read_arrow("orders", decode=schemas)
        client.write_arrow("orders", whole.slice(2, 1), schema=ValueSchema(registry=registry))
        found = client.read_arrow("orders", decode=registry, columns=("offset", "value"))
        assert found.column_names == ["offset", "value", "value_error"]
        values = [value and (value["id"], value["note"]) for value in found["value"].to_pylist()]
        assert values == [(1, None), (2, None), (3, "n"), (4, None), None, None, (3, "n")]
        assert found["value"][0].as_py()["tags"] == []
        assert found["value"][0].as_py()["amount"] == Decimal("1.25")
        errors = found["value_error"].to_pylist()
        assert errors[:4] == [None] * 4
        assert str(errors[4]).startswith("schema id 999 is not in the schema registry")
        assert errors[5:] == [None, None]
        first = pinned(schemas, "orders-value", "1")
        reader = RegistryReader(place=RegistryPlace(url=registry), schema=first)
        named = client.read_arrow("orders", decode=reader, columns=("value",))["value"]
        assert [field.name for field in named.type] == ["id", "at", "amount", "tags"]


def test_what_cannot_be_written_is_refused(
    broker: Broker, registry: str, schemas: SchemaClient
) -> None:
    broker.create_topic("refused")
    unknown = ValueSchema(registry=registry, schema=ORDER, register=False)
    with broker.client() as client:
        with pytest.raises(RegistryRefused):
            client.write_arrow("refused", orders(1), schema=unknown)
        with pytest.raises(RegistryRefused):
            client.write_arrow("refused", orders(1), schema=ValueSchema(registry=registry))
        short = orders(1).drop_columns(["at"])
        given = ValueSchema(registry=registry, schema=ORDER)
        with pytest.raises(InvalidArgument, match="field at: is missing in the data"):
            client.write_arrow("refused", short, schema=given)
        client.write_arrow("refused", orders(1), schema=unknown)
        with pytest.raises(InvalidArgument, match="decode needs the column value"):
            client.read_arrow("refused", decode=registry, columns=("key",))
        assert client.read_arrow("refused", decode=registry).num_rows == 1


def test_consume_shows_values_of_all_formats(
    broker: Broker, registry: str, schemas: SchemaClient, bare: Run
) -> None:
    broker.create_topic("shown")
    proto = schemas.register("b", StoredSchema(schema=PROTO, schema_type="PROTOBUF"))
    plain = schemas.register("c", StoredSchema(schema='{"type": "object"}', schema_type="JSON"))
    key = schemas.register("shown-key", StoredSchema(schema='"string"'))
    head = [b"\0" + number.to_bytes(4, "big") for number in (proto, plain, key, 9999)]
    guid = str(schemas.request("GET", ("schemas", "ids", str(plain)))["guid"])
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    header = {"key": "__value_schema_id", "value": b"\1" + bytes.fromhex(guid.replace("-", ""))}
    rows = [
        head[0] + b"\0\x08\x05", head[0] + b"\2\2\x12\2hi", head[0] + b"\2\x0a",
        head[1] + b'{"a":  1}', b'{"b": 2}', head[3], b"\x07", None,
    ]  # fmt: skip
    with broker.client() as client:
        keys = pa.array([head[2] + b"\2k"] * len(rows))
        headers = pa.array([[header] if row == b'{"b": 2}' else [] for row in rows], kind)
        table = pa.table({"key": keys, "value": pa.array(rows), "headers": headers})
        client.write_arrow("shown", table)
    options = ("-b", broker.bootstrap, "--registry", registry, "-e", "-q", "--decode")
    ran = bare("consume", "shown", *options)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == '{"x":5}'
    assert lines[1] == json.dumps({"y": base64.b64encode(b"hi").decode()}, separators=(",", ":"))
    assert json.loads(lines[2][1:])["error"].endswith("the schema has no such message")
    assert lines[3:5] == ['{"a": 1}', '{"b": 2}']
    assert lines[5].startswith('!{"error": "schema id 9999 is not in the schema registry')
    assert json.loads(lines[6][1:])["base64"] == "Bw=="
    assert lines[7:] == [""]
    ran = bare("consume", "shown", *options, "--decode-key", "-J")
    records = [json.loads(line) for line in ran.out.splitlines()]
    assert [record["key"] for record in records] == ["k"] * len(rows)
    assert [record["payload"] for record in records[3:5]] == [{"a": 1}, {"b": 2}]
    assert records[5]["payload"] is None
    assert records[5]["payload_error"].startswith("schema id 9999")
    assert records[6]["payload_base64"] == "Bw=="
    assert "payload_error" not in records[7]
