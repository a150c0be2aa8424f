"""Protobuf message type, made from a descriptor and checked once.

The columns of fields have these Spark types; other scalars have the type of the same name:

    int32, sint32, sfixed32                       int
    uint32, fixed32, int64, sint64, sfixed64      bigint
    uint64, fixed64                               decimal(20,0)
    enum                                          string: its name; the digits of an unknown number
    message, map, repeated                        struct, map, array
    google.protobuf.Timestamp                     timestamp
    google.protobuf.Duration                      bigint of microseconds: tables have no intervals
    google.protobuf.Int32Value, other wrappers    the wrapped value, or null

A missing field is null if its presence is known (messages, `optional`, members of a oneof, all of
proto2), and zero or empty otherwise. Groups and recursive messages are rejected.

Source: the Protocol Buffers guides "Encoding" and "Field Presence".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.formats.errors import InvalidFormat
from penstock.formats.limits import DEPTH_MAX

ScalarKind = Literal[
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum",
    "fixed32", "fixed64", "sfixed32", "sfixed64", "float", "double", "string", "bytes",
]  # fmt: skip
Special = Literal["timestamp", "duration", "wrapper"]

VARINT: Final = 0
FIXED64: Final = 1
SIZED: Final = 2
FIXED32: Final = 5
WIRE: Final[dict[str, int]] = {
    "fixed64": FIXED64, "sfixed64": FIXED64, "double": FIXED64,
    "fixed32": FIXED32, "sfixed32": FIXED32, "float": FIXED32,
    "string": SIZED, "bytes": SIZED,
}  # fmt: skip
_KINDS: Final[dict[int, ScalarKind]] = {
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_SINT32: "sint32",
    FieldDescriptor.TYPE_SINT64: "sint64",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
    FieldDescriptor.TYPE_SFIXED32: "sfixed32",
    FieldDescriptor.TYPE_SFIXED64: "sfixed64",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
}
_SPECIAL: Final[dict[str, Special]] = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
} | {
    f"google.protobuf.{name}Value": "wrapper"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}  # type: ignore[assignment]  # mypy widens the values of the comprehension


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """Scalar type. An enum has `numbers` in ascending order, and the `names` of these."""

    kind: ScalarKind
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def wire(self) -> int:
        return WIRE.get(self.kind, VARINT)

    @property
    def packable(self) -> bool:
        return self.wire != SIZED


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Message type; `special` is a well-known type that becomes one value instead of a struct."""

    fields: tuple[Field, ...]
    special: Special | None = None

    @property
    def wire(self) -> int:
        return SIZED


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Field of a message. With `presence`, a missing field is null. `oneof` names its group."""

    name: str
    number: int
    holds: Scalar | Message
    repeated: bool = False
    is_map: bool = False
    presence: bool = False
    oneof: str | None = None


def message_of(descriptor: Descriptor) -> Message:
    """Return the message type of a descriptor.

    Raises:
        InvalidFormat: a message has a group, is recursive, has no fields, or nests too deep.
    """
    return _message(descriptor, "", ())


def _message(descriptor: Descriptor, where: str, above: tuple[str, ...]) -> Message:
    full = descriptor.full_name
    if full in above:
        raise _refused(where, f"has message {full} within itself, but columns cannot be recursive")
    if len(above) >= DEPTH_MAX:
        raise _refused(where, f"nests deeper than {DEPTH_MAX} levels")
    if not descriptor.fields:
        raise _refused(where or full, f"message {full} has no fields, which no column can hold")
    special = _SPECIAL.get(full)
    return Message(
        fields=tuple(
            _field(field, f"{where}.{field.name}" if where else field.name, (*above, full))
            for field in descriptor.fields
        ),
        special=special,
    )


def _field(field: FieldDescriptor, where: str, above: tuple[str, ...]) -> Field:
    if field.type == FieldDescriptor.TYPE_GROUP:
        raise _refused(where, "is a group; groups are not supported")
    inner = field.message_type
    is_map = inner is not None and inner.GetOptions().map_entry
    oneof = field.containing_oneof
    return Field(
        name=field.name,
        number=field.number,
        holds=_scalar(field) if inner is None else _message(inner, where, above),
        repeated=field.is_repeated,
        is_map=is_map,
        presence=field.has_presence,
        oneof=None if oneof is None else oneof.name,
    )


def _scalar(field: FieldDescriptor) -> Scalar:
    kind = _KINDS[field.type]
    if field.enum_type is None:
        return Scalar(kind=kind)
    # If a number has several names, the first one is used.
    names = {value.number: value.name for value in reversed(field.enum_type.values)}
    numbers = tuple(sorted(names))
    return Scalar(kind=kind, names=tuple(names[number] for number in numbers), numbers=numbers)


def _refused(where: str, reason: str) -> InvalidFormat:
    return InvalidFormat("schema_file", f"field {where}", reason)
