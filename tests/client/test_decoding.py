"""Values of several writers' schemas in one batch, read as one reader's schema."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.decoding import RegistryReader, Writers
from penstock.client.errors import AdminUnavailable
from penstock.client.registered import (
    WRITERS_MAX,
    RegistryPlace,
    WriterSchemas,
    pinned,
    reader_from_json,
)
from penstock.client.schemas import RegistryRefused, SchemaReference
from penstock.formats.framing import NO_MAGIC, TOO_SHORT, SchemaKey
from penstock.formats.value_format import InvalidFormat
from tests.client.fake_registry import (
    FakeRegistry,
    descriptor,
    framed,
    framed_by_guid,
    place,
    reader_schema,
)
from tests.formats.avro.evolution import evolved
from tests.formats.avro.reference import encode, long, records, sized
from tests.formats.avro.test_resolution import resolved

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FIRST = {
    "type": "record", "name": "Order",
    "fields": [{"name": "city", "type": "string"}, {"name": "street", "type": "string"}],
}  # fmt: skip
SWAPPED = FIRST | {"fields": FIRST["fields"][::-1]}


def writers(registry: FakeRegistry, reader: Any, **more: Any) -> Writers:
    return Writers(RegistryReader(place=place(), schema=reader, **more), registry)


def read(
    made: Writers, content: list[bytes | None], headers: list[Any] | None = None
) -> tuple[list[Any], list[str | None]]:
    given_headers = None if headers is None else pa.array(headers, HEADERS)
    values, errors = made.read(pa.array(content, pa.binary()), given_headers)
    values.validate(full=True)
    errors.validate(full=True)
    return values.to_pylist(), errors.to_pylist()


def test_each_value_is_read_with_its_writers_schema() -> None:
    registry = FakeRegistry()
    registry.add(1, FIRST)
    guid = registry.add(2, SWAPPED)
    made = writers(registry, reader_schema(FIRST))
    row = sized(b"Berlin") + sized(b"Ring")
    other = sized(b"Allee") + sized(b"Bonn")
    content = [
        framed(1, row), framed(2, other), None, framed_by_guid(guid, other), framed(1, row),
        b"\7nonsense", b"", framed(1, row[:3]), framed(1, row),
    ]  # fmt: skip
    found, errors = read(made, content)
    berlin, bonn = {"city": "Berlin", "street": "Ring"}, {"city": "Bonn", "street": "Allee"}
    assert found == [berlin, bonn, None, bonn, berlin, None, None, None, berlin]
    assert errors == [
        None, None, None, None, None, NO_MAGIC, TOO_SHORT,
        "schema id 1: field city: ends too early", None,
    ]  # fmt: skip
    assert read(made, content) == (found, errors)
    assert registry.asked == [1, 2, guid]
    assert registry.pauses == 0


def test_one_schema_in_a_batch_is_read_with_the_absent_and_the_damaged() -> None:
    registry = FakeRegistry()
    registry.add(1, FIRST)
    made = writers(registry, reader_schema(FIRST))
    row = framed(1, sized(b"a") + sized(b"b"))
    found, errors = read(made, [row, None, b"\0", row])
    assert found == [{"city": "a", "street": "b"}, None, None, {"city": "a", "street": "b"}]
    assert errors == [None, None, "shorter than the 5 bytes of the confluent framing", None]
    assert read(made, []) == ([], [])
    assert read(made, [None, None]) == ([None, None], [None, None])


def test_ids_may_be_in_headers_of_records() -> None:
    registry = FakeRegistry()
    guid = registry.add(1, FIRST)
    registry.add(2, SWAPPED)
    made = writers(registry, reader_schema(FIRST))
    row = sized(b"a") + sized(b"b")
    by_guid = {"key": "__value_schema_id", "value": framed_by_guid(guid, b"")}
    by_id = {"key": "__value_schema_id", "value": framed(2, b"")}
    damaged = {"key": "__value_schema_id", "value": b"\1"}
    nothing = {"key": "__value_schema_id", "value": None}
    other = {"key": "trace", "value": b"1"}
    found, errors = read(
        made,
        [row, row, framed(2, row), None, row, framed(1, row)],
        [[other, by_guid, by_id], [by_id], [other], [by_guid], [damaged], [nothing]],
    )
    straight, turned = {"city": "a", "street": "b"}, {"city": "b", "street": "a"}
    assert found == [straight, turned, turned, None, None, straight]
    assert errors == [
        None, None, None, None, NO_MAGIC, None,
    ]  # fmt: skip


def test_an_unknown_id_is_asked_for_twice_and_named() -> None:
    registry = FakeRegistry()
    registry.add(1, FIRST)
    registry.add(3, SWAPPED, late=True)
    made = writers(registry, reader_schema(FIRST))
    row = sized(b"a") + sized(b"b")
    content: list[bytes | None] = [framed(number, row) for number in (1, 9, 3, 2**32 - 1)]
    found, errors = read(made, content)
    assert [value is None for value in found] == [False, True, False, True]
    assert errors[1] == (
        "schema id 9 is not in the schema registry http://127.0.0.1:8081. Register the schema there"
        " with this id and replay the dead letter, or correct the producer"
    )
    assert str(errors[3]).startswith("schema id 4294967295 is not in the schema registry")
    assert registry.asked == [1, 3, 9, 3, 9]
    assert registry.pauses == 1
    assert read(made, content) == (found, errors)
    assert registry.asked == [1, 3, 9, 3, 9]


def test_a_registry_that_is_away_fails_the_batch() -> None:
    registry = FakeRegistry()
    registry.add(1, FIRST)
    made = writers(registry, reader_schema(FIRST))
    registry.away = True
    with pytest.raises(AdminUnavailable):
        read(made, [framed(1, b"")])
    registry.away = False
    assert read(made, [framed(1, sized(b"") * 2)])[1] == [None]


def test_a_schema_that_cannot_be_read_as_the_readers_names_id_path_and_rule() -> None:
    registry = FakeRegistry()
    fields = [{"name": "city", "type": "long"}]
    registry.add(1, FIRST | {"fields": fields})
    registry.add(2, "syntax", "PROTOBUF")
    registry.add(3, '{"type": "record", "name": "Order", "fields": [{"name": "a", "type": "b"}]}')
    registry.add(4, "{")
    made = writers(registry, reader_schema(FIRST, subject="orders-value", version=7))
    found, errors = read(made, [framed(number, long(1)) for number in (1, 2, 3, 4)])
    assert found == [None] * 4
    assert errors[0] == (
        "schema id 1: field street: the writer's record Order lacks it, and it has no default"
        " (READER_FIELD_MISSING_DEFAULT_VALUE)"
    )
    assert errors[1] == "schema id 2 is PROTOBUF, but version 7 of subject orders-value is AVRO"
    assert errors[2] == ("schema id 3: field a: names the type 'b', which is not defined before it")
    assert str(errors[3]).startswith("schema id 4: {: is not JSON")


def test_the_schemas_fetched_last_are_kept() -> None:
    registry = FakeRegistry()
    keys = [SchemaKey(str(number)) for number in range(1, WRITERS_MAX + 2)]
    for key in keys:
        registry.add(int(key), FIRST)
    found = WriterSchemas(registry, None, lambda key, content: (key, content.kind))
    assert found.find(keys) == {key: (key, "AVRO") for key in keys}
    registry.asked.clear()
    assert found.find([keys[-1], keys[1]]) == {key: (key, "AVRO") for key in (keys[-1], keys[1])}
    assert registry.asked == []
    found.find(keys[:1])
    assert registry.asked == [1]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_mix_of_schemas_is_read_as_each_alone(data: Any) -> None:
    numbers = itertools.count()
    base, _ = data.draw(records(numbers))
    reader = data.draw(evolved(base, numbers))
    if isinstance(reader, list):
        reader = next(part for part in reader if part != "null")
    registry = FakeRegistry()
    kinds = [data.draw(records(numbers)) for _ in range(2)]
    for schema_id, (document, _) in enumerate(kinds, 1):
        registry.add(schema_id, document | {"name": reader["name"]})
    rows = data.draw(st.lists(st.integers(1, 2), max_size=8))
    plain = [encode(kinds[n - 1][0], data.draw(kinds[n - 1][1])) for n in rows]
    found, errors = read(
        writers(registry, reader_schema(reader)),
        [framed(n, content) for n, content in zip(rows, plain, strict=True)],
    )
    for at, (n, content) in enumerate(zip(rows, plain, strict=True)):
        alone, error = resolved(kinds[n - 1][0] | {"name": reader["name"]}, reader, [content])
        assert found[at] == alone[0]
        assert errors[at] == (error[0] and f"schema id {n}: {error[0]}")


def file(*messages: tuple[str, list[tuple[str, int, int]]]) -> str:
    made = descriptor_pb2.FileDescriptorProto(syntax="proto3", package="shop")
    for name, fields in messages:
        message = made.message_type.add(name=name)
        for field, number, kind in fields:
            message.field.add(name=field, number=number, type=kind, label=1)
    return descriptor(made)


INT64, STRING, SINT64 = 3, 9, 18


def test_a_message_is_found_by_its_index_in_the_writers_file() -> None:
    registry = FakeRegistry()
    order = ("Order", [("id", 1, INT64), ("note", 3, STRING)])
    registry.add(1, file(order), "PROTOBUF")
    registry.add(2, file(("Other", [("x", 1, INT64)]), ("Order", [("id", 1, INT64)])), "PROTOBUF")
    registry.add(3, file(("Order", [("id", 1, SINT64)])), "PROTOBUF")
    registry.add(4, file(("Other", [("x", 1, INT64)])), "PROTOBUF")
    guid = str(registry.schemas[2].guid)
    made = writers(registry, reader_schema(file(order), "PROTOBUF"))
    in_header = [{"key": "__value_schema_id", "value": framed_by_guid(guid, b"\2\2")}]
    found, errors = read(
        made,
        [
            framed(1, b"\0\x08\x05\x1a\x01n"), framed(2, b"\2\2\x08\x06"), framed(2, b"\0\x08\x06"),
            framed(3, b"\0\x08\x06"), framed(4, b"\0\x08\x06"), b"\x08\x07",
        ],
        [[], [], [], [], [], in_header],
    )  # fmt: skip
    assert found == [
        {"id": 5, "note": "n"}, {"id": 6, "note": ""}, None, None, None, {"id": 7, "note": ""},
    ]  # fmt: skip
    assert errors == [
        None, None, "schema id 2: message indexes: the value is of another message",
        "schema id 3: field id: number 1 is sint64 for the writer, but int64 for the reader"
        " (FIELD_KIND_CHANGED)",
        "schema id 4: shop.Order: is not in schema id 4, which has: shop.Other (MESSAGE_MISSING)",
        None,
    ]  # fmt: skip


def test_json_values_are_read_by_the_readers_columns() -> None:
    registry = FakeRegistry()
    kinds = {"id": {"type": "integer"}, "name": {"type": "string"}}
    first = {"type": "object", "properties": {"id": {"type": "integer"}}}
    registry.add(1, first, "JSON")
    registry.add(2, first | {"properties": kinds}, "JSON")
    made = writers(registry, reader_schema(first | {"properties": kinds}, "JSON"))
    found, errors = read(made, [framed(1, b'{"id": 1}'), framed(2, b'{"id": 2, "name": 3}')])
    assert found == [{"id": 1, "name": None}, None]
    assert str(errors[1]).startswith("schema id 2: field name: ")


def test_a_readers_schema_is_pinned_with_what_it_refers_to() -> None:
    registry = FakeRegistry()
    registry.add(1, FIRST, subject="address")
    reference = SchemaReference(name="Order", subject="address", version=1)
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "to", "type": "Order"}]}
    registry.add(5, outer, references=(reference,))
    registry.add(6, FIRST)
    first = pinned(registry, "orders-value", "1")
    assert (first.version, first.id, first.subject) == (1, 5, "orders-value")
    assert first.content.parts == (("Order", registry.schemas[1].schema),)
    assert reader_from_json(first.to_json()) == first
    assert pinned(registry, "orders-value").version == 2
    assert pinned(registry, "orders-value", "id 1").id == 1
    with pytest.raises(RegistryRefused):
        pinned(registry, "orders-value", "3")
    with pytest.raises(InvalidFormat, match="is not a pinned schema"):
        reader_from_json("{}")
    made = writers(registry, first)
    assert read(made, [framed(5, sized(b"a") + sized(b"b"))]) == (
        [{"to": {"city": "a", "street": "b"}}], [None],
    )  # fmt: skip


def test_a_reader_is_sent_without_showing_its_credentials() -> None:
    secret = RegistryPlace(url="https://r", options=(("sasl.password", "hush"),))
    made = RegistryReader(place=secret, schema=reader_schema(FIRST))
    assert pickle.loads(pickle.dumps(made)) == made
    assert "hush" not in repr(made)
