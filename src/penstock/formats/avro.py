"""Avro schemas as trees of nodes, and the columns of their values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

import pyarrow as pa

from penstock.base.errors import BugError
from penstock.formats.columns import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    column_of,
    enum_of,
    list_of,
    map_of,
    struct_of,
)
from penstock.formats.value_format import DEPTH_MAX, InvalidFormat

# A named type that is used several times is one shared node. The type of a column has a fixed depth
# and at least one field, so recursive types and records without fields are rejected, except in
# schemas of writers. Arrays of items without bytes (null, or records of nulls) are rejected too,
# because a few bytes could then encode any number of items.
#
# Source: the Avro 1.12 specification, "Schema Declaration" and "Logical Types".


PrimitiveKind = Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PRIMITIVES: Final[frozenset[str]] = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "date": frozenset({"int"}),
    "timestamp-millis": frozenset({"long"}),
    "timestamp-micros": frozenset({"long"}),
    "local-timestamp-millis": frozenset({"long"}),
    "local-timestamp-micros": frozenset({"long"}),
    "time-millis": frozenset({"int"}),
    "time-micros": frozenset({"long"}),
    "timestamp-nanos": frozenset({"long"}),
    "local-timestamp-nanos": frozenset({"long"}),
    "uuid": frozenset({"fixed"}),
}
"""Logical types of numbers and of UUIDs, with the Avro types that they may annotate.

Times of a day and nanoseconds stay numbers, as in Spark's own reader. `uuid` on a string stays a
string. Decimals are parsed by `_decimal`. Unknown logical types are ignored, as the specification
requires.
"""
DECIMAL_DIGITS_MAX: Final = 38
FIXED_BYTES_MAX: Final = 1 << 20
NODES_MAX: Final = 20_000
"""Most nodes of a schema, counting a named type at each of its uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    kind: PrimitiveKind
    logical: str | None = None


NULL: Final = Primitive(kind="null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    size_bytes: int
    logical: str | None = None
    name: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal:
    """Decimal, stored as a `fixed` of `size_bytes`, or as `bytes` if that is None."""

    precision: int
    scale: int
    size_bytes: int | None
    name: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enum:
    symbols: tuple[str, ...]
    default: str | None = None
    name: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    item: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Map with string keys."""

    value: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Field of a record. `default` is a JSON text; aliases of fields are plain names."""

    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record. The names of types, and their aliases, are full names."""

    fields: tuple[Field, ...]
    name: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Use of a record within itself, in the schema of a writer."""

    name: str


Node = Primitive | Fixed | Decimal | Enum | Items | Named | Record | Union | Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSchema:
    """Schema of a writer, with its records by name."""

    root: Node
    records: Mapping[str, Record]


def parse(document: Any, dependencies: Sequence[Any] = ()) -> Record:
    """Return the node of a schema document, which must describe a record.

    `dependencies` are the documents of referenced schemas. Each precedes those that refer to it.

    Raises:
        InvalidFormat: the schema is malformed, not a record, or not supported.
    """
    node = _parser(dependencies, recursive=False).node(document, "", "", 0)
    if not isinstance(node, Record):
        raise InvalidFormat("schema_file", _kind(document), "the schema must be a record")
    return node


def parse_writer(document: Any, dependencies: Sequence[Any] = ()) -> WriterSchema:
    """Return the schema of a writer, which may have any type, also a recursive one.

    Raises:
        InvalidFormat: the schema is malformed or not supported.
    """
    parser = _parser(dependencies, recursive=True)
    root = parser.node(document, "", "", 0)
    return WriterSchema(root=root, records=parser.records())


def _parser(dependencies: Sequence[Any], *, recursive: bool) -> _Parser:
    parser = _Parser(recursive=recursive)
    for number, document in enumerate(dependencies):
        if document not in dependencies[:number]:
            parser.node(document, "", "", 0)
    return parser


def size_min(node: Node) -> int:
    """Return a lower bound of a value's encoded size in bytes, to limit the counts of items."""
    fixed = size_fixed(node)
    if fixed is not None:
        return fixed
    match node:
        case Primitive(kind="null"):
            return 0
        case Record(fields=fields):
            return sum(size_min(field.node) for field in fields)
    return 1


def size_fixed(node: Node) -> int | None:
    """Return the encoded size in bytes if it is the same for all values; else None.

    Types with parts (records, arrays, maps, unions) have no fixed size here.
    """
    match node:
        case Primitive(kind="boolean"):
            return 1
        case Primitive(kind="float"):
            return 4
        case Primitive(kind="double"):
            return 8
        case Fixed(size_bytes=size) | Decimal(size_bytes=int(size)):
            return size
    return None


def _kind(document: Any) -> str:
    return str(document.get("type")) if isinstance(document, dict) else str(document)


class _Parser:
    def __init__(self, *, recursive: bool) -> None:
        self._recursive = recursive
        self._named: dict[str, Node | None] = {}
        self._sizes: dict[str, int] = {}
        self._count = 0

    def records(self) -> dict[str, Record]:
        return {name: node for name, node in self._named.items() if isinstance(node, Record)}

    def node(self, document: Any, where: str, space: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise _refused(where, f"nests deeper than {DEPTH_MAX} levels")
        self._add(1, where)
        if isinstance(document, str):
            return self._by_name(document, where, space)
        if isinstance(document, list):
            return self._union(document, where, space, depth)
        if not isinstance(document, dict) or "type" not in document:
            raise _refused(where, "must be a schema: an object with a type, a name, or a list")
        return self._complex(document, where, space, depth)

    def _add(self, nodes: int, where: str) -> None:
        self._count += nodes
        if self._count > NODES_MAX:
            raise _refused(where, f"makes the schema larger than {NODES_MAX} types and fields")

    def _by_name(self, name: str, where: str, space: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(kind=cast("PrimitiveKind", name))
        full = name if "." in name or not space else f"{space}.{name}"
        found = full if full in self._named else name
        if found not in self._named:
            raise _refused(where, f"names the type {name!r}, which is not defined before it")
        node = self._named[found]
        if node is None and self._recursive:
            return Reference(name=found)
        if node is None:
            raise _refused(
                where, f"uses the type {name!r} within itself, but columns cannot be recursive"
            )
        self._add(self._sizes[found], where)
        return node

    def _union(self, document: list[Any], where: str, space: str, depth: int) -> Node:
        if not document:
            raise _refused(where, "is a union without branches")
        if any(isinstance(branch, list) for branch in document):
            raise _refused(where, "is a union within a union")
        branches = tuple(self.node(branch, where, space, depth + 1) for branch in document)
        nulls = [branch for branch in branches if branch == NULL]
        if len(nulls) > 1:
            raise _refused(where, "is a union with null twice")
        return Union(branches=branches)

    def _complex(self, document: dict[str, Any], where: str, space: str, depth: int) -> Node:
        match document["type"]:
            case "record" | "error":
                return self._record(document, where, space, depth)
            case "enum" | "fixed":
                return self._define(document, where, space)
            case "array":
                return Items(item=self._part(document, "items", where, space, depth))
            case "map":
                return Named(value=self._part(document, "values", where, space, depth))
            case str() as kind if kind in PRIMITIVES:
                return _primitive(cast("PrimitiveKind", kind), document, where)
            case inner:
                return self.node(inner, where, space, depth + 1)

    def _part(self, document: dict[str, Any], key: str, where: str, space: str, depth: int) -> Node:
        if key not in document:
            raise _refused(where, f"has no {key!r}")
        mark = "[]" if key == "items" else "{}"
        node = self.node(document[key], f"{where}{mark}", space, depth + 1)
        if key == "items" and size_min(node) == 0:
            raise _refused(where, "is an array of items that take no bytes")
        return node

    def _record(self, document: dict[str, Any], where: str, space: str, depth: int) -> Node:
        full = self._open(document, where, space)
        before = self._count
        fields = document.get("fields")
        if not isinstance(fields, list) or not (fields or self._recursive):
            raise _refused(where or full, "is a record without fields")
        inner = full.rpartition(".")[0]
        made: dict[str, Field] = {}
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise _refused(where or full, "has a field without a name")
            name = field["name"]
            at = f"{where}.{name}" if where else name
            if name in made:
                raise _refused(at, "comes twice")
            if "type" not in field:
                raise _refused(at, "has no type")
            made[name] = Field(
                name=name,
                node=self.node(field["type"], at, inner, depth + 1),
                aliases=_aliases(field, at),
                default=json.dumps(field["default"]) if "default" in field else None,
            )
        record = Record(
            fields=tuple(made.values()), name=full, aliases=_full_aliases(document, where, full)
        )
        self._named[full] = record
        self._sizes[full] = self._count - before
        return record

    def _define(self, document: dict[str, Any], where: str, space: str) -> Node:
        full = self._open(document, where, space)
        make = _enum if document["type"] == "enum" else _fixed
        node = make(document, where, full, _full_aliases(document, where, full))
        self._named[full] = node
        self._sizes[full] = 1
        return node

    def _open(self, document: dict[str, Any], where: str, space: str) -> str:
        full = _full_name(document, where, space)
        if full in self._named:
            raise _refused(where or full, f"defines the type {full!r} a second time")
        self._named[full] = None
        return full


def _aliases(document: dict[str, Any], where: str) -> tuple[str, ...]:
    aliases = document.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise _refused(where, "has aliases that are not a list of names")
    return tuple(aliases)


def _full_aliases(document: dict[str, Any], where: str, full: str) -> tuple[str, ...]:
    space = full.rpartition(".")[0]
    return tuple(
        alias.lstrip(".") if "." in alias or not space else f"{space}.{alias}"
        for alias in _aliases(document, where)
    )


def _full_name(document: dict[str, Any], where: str, space: str) -> str:
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise _refused(where, f"is of type {document['type']}, but has no name")
    if "." in name:
        return name
    own = document.get("namespace", space)
    return f"{own}.{name}" if own else name


def _enum(document: dict[str, Any], where: str, name: str, aliases: tuple[str, ...]) -> Enum:
    symbols = document.get("symbols")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(s, str) for s in symbols):
        raise _refused(where, "is an enum without a list of symbols")
    if len(set(symbols)) != len(symbols):
        raise _refused(where, "is an enum with a symbol twice")
    default = document.get("default")
    known = default if default in symbols else None
    return Enum(symbols=tuple(symbols), default=known, name=name, aliases=aliases)


def _fixed(document: dict[str, Any], where: str, name: str, aliases: tuple[str, ...]) -> Node:
    size = document.get("size")
    if type(size) is not int or not 0 < size <= FIXED_BYTES_MAX:
        raise _refused(where, f"is a fixed of size {size!r}, must be from 1 to {FIXED_BYTES_MAX}")
    logical = document.get("logicalType")
    if logical == "decimal":
        return replace(_decimal(document, where, size), name=name, aliases=aliases)
    known = logical if logical == "uuid" and size == 16 else None
    return Fixed(size_bytes=size, logical=known, name=name, aliases=aliases)


def _primitive(kind: PrimitiveKind, document: dict[str, Any], where: str) -> Node:
    logical = document.get("logicalType")
    if logical == "decimal" and kind == "bytes":
        return _decimal(document, where, None)
    known = isinstance(logical, str) and kind in LOGICAL.get(logical, frozenset())
    return Primitive(kind=kind, logical=logical if known else None)


def _decimal(document: dict[str, Any], where: str, size: int | None) -> Decimal:
    precision, scale = document.get("precision"), document.get("scale", 0)
    if type(precision) is not int or not 0 < precision <= DECIMAL_DIGITS_MAX:
        raise _refused(
            where,
            f"is a decimal of precision {precision!r}, must be from 1 to {DECIMAL_DIGITS_MAX}",
        )
    if type(scale) is not int or not 0 <= scale <= precision:
        raise _refused(where, f"is a decimal of scale {scale!r}, must be from 0 to {precision}")
    return Decimal(precision=precision, scale=scale, size_bytes=size)


def _refused(where: str, reason: str) -> InvalidFormat:
    return InvalidFormat("schema_file", f"field {where}" if where else "the schema", reason)


_TYPES: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
    "date": pa.date32(), "timestamp-millis": TIMESTAMP, "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": TIMESTAMP_NTZ, "local-timestamp-micros": TIMESTAMP_NTZ,
    "time-millis": pa.int32(), "time-micros": pa.int64(), "timestamp-nanos": pa.int64(),
    "local-timestamp-nanos": pa.int64(),
}  # fmt: skip
LONG: Final = Primitive(kind="long")
DOUBLE: Final = Primitive(kind="double")


def column_of_schema(node: Node) -> Column:
    match node:
        case Primitive(kind=kind, logical=logical):
            return column_of(_TYPES[logical or kind])
        case Fixed(logical=logical):
            return column_of(pa.binary() if logical is None else pa.string())
        case Decimal(precision=precision, scale=scale):
            return column_of(pa.decimal128(precision, scale))
        case Enum(symbols=symbols):
            return enum_of(symbols)
        case Items(item=item):
            return list_of(column_of_schema(item))
        case Named(value=value):
            return map_of(column_of(pa.string()), column_of_schema(value))
        case Record(fields=fields):
            return struct_of([(field.name, column_of_schema(field.node)) for field in fields])
        case Union():
            return _union_column(node)
        case Reference(name=name):
            raise BugError(f"type {name} is recursive, and has no column")


def _union_column(node: Union) -> Column:
    branches = valued(node)
    if not branches:
        return column_of(pa.null())
    plain = plain_union(branches)
    if plain is not None:
        return column_of_schema(plain)
    if len(branches) == 1:
        return column_of_schema(branches[0])
    return struct_of(
        [(f"member{number}", column_of_schema(part)) for number, part in enumerate(branches)]
    )


def valued(node: Union) -> list[Node]:
    """Return the branches of a union that are not null."""
    return [branch for branch in node.branches if branch != NULL]


def plain_union(branches: list[Node]) -> Primitive | None:
    """Return the number type of a union of int and long, or of float and double; else None.

    Spark's own reader uses the same types.
    """
    kinds = {_number_kind(branch) for branch in branches}
    if len(branches) < 2:
        return None
    if kinds <= {"int", "long"}:
        return LONG
    return DOUBLE if kinds <= {"float", "double"} else None


def _number_kind(node: Node) -> str | None:
    """Return the kind of a number whose column has the type of this kind; else None."""
    if not isinstance(node, Primitive) or _TYPES[node.logical or node.kind] != _TYPES[node.kind]:
        return None
    return node.kind
