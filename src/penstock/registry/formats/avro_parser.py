"""Parser of Avro schemas, which checks a JSON document and returns its types.

The parser accepts the schemas of the specification, with these details of Avro's Java library:
`{"type": "shop.Money"}` is a reference, and invalid logical types are ignored. Unlike version 1.12
of that library, it rejects references to later definitions and repeated definitions.

Source: the Avro 1.12 specification, "Names" and "Complex Types".
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.registry.formats.avro_defaults import matches_field, zero_default
from penstock.registry.formats.avro_types import (
    PRIMITIVES,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    describe,
    namespace,
    namespace_joined,
    simple_name,
    union_key,
)
from penstock.registry.formats.json_text import read_json, shown, shown_json
from penstock.registry.formats.schema import DEPTH_MAX, TYPES_MAX, InvalidSchema

JSON_DEPTH_MAX: Final = 3 * DEPTH_MAX + 8
"""Deepest nesting of JSON: an object, its list of fields and a field for each record."""
NAME_LENGTH_MAX: Final = 512
"""Longest full name in characters."""
FIXED_BYTES_MAX: Final = (1 << 31) - 9
"""Largest size of a fixed type: the longest array of Java."""
ORDERS: Final = frozenset(("ascending", "descending", "ignore"))
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Scope:
    """Named types that a document may refer to, with the number of their nodes.

    Attributes:
        heights: nesting depth of each complete named type.
    """

    named: Mapping[str, Named] = field(default_factory=dict)
    heights: Mapping[str, int] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Mend:
    """Repairs that the parser makes in a document instead of rejecting it.

    Attributes:
        definitions: types that the parser writes at their first use if they are not defined.
        renames: new full names of named types.
    """

    definitions: Mapping[str, Any] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Parsed document.

    Attributes:
        holder: list with the JSON document as its only item.
        scope: the types of the dependencies and of this document.
        own: full names that this document defines.
    """

    root: Node
    holder: list[Any]
    scope: Scope
    own: frozenset[str]


def parse_text(text: str, scope: Scope) -> Document:
    """Return the types of a schema's text, which may refer to the types of `scope`.

    Raises:
        InvalidSchema: the text is not a valid Avro schema.
    """
    return parse_document(read_json(text, depth_max=JSON_DEPTH_MAX, exact=False), scope)


def parse_document(document: Any, scope: Scope, mend: Mend | None = None) -> Document:
    """Return the types of a document, which may refer to the types of `scope`.

    With `mend`, the parser changes the document: it writes missing definitions, replaces repeated
    definitions by references and invalid defaults by valid ones, and renames types.

    Raises:
        InvalidSchema: the document is not a valid Avro schema.
    """
    parser = _Parser(scope, mend)
    holder = [document]
    root = parser.node(holder, 0, "", 0)
    parsed = Scope(named=parser.named, heights=parser.heights, count=parser.count)
    return Document(root, holder, parsed, frozenset(parser.named.keys() - scope.named.keys()))


class _Parser:
    def __init__(self, scope: Scope, mend: Mend | None) -> None:
        self.named: dict[str, Named] = dict(scope.named)
        self.heights: dict[str, int] = dict(scope.heights)
        self.count = scope.count
        self._mend = mend
        self._path: list[str | int] = []
        self._deepest = 0

    def node(self, holder: Any, key: str | int, space: str, depth: int) -> Node:
        """Return the type at `holder[key]` in a namespace."""
        self._path.append(key)
        self._count()
        self._reach(depth)
        document = holder[key]
        node: Node
        if isinstance(document, str):
            if document in PRIMITIVES:
                node = Primitive(document, document)
            else:
                node = self._reference(holder, key, document, space, depth)
        elif isinstance(document, list):
            node = self._union(document, space, depth)
        elif isinstance(document, dict):
            node = self._object(holder, key, document, space, depth)
        else:
            raise self._invalid(
                f"{shown_json(document)} is not a type; a type is a name, an object or a list"
            )
        self._path.pop()
        return node

    def _count(self, number: int = 1) -> None:
        self.count += number
        if self.count > TYPES_MAX:
            raise self._invalid(
                "the schema and its references have more than"
                f" {TYPES_MAX} types, fields, symbols and branches"
            )

    def _reach(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._invalid(f"types nest deeper than {DEPTH_MAX} levels")
        self._deepest = max(self._deepest, depth)

    def _invalid(self, reason: str) -> InvalidSchema:
        pointer = "/".join(str(part) for part in self._path[1:])
        return InvalidSchema(f"The Avro schema is invalid at /{shown(pointer)}: {reason}.")

    def _reference(self, holder: Any, key: str | int, name: str, space: str, depth: int) -> Node:
        full = name if "." in name else namespace_joined(space, name)
        node = self.named.get(full)
        if node is None and name in self.heights:
            # Types without a namespace can be used in a namespace, once they are complete.
            node = self.named[name]
        if node is None:
            return self._missing(holder, key, full, space, depth)
        if self._mend is not None and node.name in self._mend.renames:
            holder[key] = self._mend.renames[node.name]
        self._reach(depth + self.heights.get(node.name, 0))
        return node

    def _missing(self, holder: Any, key: str | int, full: str, space: str, depth: int) -> Node:
        if self._mend is not None:
            for name in (full, simple_name(full)):
                if name in self._mend.definitions:
                    definition = copy.copy(self._mend.definitions[name])
                    if "." not in name and space:
                        definition["namespace"] = ""
                    holder[key] = definition
                    return self._object(holder, key, definition, space, depth)
        raise self._invalid(
            f"the type {shown_json(full)} is not defined. Define it before its first use, or add a"
            " reference to the schema that defines it"
        )

    def _union(self, document: list[Any], space: str, depth: int) -> Union:
        branches: list[Node] = []
        kinds: set[str] = set()
        for position in range(len(document)):
            branch = self.node(document, position, space, depth + 1)
            if isinstance(branch, Union):
                raise self._invalid("a union must not contain a union")
            kind = union_key(branch)
            if kind in kinds:
                raise self._invalid(f"the union has the type {shown(kind)} twice")
            kinds.add(kind)
            branches.append(branch)
        return Union(tuple(branches), document)

    def _object(
        self, holder: Any, key: str | int, document: dict[str, Any], space: str, depth: int
    ) -> Node:
        kind = document.get("type")
        if not isinstance(kind, str):
            raise self._invalid(f'"type" is {shown_json(kind)}, but it must be the name of a type')
        match kind:
            case "record" | "error" | "enum" | "fixed":
                return self._definition(holder, key, document, space, depth)
            case "array":
                return Array(self._part(document, "items", space, depth), document)
            case "map":
                return Map(self._part(document, "values", space, depth), document)
        if kind in PRIMITIVES:
            return Primitive(kind, document)
        return self._reference(holder, key, kind, space, depth)

    def _part(self, document: dict[str, Any], key: str, space: str, depth: int) -> Node:
        if key not in document:
            raise self._invalid(f"the {document['type']} has no {key!r}")
        return self.node(document, key, space, depth + 1)

    def _definition(
        self, holder: Any, key: str | int, document: dict[str, Any], space: str, depth: int
    ) -> Named:
        full = self._full_name(document, space)
        if full in self.named:
            if self._mend is None:
                raise self._invalid(
                    f"the type {shown(full)} is defined twice. Refer to it by its name"
                )
            holder[key] = full
            return self.named[full]
        outer, self._deepest = self._deepest, depth
        aliases = self._type_aliases(document, namespace(full))
        if document["type"] == "enum":
            node: Named = self._enum(document, full, aliases)
        elif document["type"] == "fixed":
            node = Fixed(full, aliases, self._size(document), document)
        else:
            node = self._record(document, full, aliases, depth)
        self.named[full] = node
        self.heights[full] = self._deepest - depth
        self._deepest = max(outer, self._deepest)
        if self._mend is not None and full in self._mend.renames:
            document["name"] = namespace_joined(
                namespace(document["name"]), simple_name(self._mend.renames[full])
            )
        return node

    def _full_name(self, document: dict[str, Any], space: str) -> str:
        name, own = document.get("name"), document.get("namespace")
        if not isinstance(name, str):
            raise self._invalid(f"the {document['type']} has no name")
        if own is not None and not isinstance(own, str):
            raise self._invalid(f"the namespace {shown_json(own)} is not a string")
        if name.startswith(".") and name.count(".") == 1:
            full = name[1:]
        elif "." in name:
            full = name
        else:
            full = namespace_joined(space if own is None else own, name)
        for part in full.split("."):
            self._check_name(part)
        if len(full) > NAME_LENGTH_MAX:
            raise self._invalid(
                f"the name {shown(full)} has {len(full)} characters, the limit is {NAME_LENGTH_MAX}"
            )
        if full in PRIMITIVES:
            raise self._invalid(f"the type must not be named {full}, which is a primitive type")
        return full

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._invalid(
                f"{shown_json(name)} is not a name. A name has letters, digits and underscores, and"
                " begins with a letter or an underscore"
            )

    def _type_aliases(self, document: dict[str, Any], space: str) -> tuple[str, ...]:
        """Return full names, with a dot before those without a namespace in a namespace."""
        aliases = self._aliases(document)
        for alias in aliases:
            self._check_name(simple_name(alias))
        return tuple(
            alias if "." in alias and (space or not alias.startswith("."))
            else namespace_joined(space, alias.lstrip("."))
            for alias in aliases
        )  # fmt: skip

    def _aliases(self, document: dict[str, Any]) -> list[str]:
        aliases = document.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise self._invalid(
                f'"aliases" is {shown_json(aliases)}, but it must be a list of strings'
            )
        self._count(len(aliases))
        return aliases

    def _enum(self, document: dict[str, Any], full: str, aliases: tuple[str, ...]) -> Enum:
        symbols = document.get("symbols")
        if not isinstance(symbols, list):
            raise self._invalid(f"the enum {shown(full)} has no list of symbols")
        self._count(len(symbols))
        for symbol in symbols:
            self._check_name(symbol)
        if len(set(symbols)) < len(symbols):
            raise self._invalid(f"the enum {shown(full)} has a symbol twice")
        default = document.get("default")
        if not isinstance(default, str):
            default = None
        elif default not in symbols:
            if self._mend is None:
                raise self._invalid(
                    f"the default {shown_json(default)} is not a symbol of the enum"
                )
            del document["default"]
            default = None
        return Enum(full, aliases, tuple(symbols), default, document)

    def _size(self, document: dict[str, Any]) -> int:
        size = document.get("size")
        if type(size) is not int or not 0 <= size <= FIXED_BYTES_MAX:
            raise self._invalid(
                f"the size of the fixed is {shown_json(size)}, must be from 0 to {FIXED_BYTES_MAX}"
            )
        return size

    def _record(
        self, document: dict[str, Any], full: str, aliases: tuple[str, ...], depth: int
    ) -> Record:
        fields = document.get("fields")
        if not isinstance(fields, list):
            raise self._invalid(f"the record {shown(full)} has no list of fields")
        record = Record(full, aliases, document)
        self.named[full] = record
        self._path.append("fields")
        for position, source in enumerate(fields):
            self._path.append(position)
            made = self._field(source, namespace(full), depth)
            if made.name in record.fields:
                raise self._invalid(
                    f"the record {shown(full)} has the field {shown(made.name)} twice"
                )
            record.fields[made.name] = made
            self._path.pop()
        self._path.pop()
        record.complete = True
        return record

    def _field(self, source: Any, space: str, depth: int) -> Field:
        self._count()
        if not isinstance(source, dict) or "type" not in source or "name" not in source:
            raise self._invalid("a field must be an object with a name and a type")
        self._check_name(source["name"])
        order = source.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ORDERS:
            raise self._invalid(
                f"the order {shown_json(order)} is not one of {', '.join(sorted(ORDERS))}"
            )
        node = self.node(source, "type", space, depth + 1)
        made = Field(source["name"], tuple(self._aliases(source)), node, source)
        if made.has_default:
            self._check_default(made)
        return made

    def _check_default(self, made: Field) -> None:
        try:
            if matches_field(made.node, made.source["default"]):
                return
        except InvalidSchema:
            if self._mend is None:
                raise
        if self._mend is None:
            raise self._invalid(
                f"the default {shown_json(made.source['default'])} of the field {shown(made.name)}"
                f" does not match its type {describe(made.node)}"
            )
        del made.source["default"]
        for value in zero_default(made.node):
            made.source["default"] = value
