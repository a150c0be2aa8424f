"""A message with every kind of field, its own library as the oracle, and strategies of values."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from penstock.formats.protobuf import load_message

PROTO: Final = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";

enum Colour { NONE = 0; RED = 1; BLUE = 5; LOW = -3; }
message Inner { int32 a = 1; optional string b = 2; repeated sint64 c = 3; Deep deep = 4; }
message Deep { bytes x = 1; repeated string names = 2; }
message All {
  int32 i32 = 1; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6;
  fixed32 f32 = 7; fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10;
  float fl = 11; double db = 12; bool bo = 13; string st = 14; bytes by = 15; Colour co = 16;
  optional int64 oi = 17; optional string os = 18; optional Colour oc = 19;
  Inner inner = 20;
  repeated int32 ri = 21; repeated int64 ru = 22 [packed = false]; repeated double rd = 23;
  repeated string rs = 24; repeated Inner rm = 25; repeated Colour rc = 26; repeated bool rb = 27;
  map<string, int32> mi = 28; map<int32, Inner> mm = 29; map<string, Colour> mc = 30;
  oneof choice { int32 ci = 31; string cs = 32; Inner cm = 33; }
  google.protobuf.Timestamp at = 34; google.protobuf.Duration took = 35;
  google.protobuf.StringValue ws = 36; google.protobuf.UInt64Value wu = 37;
  fixed32 far = 536870911; repeated fixed64 rf = 38;
}
message Some { int32 i32 = 1; string st = 14; repeated Inner rm = 25; }
message Row {
  int64 id = 1; string customer = 2; double amount = 3; fixed64 at = 4; optional string note = 5;
  bool ok = 6;
}
"""
F = FieldDescriptor
TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
STRATEGIES: Final[dict[int, st.SearchStrategy[Any]]] = {
    F.TYPE_INT32: I32, F.TYPE_SINT32: I32, F.TYPE_SFIXED32: I32,
    F.TYPE_INT64: I64, F.TYPE_SINT64: I64, F.TYPE_SFIXED64: I64,
    F.TYPE_UINT32: U32, F.TYPE_FIXED32: U32, F.TYPE_UINT64: U64, F.TYPE_FIXED64: U64,
    F.TYPE_BOOL: st.booleans(), F.TYPE_STRING: TEXT, F.TYPE_BYTES: st.binary(max_size=6),
    F.TYPE_FLOAT: st.floats(allow_nan=False, width=32), F.TYPE_DOUBLE: st.floats(allow_nan=False),
    F.TYPE_ENUM: st.sampled_from([0, 1, 5, -3, 77]),
}  # fmt: skip


@lru_cache
def descriptor(directory: Path, name: str) -> Descriptor:
    path = directory / "shop.proto"
    path.write_text(PROTO)
    return load_message(path, b"", name)


def damaged(content: bytes, seed: int, count: int) -> list[bytes]:
    """Contents with one to three bytes changed, the same ones for a seed."""
    chance = random.Random(seed)
    made = []
    for _ in range(count if content else 0):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.choice(
                (0, 1, 127, 128, 255, chance.randrange(256))
            )
        made.append(bytes(changed))
    return made


@lru_cache
def values(of: Descriptor) -> st.SearchStrategy[Any]:
    """Messages of a type, as its own library makes them."""
    made = message_factory.GetMessageClass(of)
    return _fields(of).map(lambda fields: _made(made(), fields))


def _fields(of: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    if of.full_name == "google.protobuf.Timestamp":
        return st.fixed_dictionaries(
            {"seconds": st.integers(-10_000_000_000, 10_000_000_000),
             "nanos": st.integers(0, 999_999_999)}
        )  # fmt: skip
    if of.full_name == "google.protobuf.Duration":
        return st.fixed_dictionaries(
            {"seconds": st.integers(-1000, 1000), "nanos": st.just(0)}
        ) | st.fixed_dictionaries({"seconds": st.just(0), "nanos": st.integers(-999_999, 999_999)})
    return st.fixed_dictionaries({}, optional={field.name: _value(field) for field in of.fields})


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields
        return st.dictionaries(_value(key), _value(value), max_size=3)
    one = STRATEGIES[field.type] if inner is None else _fields(inner)
    return st.lists(one, max_size=4) if field.is_repeated else one


def _made(message: Any, fields: dict[str, Any]) -> Any:
    for name, value in fields.items():
        _put(message, message.DESCRIPTOR.fields_by_name[name], value)
    return message


def _put(message: Any, field: FieldDescriptor, value: Any) -> None:
    inner = field.message_type
    at = getattr(message, field.name)
    if inner is not None and inner.GetOptions().map_entry:
        for key, item in value.items():
            if inner.fields_by_name["value"].message_type is None:
                at[key] = item
            else:
                _made(at[key], item)
    elif field.is_repeated:
        for item in value:
            if inner is None:
                at.append(item)
            else:
                _made(at.add(), item)
    elif inner is None:
        setattr(message, field.name, value)
    else:
        at.SetInParent()
        _made(at, value)


def expected(message: Any) -> dict[str, Any]:
    """Return a message as Arrow does; times and intervals as microseconds."""
    return {field.name: _expected(message, field) for field in message.DESCRIPTOR.fields}


def _expected(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        of_key, of_value = inner.fields
        return {_one(of_key, key): _one(of_value, item) for key, item in value.items()}
    if field.is_repeated:
        return [_one(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.type == F.TYPE_ENUM:
        kind: Any = field.enum_type
        found = kind.values_by_number.get(value)
        return str(value) if found is None else found.name
    if field.type in (F.TYPE_UINT64, F.TYPE_FIXED64):
        return Decimal(value)
    if field.message_type is None:
        return value
    match field.message_type.full_name:
        case "google.protobuf.Timestamp" | "google.protobuf.Duration":
            return value.ToMicroseconds()
        case "google.protobuf.StringValue":
            return value.value
        case "google.protobuf.UInt64Value":
            return Decimal(value.value)
    return expected(value)


def comparable(column: pa.Array) -> list[Any]:
    """A decoded column as Python values in the form of `expected`.

    Damage makes times that Python's own type cannot hold, so they are numbers first.
    """
    names = [field.name for field in column.type]
    parts = [
        column.field(name).cast("int64") if name == "at" else column.field(name) for name in names
    ]
    made = pa.StructArray.from_arrays(parts, names=names, mask=column.is_null())
    return list(made.to_pylist(maps_as_pydicts="strict"))
