"""Decoder of Protobuf's wire format into columns, without Spark."""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from penstock.formats.columns import (
    TIMESTAMP,
    Column,
    column_of,
    enum_of,
    list_of,
    map_of,
    struct_of,
)
from penstock.formats.value_format import COMPILED, DEPTH_MAX, InvalidFormat

# Protobuf message type, made from a descriptor and checked once.
#
# The columns of fields have these Spark types; other scalars have the type of the same name:
#
#    int32, sint32, sfixed32                       int
#    uint32, fixed32, int64, sint64, sfixed64      bigint
#    uint64, fixed64                               decimal(20,0)
#    enum                                          string: its name; the digits of an unknown number
#    message, map, repeated                        struct, map, array
#    google.protobuf.Timestamp                     timestamp
#    google.protobuf.Duration                      bigint of microseconds: tables have no intervals
#    google.protobuf.Int32Value, other wrappers    the wrapped value, or null
#
# A missing field is null if its presence is known (messages, `optional`, members of a oneof, all of
# proto2), and zero or empty otherwise. Groups and recursive messages are rejected.
#
# Source: the Protocol Buffers guides "Encoding" and "Field Presence".


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


_UINT64: Final = pa.decimal128(20, 0)
_TYPES: Final = {
    "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(),
    "uint32": pa.int64(), "fixed32": pa.int64(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(),
    "uint64": _UINT64, "fixed64": _UINT64,
    "bool": pa.bool_(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
_SPECIAL_TYPES: Final = {"timestamp": TIMESTAMP, "duration": pa.int64()}


def column_of_message(message: Message) -> Column:
    """Return the column of a message; a time's parts are its seconds and nanoseconds."""
    parts = [(field.name, column_of_field(field)) for field in message.fields]
    if message.special is None:
        return struct_of(parts)
    columns = tuple(column for _, column in parts)
    if message.special == "wrapper":
        return Column(type=columns[0].type, parts=columns)
    return Column(type=_SPECIAL_TYPES[message.special], parts=columns)


def column_of_field(field: Field) -> Column:
    if field.is_map and isinstance(field.holds, Message):
        key, value = field.holds.fields
        return map_of(_held(key), _held(value))
    return list_of(_held(field)) if field.repeated else _held(field)


def _held(field: Field) -> Column:
    holds = field.holds
    if isinstance(holds, Message):
        return column_of_message(holds)
    return _enum(holds) if holds.kind == "enum" else column_of(_TYPES[holds.kind])


def _enum(scalar: Scalar) -> Column:
    return enum_of(scalar.names, scalar.numbers)


# Loader of message descriptors from Protobuf schema files.
#
# A compiled descriptor set (`protoc --include_imports --descriptor_set_out`) is parsed. A `.proto`
# file is compiled first, by the compiler of the package grpcio-tools; its imports are searched in
# its own directory.


_WELL_KNOWN: Final = (
    "any", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "wrappers",
    "type", "api", "descriptor",
)  # fmt: skip


def load_message(path: Path, content: bytes, name: str | None) -> Descriptor:
    """Return the descriptor of the message with the full name `name`.

    If `name` is None, the file must define exactly one top-level message.

    Raises:
        InvalidFormat: the file does not compile, or has no such message.
    """
    if path.suffix == ".proto":
        content = _compiled(path)
    elif path.suffix not in COMPILED:
        raise InvalidFormat(
            "schema_file", path, f"must end in .proto or one of {', '.join(sorted(COMPILED))}"
        )
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(content)
    except DecodeError as error:
        raise InvalidFormat("schema_file", path, "is not a compiled descriptor set") from error
    try:
        pool = pool_of(files)
    except TypeError as error:
        raise InvalidFormat(
            "schema_file", path, f"cannot be loaded ({error}); compile it with --include_imports"
        ) from error
    return message_in(pool, files, name, path.name)


def message_in(
    pool: DescriptorPool, files: descriptor_pb2.FileDescriptorSet, name: str | None, where: str
) -> Descriptor:
    """Return a message's descriptor; without a name, that of the last file's only message.

    Raises:
        InvalidFormat: there is no such message, or the last file has several.
    """
    names = _messages(files)
    if name is None:
        name = _only(where, files)
    if name not in names:
        known = ", ".join(sorted(names)[:20]) or "none"
        raise InvalidFormat("message", name, f"is not in {where}, which has: {known}")
    return pool.FindMessageTypeByName(name)


def pool_of(files: descriptor_pb2.FileDescriptorSet) -> DescriptorPool:
    """Return a pool with `files`, each of which follows its imports, and with Protobuf's own files.

    Raises:
        TypeError: a file is invalid, or imports a file that is missing.
    """
    pool = DescriptorPool()
    there = {file.name for file in files.file}
    for short in _WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{short}_pb2")
        own = module.DESCRIPTOR
        if own.name not in there:
            pool.AddSerializedFile(own.serialized_pb)
    for file in files.file:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise TypeError(f"{file.name}: {error}") from error
    return pool


def _messages(files: descriptor_pb2.FileDescriptorSet) -> set[str]:
    names: set[str] = set()
    for file in files.file:
        waiting = [(file.package, message) for message in file.message_type]
        while waiting:
            above, message = waiting.pop()
            full = f"{above}.{message.name}" if above else message.name
            names.add(full)
            waiting += [(full, inner) for inner in message.nested_type]
    return names


def _only(where: str, files: descriptor_pb2.FileDescriptorSet) -> str:
    last = files.file[-1] if files.file else descriptor_pb2.FileDescriptorProto()
    names = [
        f"{last.package}.{message.name}" if last.package else message.name
        for message in last.message_type
    ]
    if len(names) != 1:
        raise InvalidFormat(
            "message", "", f"is required: {where} has {', '.join(names) or 'no messages'}"
        )
    return names[0]


def _compiled(path: Path) -> bytes:
    try:
        protoc: Any = importlib.import_module("grpc_tools.protoc")
        tools: Any = importlib.import_module("grpc_tools")
    except ImportError as error:
        raise InvalidFormat(
            "schema_file", path,
            "needs the package grpcio-tools to be compiled: pip install 'penstock[pipelines]', or "
            "give a descriptor set made by protoc --include_imports --descriptor_set_out",
        ) from error  # fmt: skip
    here = path.resolve()
    well_known = Path(tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "schema.binpb"
        arguments = [
            "protoc", f"-I{here.parent}", f"-I{well_known}", "--include_imports",
            f"--descriptor_set_out={made}", str(here),
        ]  # fmt: skip
        if protoc.main(arguments) != 0:
            raise InvalidFormat(
                "schema_file", path, "does not compile; the compiler's messages are above"
            )
        return made.read_bytes()


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """Return the positions of a message and its parents in their file, outermost first."""
    indexes: list[int] = []
    current: Descriptor | None = message
    while current is not None:
        above = current.containing_type
        siblings = (
            list(current.file.message_types_by_name.values())
            if above is None
            else list(above.nested_types)
        )
        indexes.append([sibling.full_name for sibling in siblings].index(current.full_name))
        current = above
    return tuple(reversed(indexes))
