"""Orders and nested values in Avro and Protobuf, with their readers, for `value_formats.py`."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor

from penstock.formats import ValueFormat
from penstock.formats.protobuf import load_message
from penstock.formats.readers import Reader, avro_reader, protobuf_reader

_AT: Final = {"type": "long", "logicalType": "timestamp-millis"}
_ORDER: Final = {"id": "long", "customer": "string", "amount": "double", "at": _AT, "count": "int"}
_PRICE: Final = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
_NESTED: Final = {
    "id": "long", "note": ["null", "string"], "vip": "boolean", "price": _PRICE,
    "tags": {"type": "array", "items": "string"}, "counts": {"type": "map", "values": "long"},
    "chosen": ["null", "long", "string"],
}  # fmt: skip
_PROTO: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; string customer = 2; double amount = 3; fixed64 at = 4;
                int32 count = 5; }
message Timed { int64 id = 1; string customer = 2; double amount = 3;
                google.protobuf.Timestamp at = 4; int32 count = 5; }
message Buyer { string name = 1; bool vip = 2; }
message Nested { int64 id = 1; optional string note = 2; Buyer buyer = 3; repeated string tags = 4;
                 map<string, int64> counts = 5; oneof chosen { int64 whole = 6; string text = 7; }
                 repeated int32 sizes = 8; }
"""
_SINCE_MS: Final = 1_767_225_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values and what reads them; `parse` makes one an object, where a library is at hand."""

    name: str
    reader: Reader
    values: list[bytes]
    parse: Callable[[bytes], object] | None = None


def binary_values(rows: int) -> Iterator[Values]:
    dice = random.Random(7)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        yield Values(
            name="Avro, orders", reader=_avro(folder, _ORDER),
            values=[_avro_order(dice, number) for number in range(rows)],
        )  # fmt: skip
        yield Values(
            name="Avro, nested", reader=_avro(folder, _NESTED),
            values=[_avro_nested(dice, number) for number in range(rows)],
        )  # fmt: skip
        path = folder / "orders.proto"
        path.write_text(_PROTO)
        for name, fill in (("Order", _order), ("Timed", _timed), ("Nested", _nested)):
            made: Any = message_factory.GetMessageClass(_descriptor(path, name))
            settings = ValueFormat(kind="protobuf", schema_file=path, message=name)
            yield Values(
                name=f"Protobuf, {_NAMES[name]}", reader=protobuf_reader(settings),
                values=[fill(made(), dice, number) for number in range(rows)],
                parse=made.FromString,
            )  # fmt: skip


_NAMES: Final = {"Order": "orders", "Timed": "orders with a Timestamp", "Nested": "nested"}


def _descriptor(path: Path, name: str) -> Descriptor:
    return load_message(path, b"", name)


def _avro(folder: Path, fields: dict[str, Any]) -> Reader:
    path = folder / "schema.avsc"
    parts = [{"name": name, "type": kind} for name, kind in fields.items()]
    path.write_text(json.dumps({"type": "record", "name": "Value", "fields": parts}))
    return avro_reader(ValueFormat(kind="avro", schema_file=path))


def _text(dice: random.Random, size: int) -> str:
    return "".join(dice.choices("abcdefghijklmnopqrstuvwxyz ", k=size))


def _long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _sized(content: str | bytes) -> bytes:
    held = content.encode() if isinstance(content, str) else content
    return _long(len(held)) + held


def _block(items: list[bytes]) -> bytes:
    return (_long(len(items)) if items else b"") + b"".join(items) + _long(0)


def _avro_order(dice: random.Random, number: int) -> bytes:
    return (
        _long(number * 1_000_003) + _sized(_text(dice, dice.randint(55, 85)))
        + struct.pack("<d", dice.random()) + _long(_SINCE_MS + number) + _long(dice.randrange(1000))
    )  # fmt: skip


def _avro_nested(dice: random.Random, number: int) -> bytes:
    chosen = (_long(0), _long(1) + _long(number), _long(2) + _sized(_text(dice, 6)))[number % 3]
    counts = [_sized(_text(dice, 5)) + _long(number) for _ in range(dice.randint(0, 3))]
    return (
        _long(number) + (_long(1) + _sized(_text(dice, 10)) if number % 3 else _long(0))
        + bytes([number % 2]) + _sized(number.to_bytes(4, "big"))
        + _block([_sized(_text(dice, 8)) for _ in range(dice.randint(0, 4))])
        + _block(counts) + chosen
    )  # fmt: skip


def _order(message: Any, dice: random.Random, number: int) -> bytes:
    message.id, message.customer = number * 1_000_003, _text(dice, dice.randint(55, 85))
    message.amount, message.at = dice.random(), _SINCE_MS + number
    message.count = dice.randrange(1000)
    return bytes(message.SerializeToString())


def _timed(message: Any, dice: random.Random, number: int) -> bytes:
    message.id, message.customer = number * 1_000_003, _text(dice, dice.randint(55, 85))
    message.amount, message.count = dice.random(), dice.randrange(1000)
    message.at.FromMilliseconds(_SINCE_MS + number)
    return bytes(message.SerializeToString())


def _nested(message: Any, dice: random.Random, number: int) -> bytes:
    message.id, message.buyer.name, message.buyer.vip = number, _text(dice, 12), number % 2 == 0
    message.tags.extend(_text(dice, 8) for _ in range(dice.randint(0, 4)))
    message.sizes.extend((1, 2, 300))
    for _ in range(dice.randint(0, 3)):
        message.counts[_text(dice, 5)] = number
    if number % 3:
        message.note = _text(dice, 10)
        message.whole = number
    else:
        message.text = _text(dice, 6)
    return bytes(message.SerializeToString())
