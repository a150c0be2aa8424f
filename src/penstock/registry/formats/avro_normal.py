"""Normal form of Avro types as a JSON document.

The normal form has full names, keys in a fixed order, and neither attributes without meaning nor
attributes that repeat a default. Avro's Java library drops the same attributes when it writes a
schema: attributes of references, and reserved attributes of types that do not have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.registry.formats.avro_types import (
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
    namespace,
)

_RESERVED: Final = frozenset(
    ("type", "name", "namespace", "doc", "fields", "items", "values", "size", "symbols", "aliases")
)
_RESERVED_OF_ENUMS: Final = _RESERVED | {"default"}
_RESERVED_OF_FIELDS: Final = frozenset(("type", "name", "doc", "default", "order", "aliases"))


class NormalForm:
    """Writer of types that defines each named type at its first use.

    Attributes:
        sort_aliases: whether aliases are sorted. Their order has no meaning.
    """

    def __init__(self, defined: Iterable[str], *, sort_aliases: bool) -> None:
        self._defined = set(defined)
        self._sort_aliases = sort_aliases

    def document(self, node: Node, space: str = "") -> Any:
        """Return the document of a type that occurs in a namespace."""
        match node:
            case Primitive(kind=kind, source=source):
                properties = _properties(source, _RESERVED)
                return {"type": kind, **properties} if properties else kind
            case Array(item=item, source=source):
                items = self.document(item, space)
                return {"type": "array", "items": items, **_properties(source, _RESERVED)}
            case Map(value=value, source=source):
                values = self.document(value, space)
                return {"type": "map", "values": values, **_properties(source, _RESERVED)}
            case Union(branches=branches):
                return [self.document(branch, space) for branch in branches]
        if node.name in self._defined:
            return node.name
        self._defined.add(node.name)
        return self.definition(node, space)

    def definition(self, node: Named, space: str = "") -> dict[str, Any]:
        """Return the definition of a named type."""
        made: dict[str, Any] = {"type": node.source["type"], "name": node.name}
        if space and not namespace(node.name):
            made["namespace"] = ""
        _copy_doc(node.source, made)
        reserved = _RESERVED
        match node:
            case Record(fields=fields):
                inner = namespace(node.name)
                made["fields"] = [self.field(field, inner) for field in fields.values()]
            case Fixed(size_bytes=size):
                made["size"] = size
            case Enum(symbols=symbols, default=default):
                made["symbols"] = list(symbols)
                if default is not None:
                    made["default"] = default
                reserved = _RESERVED_OF_ENUMS
        self._write_aliases(node.aliases, made)
        return made | _properties(node.source, reserved)

    def field(self, field: Field, space: str = "") -> dict[str, Any]:
        """Return the document of a field of a record in a namespace."""
        made = {"name": field.name, "type": self.document(field.node, space)}
        _copy_doc(field.source, made)
        if field.has_default:
            made["default"] = _default(field)
        order = field.source.get("order", "ascending").lower()
        if order != "ascending":
            made["order"] = order
        self._write_aliases(field.aliases, made)
        return made | _properties(field.source, _RESERVED_OF_FIELDS)

    def _write_aliases(self, aliases: tuple[str, ...], made: dict[str, Any]) -> None:
        if aliases:
            unique = dict.fromkeys(aliases)
            made["aliases"] = sorted(unique) if self._sort_aliases else list(unique)


class Definitions(Mapping[str, dict[str, Any]]):
    """Definitions of named types by full name, in which other named types are references."""

    def __init__(self, named: Mapping[str, Named]) -> None:
        self._named = named
        self._form = NormalForm(named, sort_aliases=False)

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._form.definition(self._named[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def _copy_doc(source: Mapping[str, Any], made: dict[str, Any]) -> None:
    if isinstance(source.get("doc"), str):
        made["doc"] = source["doc"]


def _default(field: Field) -> Any:
    value = field.source["default"]
    if isinstance(value, str) and field.node.kind in ("float", "double"):
        number = float(value)
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return _sorted(value)


def _properties(source: Any, reserved: frozenset[str]) -> dict[str, Any]:
    if not isinstance(source, dict):
        return {}
    return {name: _sorted(source[name]) for name in sorted(source.keys() - reserved)}


def _sorted(value: Any) -> Any:
    """Return a JSON value with the keys of its objects in order."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
