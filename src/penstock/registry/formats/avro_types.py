"""Types of an Avro schema as a graph.

A named type that is used several times is one shared node; a recursive type contains itself. Each
node keeps its part of the JSON document in `source`, for documentation and custom properties.

Source: the Avro 1.12 specification, "Schema Declaration".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from penstock.registry.formats.json_text import shown

PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    kind: str
    source: Any


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    item: Node
    source: Any
    kind: ClassVar[str] = "array"


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    value: Node
    source: Any
    kind: ClassVar[str] = "map"


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    branches: tuple[Node, ...]
    source: Any
    kind: ClassVar[str] = "union"


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    name: str
    aliases: tuple[str, ...]
    size_bytes: int
    source: Any
    kind: ClassVar[str] = "fixed"


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None
    source: Any
    kind: ClassVar[str] = "enum"


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Field of a record. Aliases of fields are plain names."""

    name: str
    aliases: tuple[str, ...]
    node: Node
    source: Any

    @property
    def has_default(self) -> bool:
        return "default" in self.source


@dataclass(slots=True, eq=False)
class Record:
    """Record or error; `fields` is filled while the record is parsed, and `complete` set last."""

    name: str
    aliases: tuple[str, ...]
    source: Any
    fields: dict[str, Field] = field(default_factory=dict)
    complete: bool = False
    kind: ClassVar[str] = "record"


Named = Record | Enum | Fixed
Node = Primitive | Array | Map | Union | Record | Enum | Fixed


def simple_name(full: str) -> str:
    return full.rpartition(".")[2]


def namespace(full: str) -> str:
    return full.rpartition(".")[0]


def namespace_joined(space: str, name: str) -> str:
    return f"{space}.{name}" if space else name


def union_key(node: Node) -> str:
    """Return the full name of a type, which must be unique in a union."""
    return node.name if isinstance(node, Record | Enum | Fixed) else node.kind


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the types of which a type consists."""
    match node:
        case Array(item=part) | Map(value=part):
            return (part,)
        case Union(branches=branches):
            return branches
        case Record(fields=fields):
            return tuple(field.node for field in fields.values())
    return ()


def describe(node: Node) -> str:
    """Return a type for an error message."""
    match node:
        case Union(branches=branches):
            return f"[{shown(', '.join(union_key(branch) for branch in branches[:10]))}]"
        case Record() | Enum() | Fixed():
            return f"{node.kind} {shown(node.name)}"
    return node.kind
