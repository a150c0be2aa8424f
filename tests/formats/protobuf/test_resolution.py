"""Messages of a writer as a reader's: equal to what Protobuf's own library reads of the bytes."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.formats.framing import message_paths
from penstock.formats.protobuf import indexes_of, message_of
from penstock.formats.protobuf_decode import decode
from penstock.formats.protobuf_resolution import (
    MAIN,
    check_reads,
    message_at,
    message_of_schema,
)
from penstock.formats.value_format import InvalidFormat
from penstock.formats.values import Values
from tests.formats.protobuf.messages import comparable, expected, values

ONE, MANY = 1, 3
GROUPS = [
    [F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_BOOL],
    [F.TYPE_SINT32, F.TYPE_SINT64],
    [F.TYPE_FIXED32, F.TYPE_SFIXED32],
    [F.TYPE_FIXED64, F.TYPE_SFIXED64],
    [F.TYPE_FLOAT],
    [F.TYPE_DOUBLE],
    [F.TYPE_STRING, F.TYPE_BYTES],
]
KINDS = [kind for group in GROUPS for kind in group]
ITEM = ".shop.Item"
Fields = dict[int, tuple[str, int, int]]
"""Name, kind and label of each field, by its number."""


def text(order: Fields, item: Fields, *, others: int = 0) -> str:
    """A file as a registry returns it; `others` messages precede the two."""
    file = descriptor_pb2.FileDescriptorProto(name=MAIN, package="shop", syntax="proto3")
    for number in range(others):
        file.message_type.add(name=f"Other{number}").field.add(
            name="x", number=1, type=F.TYPE_INT32, label=ONE
        )
    for name, fields in (("Order", order), ("Item", item)):
        message = file.message_type.add(name=name)
        for number, (field, kind, label) in fields.items():
            inner = ITEM if kind == F.TYPE_MESSAGE else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=inner)
    return base64.b64encode(file.SerializeToString()).decode()


def order_of(schema: str) -> Descriptor:
    return message_of_schema(schema, (), "shop.Order", "a schema")


@st.composite
def fields(draw: Any, kinds: list[int], count: int = 5) -> Any:
    numbers = draw(st.lists(st.integers(1, 40), min_size=1, max_size=count, unique=True))
    return {
        number: (
            f"f{number}",
            draw(st.sampled_from(kinds)),
            draw(st.sampled_from([ONE, ONE, MANY])),
        )
        for number in numbers
    }


@st.composite
def evolved(draw: Any, given_fields: Fields) -> Any:
    """Fields that a reader may have: renamed, of a kind with the same encoding, gone and new."""
    made: Fields = {}
    for number, (name, kind, label) in given_fields.items():
        how = draw(st.sampled_from(["same", "same", "kind", "gone", "many"]))
        if how == "kind" and kind != F.TYPE_MESSAGE:
            group = next(group for group in GROUPS if kind in group)
            kind = draw(st.sampled_from(group))
        if how != "gone":
            made[number] = (draw(st.sampled_from([name, f"r{number}"])), kind,
                            MANY if how == "many" else label)  # fmt: skip
    for number in draw(st.lists(st.integers(41, 50), max_size=2, unique=True)):
        made[number] = (
            f"n{number}",
            draw(st.sampled_from(KINDS)),
            draw(st.sampled_from([ONE, MANY])),
        )
    return made or {99: ("none", F.TYPE_INT32, ONE)}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_evolved_messages_read_what_protobuf_reads(data: Any) -> None:
    order = data.draw(fields([*KINDS, F.TYPE_MESSAGE]))
    item = data.draw(fields(KINDS, 3))
    writer = order_of(text(order, item))
    reader = order_of(text(data.draw(evolved(order)), data.draw(evolved(item))))
    check_reads(reader, writer)
    written = [
        message.SerializeToString() for message in data.draw(st.lists(values(writer), max_size=3))
    ]
    made = message_of(reader)
    found, errors = decode(made, Values.of(pa.array(written, pa.binary())), exact=False)
    rows = comparable(found)
    for at, content in enumerate(written):
        try:
            theirs = message_factory.GetMessageClass(reader).FromString(content)
        except DecodeError:  # bytes that are no text
            assert "text is not UTF-8" in str(errors[at].as_py())
            continue
        assert errors[at].as_py() is None
        assert rows[at] == expected(theirs)


CHANGES = [
    ((F.TYPE_INT32, ONE), (F.TYPE_SINT32, ONE), "number 1 is int32 for the writer, but sint32"),
    ((F.TYPE_STRING, ONE), (F.TYPE_INT64, ONE), "number 1 is string for the writer, but int64"),
    ((F.TYPE_FLOAT, ONE), (F.TYPE_FIXED32, ONE), "FIELD_KIND_CHANGED"),
    ((F.TYPE_MESSAGE, ONE), (F.TYPE_BYTES, ONE), "FIELD_KIND_CHANGED"),
    ((F.TYPE_INT32, MANY), (F.TYPE_INT32, ONE), "FIELD_LABEL_CHANGED"),
]


@pytest.mark.parametrize(("before", "now", "said"), CHANGES)
def test_a_field_with_another_encoding_is_refused(before: Any, now: Any, said: str) -> None:
    item: Fields = {1: ("x", F.TYPE_INT32, ONE)}
    sides: list[Fields] = [{1: ("a", *side)} for side in (now, before)]
    cases = [("field a", [text(changed, item) for changed in sides])]
    if F.TYPE_MESSAGE not in (before[0], now[0]):
        outer: Fields = {2: ("item", F.TYPE_MESSAGE, ONE)}
        cases.append(("field item.a", [text(outer, changed) for changed in sides]))
    for where, (reader, writer) in cases:
        with pytest.raises(InvalidFormat, match=said) as caught:
            check_reads(order_of(reader), order_of(writer))
        assert caught.value.value == where


def test_messages_are_found_by_their_indexes() -> None:
    plain: Fields = {1: ("x", F.TYPE_INT32, ONE)}
    schema = text(plain, plain, others=2)
    assert indexes_of(order_of(schema)) == (2,)
    assert message_at(schema, (), (3,)) == "shop.Item"
    with pytest.raises(InvalidFormat, match="no such message"):
        message_at(schema, (), (4,))
    with pytest.raises(InvalidFormat, match="no such message"):
        message_at(schema, (), (0, 0))
    content: list[bytes | None] = [b"\0\1", b"\2\4", b"\4\2\2", b"\2\4", b"\xff", b"", None]
    found = message_paths(Values.of(pa.array(content, pa.binary())))
    assert {path: rows.tolist() for path, rows in found} == {(0,): [0], (2,): [1, 3], (1, 1): [2]}


def test_a_text_that_is_no_descriptor_is_refused() -> None:
    for wrong in ("syntax = 'proto3';", "AAAA", base64.b64encode(b"\xff" * 9).decode()):
        with pytest.raises(InvalidFormat, match="is not a Protobuf descriptor in base64"):
            order_of(wrong)
    file = descriptor_pb2.FileDescriptorProto(package="shop", dependency=["missing.proto"])
    file.message_type.add(name="Order")
    with pytest.raises(InvalidFormat, match=r"missing\.proto"):
        order_of(base64.b64encode(file.SerializeToString()).decode())


def test_common_types_need_no_reference() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        package="shop", syntax="proto3", dependency=["google/type/money.proto"]
    )
    file.message_type.add(name="Order").field.add(
        name="price", number=1, type=F.TYPE_MESSAGE, label=ONE, type_name=".google.type.Money"
    )
    found = message_of(order_of(base64.b64encode(file.SerializeToString()).decode()))
    assert [field.name for field in found.fields] == ["price"]
